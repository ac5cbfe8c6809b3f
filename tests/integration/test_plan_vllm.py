"""The plan's arithmetic and tables against the installed vLLM's own functions: one process, no GPU."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from decideploy.artifacts import sizes_of
from decideploy.demo import architecture
from decideploy.errors import CapacityError, ConfigError
from decideploy.hardware import card_report, kernel_path, known_cards
from decideploy.hardware.kernels import backends
from decideploy.plan import Workload, plan
from decideploy.plan.kv_cache import KvShape

# What torch and vLLM warn of as they are imported is not this project's to mend.
pytestmark = [pytest.mark.integration, pytest.mark.filterwarnings("ignore")]

PUBLISHED = "autotrust/GEV-26B-Decide-NVFP4"
SLIDING, FULL = "sliding_attention", "full_attention"
MIXES = {
    "5 to 1": (SLIDING,) * 5 + (FULL,),
    "full size": ((SLIDING,) * 5 + (FULL,)) * 5,
    "1 to 1": (SLIDING, FULL) * 3,
    "nearly even": (SLIDING,) * 4 + (FULL,) * 3,
    "uneven": (SLIDING,) * 7 + (FULL,) * 3,
    "full only": (FULL,) * 6,
    "sliding only": (SLIDING,) * 6,
}
# Block size, KV dtype, longest sequence, tokens in flight, memory in bytes.
SETTINGS = [
    (16, "auto", 2048, 2048, 2**28),
    (16, "fp8", 8192, 4096, 2**28 + 12_345),
    (32, "auto", 8192, 2048, 2**30),
    (128, "auto", 4096, 512, 3 * 2**28),
]


def facts(layer_types, **changes):
    """The demo model's sizes with other layers."""
    values = {
        "layer_types": layer_types,
        "num_layers": len(layer_types),
        "num_key_value_heads": architecture.NUM_KV_HEADS,
        "head_dim": architecture.HEAD_DIM,
        "num_global_key_value_heads": architecture.NUM_GLOBAL_KV_HEADS,
        "global_head_dim": architecture.GLOBAL_HEAD_DIM,
        "attention_k_eq_v": True,
        "sliding_window": architecture.SLIDING_WINDOW,
    }
    return SimpleNamespace(**values | changes)


def specs(model, block_tokens, kv_dtype):
    """What the model's attention layers ask of vLLM for themselves."""
    import torch
    from vllm.v1.kv_cache_interface import FullAttentionSpec, SlidingWindowSpec

    dtype = {"auto": torch.bfloat16, "fp8": torch.uint8}[kv_dtype]
    sliding = SlidingWindowSpec(
        block_size=block_tokens,
        num_kv_heads=model.num_key_value_heads,
        head_size=model.head_dim,
        dtype=dtype,
        sliding_window=model.sliding_window,
    )
    full = FullAttentionSpec(
        block_size=block_tokens,
        num_kv_heads=model.num_global_key_value_heads,
        head_size=model.global_head_dim,
        dtype=dtype,
    )
    # Each layer has a specification of its own, which grouping may change in place.
    return {
        f"layers.{n}": replace(sliding if kind == SLIDING else full)
        for n, kind in enumerate(model.layer_types)
    }


def engine_config(max_model_len, in_flight_tokens):
    from vllm.v1.kv_cache_layout import KVCacheLayout

    return SimpleNamespace(
        scheduler_config=SimpleNamespace(disable_hybrid_kv_cache_manager=False),
        attention_config=SimpleNamespace(hisparse_config=None),
        model_config=SimpleNamespace(max_model_len=max_model_len, original_max_model_len=max_model_len),
        parallel_config=SimpleNamespace(decode_context_parallel_size=1, pipeline_parallel_size=1),
        cache_config=SimpleNamespace(
            num_gpu_blocks_override=None,
            prefix_cache_retention_interval=None,
            get_resolved_kv_cache_layout=lambda: KVCacheLayout.LBHNC,
        ),
        speculative_config=None,
        max_in_flight_tokens=in_flight_tokens,
    )


