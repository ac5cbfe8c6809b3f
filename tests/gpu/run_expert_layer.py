"""The small expert layer through the installed vLLM, by one kernel, which it prints: BACKEND OUT."""

import sys
from pathlib import Path

import numpy as np
import torch
from expert_layer import EXPERTS, HIDDEN, INNER, TOP_K, ExpertLayer, make_layer
from vllm.config import KernelConfig, VllmConfig, set_current_vllm_config
from vllm.distributed.parallel_state import ensure_model_parallel_initialized, init_distributed_environment
from vllm.forward_context import set_forward_context
from vllm.model_executor.layers.fused_moe.layer import FusedMoEFactory
from vllm.model_executor.layers.quantization.modelopt import ModelOptNvFp4Config
from vllm.model_executor.models.gemma4 import gemma4_routing_function_torch

from decideploy.demo import architecture


def load(experts: torch.nn.Module, layer: ExpertLayer) -> None:
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
    # The largest activation over 448 x 6, as a calibration would have found it.
    experts.w13_input_scale.data.fill_(float(np.abs(layer.hidden).max()) / (448 * 6))
    experts.w2_input_scale.data.fill_(8.0 / (448 * 6))


def run(backend: str) -> tuple[np.ndarray, str]:
    config = VllmConfig(kernel_config=KernelConfig(moe_backend=backend))
    layer = make_layer()
    ones = torch.ones(EXPERTS, device="cuda")
    with set_current_vllm_config(config):
        init_distributed_environment(1, 0, "tcp://127.0.0.1:29517", 0)
        ensure_model_parallel_initialized(1, 1)
        torch.set_default_dtype(torch.bfloat16)
        with torch.device("cuda"):
            runner = FusedMoEFactory(
                num_experts=EXPERTS,
                top_k=TOP_K,
                hidden_size=HIDDEN,
                intermediate_size=INNER,
                quant_config=ModelOptNvFp4Config.from_config(architecture.hf_quant_config()),
                prefix="model.layers.0.experts",
                custom_routing_function=lambda hidden_states, gating_output, topk, renormalize: (
                    gemma4_routing_function_torch(gating_output, topk, ones)
                ),
                activation="gelu_tanh",
            )
            (experts,) = [module for module in runner.modules() if hasattr(module, "w13_weight")]
            load(experts, layer)
            experts.quant_method.process_weights_after_loading(experts)
        hidden = torch.from_numpy(layer.hidden).to("cuda", torch.bfloat16)
        logits = torch.from_numpy(layer.router_logits).to("cuda", torch.bfloat16)
        with set_forward_context(None, config, num_tokens=len(hidden)):
            out = runner(hidden, logits)
        torch.cuda.synchronize()
    return out.float().cpu().numpy(), experts.quant_method.nvfp4_backend.value


if __name__ == "__main__":
    name, path = sys.argv[1:]
    values, kernel = run(name)
    np.save(Path(path), values)
    print(f"KERNEL {kernel}")
