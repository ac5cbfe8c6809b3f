"""Six plans of the 26B shape, and what the engine measured of each on one H200.

A checkpoint of zeros with the scales of a real one, vLLM 0.30.0 with the series, torch 2.11.0+cu130,
2026-12-01; ``tests/gpu/test_gpu_shape.py -k as_planned`` repeats it.
"""

from dataclasses import dataclass

from decideploy.plan import Workload

KV_BOUND, WEIGHTS_BOUND = 0.02, 0.01
TOTAL_BYTES = 150_109_880_320


@dataclass(frozen=True, kw_only=True)
class Measured:
    """A workload; bytes that loading the model took, and bytes that the engine found for keys and values."""

    workload: Workload
    weights_bytes: int
    kv_cache_bytes: int


PLANS = {
    "default": Measured(workload=Workload(), weights_bytes=20_401_088_512, kv_cache_bytes=115_186_459_239),
    "half card, 8k": Measured(
        workload=Workload(max_model_len=8192, gpu_memory_utilization=0.5),
        weights_bytes=20_401_088_512,
        kv_cache_bytes=52_140_309_504,
    ),
    "256 sequences, 0.7": Measured(
        workload=Workload(max_num_seqs=256, gpu_memory_utilization=0.7),
        weights_bytes=20_401_093_120,
        kv_cache_bytes=81_676_395_520,
    ),
    "text, 2k batched, marlin": Measured(
        workload=Workload(images=False, max_num_batched_tokens=2048, moe_backend="marlin", max_num_seqs=32),
        weights_bytes=18_178_855_424,
        kv_cache_bytes=117_560_671_847,
    ),
    "text, 8k batched": Measured(
        workload=Workload(images=False, goal="throughput"),
        weights_bytes=19_243_501_056,
        kv_cache_bytes=116_306_550_375,
    ),
    "fp8 keys and values": Measured(
        workload=Workload(kv_cache_dtype="fp8"),
        weights_bytes=20_401_088_512,
        kv_cache_bytes=115_207_430_759,
    ),
}