def engine_blocks(model, setting):
    """vLLM's number of blocks and its capacity in tokens."""
    from vllm.v1.core.kv_cache_utils import get_kv_cache_capacity, get_kv_cache_configs

    block_tokens, kv_dtype, length, in_flight, memory = setting
    config = engine_config(length, in_flight)
    (found,) = get_kv_cache_configs(config, [specs(model, block_tokens, kv_dtype)], [memory])
    return found.num_blocks, get_kv_cache_capacity(config, found)[0]


@pytest.mark.parametrize("setting", SETTINGS, ids=str)
@pytest.mark.parametrize("mix", MIXES)
def test_blocks_are_those_of_vllm(mix, setting):
    block_tokens, kv_dtype, length, in_flight, memory = setting
    model = facts(MIXES[mix])
    shape = KvShape.of(model, block_tokens, kv_dtype)
    blocks = shape.num_blocks(memory)
    assert (blocks, shape.capacity_tokens(blocks, length, in_flight)) == engine_blocks(model, setting)


@pytest.mark.parametrize("mix", MIXES)
def test_the_startup_floor_is_the_least_that_vllm_starts_with(mix):
    length, in_flight = 8192, 1024
    model = facts(MIXES[mix])
    floor = KvShape.of(model, 16).floor_bytes(length, in_flight)
    assert engine_blocks(model, (16, "auto", length, in_flight, floor))[0] > 0
    with pytest.raises(ValueError, match="KV cache is needed"):
        engine_blocks(model, (16, "auto", length, in_flight, floor - 1))


PACKAGES = (
    "has_flashinfer_trtllm_fused_moe",
    "has_flashinfer_cutlass_fused_moe",
    "has_flashinfer_cutedsl_moe_nvfp4",
    "has_humming",
)


@pytest.fixture
def oracle(monkeypatch):
    """A function: what vLLM's own checks say of each backend on a GPU that is not here.

    The platform is replaced where the checks look it up, and the kernel packages count as installed.
    """
    import torch
    from vllm.model_executor.layers.fused_moe import modular_kernel
    from vllm.model_executor.layers.fused_moe.activation import MoEActivation
    from vllm.model_executor.layers.fused_moe.config import (
        FusedMoEConfig,
        FusedMoEParallelConfig,
        RoutingMethodType,
    )
    from vllm.model_executor.layers.fused_moe.oracle import nvfp4
    from vllm.model_executor.layers.quantization.utils.quant_utils import kNvfp4Dynamic, kNvfp4Static
    from vllm.platforms.interface import DeviceCapability, Platform, PlatformEnum

    def ask(capability: str, *, lora_on_experts: bool) -> dict[str, str | None]:
        major, minor = map(int, capability.split("."))

        class Gpu(Platform):
            _enum = PlatformEnum.CUDA
            device_name = device_type = "cuda"

            @classmethod
            def get_device_capability(cls, device_id=0):
                return DeviceCapability(major, minor)

        config = FusedMoEConfig(
            num_experts=128,
            experts_per_token=8,
            hidden_dim=2816,
            intermediate_size=704,
            num_local_experts=128,
            num_logical_experts=128,
            activation=MoEActivation.GELU_TANH,
            device="cpu",
            routing_method=RoutingMethodType.Custom,
            moe_parallel_config=FusedMoEParallelConfig.make_no_parallel(),
            in_dtype=torch.bfloat16,
            is_lora_enabled=lora_on_experts,
        )
        told = {}
        for backend in nvfp4.NvFp4MoeBackend:
            kernels = nvfp4.backend_to_kernel_cls(backend)
            with monkeypatch.context() as patch:
                for kernel in kernels:
                    place_on(patch, kernel, Gpu())
                answers = [
                    check_of(kernel)(
                        kernel,
                        config,
                        kNvfp4Static,
                        kNvfp4Dynamic,
                        modular_kernel.FusedMoEActivationFormat.Standard,
                    )
                    for kernel in kernels
                ]
            reasons = [reason for supported, reason in answers if not supported]
            told[backend.value] = None if len(reasons) < len(answers) else reasons[-1]
        return told

    return ask


