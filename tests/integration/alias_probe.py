"""Run in a process of its own, against whichever vLLM is first on the path.

Builds a model whose one linear layer is reachable under two names, as Gemma-4's decoder layers are,
activates an adapter that names one of them, and prints what the layer holds afterwards.

    --register-alias    register the second name, as releases before 0.22 do by themselves
    --graft FILE        give the manager the activation code of that model_manager.py
"""

import argparse
import ast
import contextlib
import json
import sys
from pathlib import Path
from typing import ClassVar

import torch
from torch import nn
from vllm.config import VllmConfig, set_current_vllm_config
from vllm.config.lora import LoRAConfig
from vllm.distributed import init_distributed_environment, initialize_model_parallel
from vllm.lora import model_manager
from vllm.lora.lora_model import LoRAModel
from vllm.lora.lora_weights import LoRALayerWeights
from vllm.model_executor.layers.linear import ReplicatedLinear

CANONICAL = "layers.0.proj"
ALIAS = "self_decoder.decoder_layers.0.proj"
SIZE, RANK = 16, 8


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.proj = ReplicatedLinear(SIZE, SIZE, bias=False, params_dtype=torch.float32)


class Decoder(nn.Module):
    def __init__(self, layers):
        super().__init__()
        self.decoder_layers = layers


class AliasedModel(nn.Module):
    supports_lora = True
    embedding_modules: ClassVar[dict] = {}
    packed_modules_mapping: ClassVar[dict] = {}
    lora_skip_prefixes: ClassVar[list] = []
    is_3d_moe_weight = False
    is_non_gated_moe = False

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([Layer()])
        self.self_decoder = Decoder(self.layers)
        self.config = None


def adapter() -> LoRAModel:
    weights = LoRALayerWeights(CANONICAL, RANK, RANK, torch.ones(RANK, SIZE), torch.ones(SIZE, RANK))
    return LoRAModel(1, RANK, {CANONICAL: weights})


def graft_activation(source: Path) -> None:
    """Replace the manager's activation with the one written in ``source``."""
    wanted = {"activate_adapter", "_unique_modules"}
    manager = next(
        node
        for node in ast.parse(source.read_text()).body
        if isinstance(node, ast.ClassDef) and node.name == "LoRAModelManager"
    )
    functions = [node for node in manager.body if getattr(node, "name", "") in wanted]
    namespace: dict = {}
    code = compile(ast.Module(body=functions, type_ignores=[]), str(source), "exec")
    exec(code, vars(model_manager), namespace)
    for name, function in namespace.items():
        setattr(model_manager.LoRAModelManager, name, function)


def observe(register_alias: bool) -> dict:
    vllm_config = VllmConfig()
    with set_current_vllm_config(vllm_config):
        init_distributed_environment(1, 0, "tcp://127.0.0.1:0", 0, backend="gloo")
        initialize_model_parallel(1, 1, backend="gloo")
        lora_config = LoRAConfig(max_lora_rank=RANK, max_loras=1, lora_dtype=torch.float32)
        manager = model_manager.LoRAModelManager(
            AliasedModel(),
            1,
            8,
            32,
            lora_config=lora_config,
            device=torch.device("cpu"),
            vllm_config=vllm_config,
        )
    wrapper = manager.modules[CANONICAL]
    if register_alias:
        manager.register_module(ALIAS, wrapper)
    manager.add_adapter(adapter())
    manager.activate_adapter(1)
    return {
        "names": sorted(manager.modules),
        "same_module": all(module is wrapper for module in manager.modules.values()),
        "applied": bool(torch.count_nonzero(wrapper.lora_b_stacked[0])),
    }


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--register-alias", action="store_true")
    parser.add_argument("--graft", type=Path)
    options = parser.parse_args()
    with contextlib.redirect_stdout(sys.stderr):
        if options.graft:
            graft_activation(options.graft)
        result = observe(options.register_alias)
    print("\n" + json.dumps(result), flush=True)


if __name__ == "__main__":
    main()
