"""The small expert layer through the installed vLLM: ``python -m … BACKEND DTYPE OUT``.

OUT becomes an .npz of ``output`` ``[tokens, hidden]`` and ``kernel``, vLLM's name of the kernel that it took.
A process of its own, because its CUDA context must be gone before the engine measures what is free.
"""

from __future__ import annotations

import ctypes
import signal
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import torch
from vllm.config import KernelConfig, VllmConfig, set_current_vllm_config
from vllm.distributed.parallel_state import (
    destroy_distributed_environment,
    destroy_model_parallel,
    ensure_model_parallel_initialized,
    init_distributed_environment,
)
from vllm.forward_context import set_forward_context
from vllm.model_executor.layers.fused_moe.layer import FusedMoEFactory
from vllm.model_executor.layers.quantization.modelopt import ModelOptNvFp4Config
from vllm.model_executor.models.gemma4 import gemma4_routing_function_torch
from vllm.platforms import current_platform
from vllm.v1.worker.workspace import init_workspace_manager

from decideploy.hardware.smoke_layer import (
    EXPERTS,
    HIDDEN,
    INNER,
    INPUT_SCALES,
    TOP_K,
    ExpertLayer,
    Values,
    make_layer,
    steps,
)
from decideploy.nvfp4 import GROUP_SIZE

DEVICE = torch.device(current_platform.device_type, 0)

_PR_SET_PDEATHSIG = 1
# As in a model's hf_quant_config.json.
_QUANTIZATION = {
    "quant_algo": "NVFP4",
    "kv_cache_quant_algo": None,
    "group_size": GROUP_SIZE,
    "exclude_modules": ["lm_head"],
}


def main(backend: str, dtype: str, out: Path) -> None:
    """Run the layer by ``backend`` in ``dtype``, and write what came of it."""
    # A caller that is killed takes this process with it, and what it holds of the GPU.
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    config = VllmConfig(kernel_config=KernelConfig(moe_backend=backend))
    torch.set_default_dtype(getattr(torch, dtype))
    with set_current_vllm_config(config), _group_of_one():
        init_workspace_manager(DEVICE)
        output, kernel = _run(make_layer(), config)
    np.savez(out, output=output, kernel=kernel)


@contextmanager
def _group_of_one() -> Iterator[None]:
    """The process group that layers ask for; by a file, because a port could be taken."""
    with tempfile.TemporaryDirectory() as folder:
        init_distributed_environment(1, 0, f"file://{folder}/store", 0, current_platform.dist_backend)
        ensure_model_parallel_initialized(1, 1)
        try:
            yield
        finally:
            destroy_model_parallel()
            destroy_distributed_environment()


def _run(layer: ExpertLayer, config: VllmConfig) -> tuple[Values, str]:
    # As the engine loads: made on the device, filled, then turned into the kernel's own layout.
    with DEVICE:
        runner = _make_runner()
    (experts,) = [module for module in runner.modules() if hasattr(module, "w13_weight")]
    _load(experts, layer)
    experts.quant_method.process_weights_after_loading(experts)
    outputs = []
    for hidden, logits in zip(steps(layer.hidden), steps(layer.router_logits), strict=True):
        with torch.inference_mode(), set_forward_context(None, config, num_tokens=len(hidden)):
            outputs.append(runner(_on_device(hidden), _on_device(logits)).float().cpu().numpy())
    return np.concatenate(outputs), experts.quant_method.nvfp4_backend.value


def _make_runner() -> torch.nn.Module:
    ones = torch.ones(EXPERTS)
    return FusedMoEFactory(
        num_experts=EXPERTS,
        top_k=TOP_K,
        hidden_size=HIDDEN,
        intermediate_size=INNER,
        quant_config=ModelOptNvFp4Config.from_config({"quantization": _QUANTIZATION}),
        prefix="model.layers.0.experts",
        custom_routing_function=lambda hidden_states, gating_output, topk, renormalize: (
            gemma4_routing_function_torch(gating_output, topk, ones)
        ),
        activation="gelu_tanh",
    )


def _on_device(values: Values) -> torch.Tensor:
    return torch.from_numpy(values).to(DEVICE, torch.get_default_dtype())


def _load(experts: torch.nn.Module, layer: ExpertLayer) -> None:
    """Copy codes and scales into vLLM's parameters: gate above up, one scale of activations for all."""
    for number, projections in enumerate(layer.experts):
        gate, up, down = (projections[f"{name}_proj"] for name in ("gate", "up", "down"))
        both = np.concatenate([gate.weight, up.weight]), np.concatenate([gate.scale, up.scale])
        experts.w13_weight.data[number] = torch.from_numpy(both[0])
        experts.w13_weight_scale.data[number] = torch.from_numpy(both[1]).view(torch.float8_e4m3fn)
        experts.w2_weight.data[number] = torch.from_numpy(down.weight)
        experts.w2_weight_scale.data[number] = torch.from_numpy(down.scale).view(torch.float8_e4m3fn)
        experts.w13_weight_scale_2.data[number] = float(gate.scale_2)
        experts.w2_weight_scale_2.data[number] = float(down.scale_2)
    experts.w13_input_scale.data.fill_(INPUT_SCALES[0])
    experts.w2_input_scale.data.fill_(INPUT_SCALES[1])


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], Path(sys.argv[3]))