def check_of(kernel):
    """The kernel's own check; of Humming's the part that vLLM has, as the rest asks the package itself."""
    from vllm.model_executor.layers.fused_moe.modular_kernel import FusedMoEExpertsModular

    return (FusedMoEExpertsModular if "Humming" in kernel.__name__ else kernel).is_supported_config


def place_on(patch, kernel, gpu):
    import sys

    for base in kernel.__mro__:
        module = sys.modules[base.__module__]
        for name in ("current_platform", *PACKAGES):
            if hasattr(module, name):
                patch.setattr(module, name, gpu if name == "current_platform" else lambda: True)


CAPABILITIES = ["7.5", "8.0", "8.6", "8.9", "9.0", "10.0", "10.3", "12.0", "12.1"]


@pytest.mark.parametrize("capability", CAPABILITIES)
def test_planned_kernels_are_those_that_vllm_supports(oracle, capability):
    told = oracle(capability, lora_on_experts=False)
    for name in kernel_path(capability).order:
        assert told[backends()[name].log] is None, (name, told)


@pytest.mark.parametrize("capability", CAPABILITIES)
def test_lora_on_experts_leaves_what_the_stock_row_says(oracle, capability):
    told = oracle(capability, lora_on_experts=True)
    supported = {name for name, row in backends().items() if told[row.log] is None}
    assert supported == set(kernel_path(capability, patched=False).order)
    assert "LoRA" in told["HUMMING"]


@pytest.mark.parametrize("capability", CAPABILITIES)
def test_w4a4_is_planned_exactly_where_vllm_has_it(oracle, capability):
    told = oracle(capability, lora_on_experts=False)
    native = {name for name, row in backends().items() if row.activation == "W4A4" and not told[row.log]}
    assert bool(native) == (kernel_path(capability).activation == "W4A4")


@pytest.mark.parametrize("capability", CAPABILITIES)
def test_a_kernel_is_refused_exactly_where_vllm_has_it_not(oracle, capability):
    told = oracle(capability, lora_on_experts=False)
    supported = {name for name, row in backends().items() if told[row.log] is None}
    assert {name for name, row in backends().items() if row.runs_on(capability)} == supported


def test_every_backend_is_one_of_vllm_by_both_names():
    from vllm.model_executor.layers.fused_moe.oracle.nvfp4 import map_nvfp4_backend

    assert {name: map_nvfp4_backend(name).value for name in backends()} == {
        name: row.log for name, row in backends().items()
    }


WISHES = {
    "default": Workload(),
    "text": Workload(images=False, clients=8, goal="throughput"),
    "fp8": Workload(kv_cache_dtype="fp8", kv_cache_memory_bytes=2**31, max_model_len=4096),
    "forced": Workload(moe_backend="marlin", tensor_parallel_size=2, max_num_batched_tokens=3000),
    "draft": Workload(draft_model=Path("/models/draft"), draft_bytes=1, images=False),
}


@pytest.fixture(scope="module")
def parser():
    from vllm.entrypoints.launchers.cli_args import make_arg_parser
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    return make_arg_parser(FlexibleArgumentParser())


@pytest.mark.parametrize("name", WISHES)
def test_every_plan_is_what_vllms_parser_reads(parser, name):
    from vllm.entrypoints.launchers.cli_args import validate_parsed_serve_args

    read = 0
    for card in known_cards():
        try:
            launch = plan(sizes_of(PUBLISHED), card_report(card), workload=WISHES[name])
        except (CapacityError, ConfigError):
            continue
        args = parser.parse_args(list(launch.argv[2:]))
        validate_parsed_serve_args(args)
        assert args.max_model_len == launch.max_model_len
        assert args.max_num_seqs == launch.max_num_seqs
        assert args.cudagraph_capture_sizes == list(launch.capture_sizes)
        assert args.moe_backend == launch.moe_backend
        assert args.kv_cache_memory_bytes == WISHES[name].kv_cache_memory_bytes
        assert (args.speculative_config is None) == (name != "draft")
        read += 1
    assert read >= 8
