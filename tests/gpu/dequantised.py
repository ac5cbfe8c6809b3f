"""The NVFP4 demo model with its experts written out in float32: what the reference engine can load."""

import json
import shutil
from pathlib import Path

import numpy as np

from decideploy.artifacts.safetensors_file import StoredTensor, bf16, float32, write_tensors
from decideploy.demo import architecture, weights
from decideploy.nvfp4 import dequantize, quantize_expert

SHARD = "model-00002-of-00002.safetensors"


def write_dequantised(model: Path, out: Path) -> Path:
    """Copy the NVFP4 demo model, with the values that its codes stand for in place of the codes."""
    shutil.copytree(model, out)
    tensors = experts() | {name: bf16(values) for name, values in weights.vision_tensors().items()}
    write_tensors(out / SHARD, tensors)
    index = json.loads((out / "model.safetensors.index.json").read_text())
    kept = {name: shard for name, shard in index["weight_map"].items() if shard != SHARD}
    index["weight_map"] = kept | dict.fromkeys(tensors, SHARD)
    (out / "model.safetensors.index.json").write_text(json.dumps(index))
    (out / "config.json").write_text(json.dumps(architecture.model_config(None)))
    (out / "hf_quant_config.json").unlink()
    return out


def experts() -> dict[str, StoredTensor]:
    layers: dict[int, list[dict[str, np.ndarray]]] = {}
    for layer, _, projections in weights.expert_projections():
        values = {name: dequantize(weight) for name, weight in quantize_expert(projections).items()}
        layers.setdefault(layer, []).append(values)
    tensors = {}
    for layer, held in layers.items():
        prefix = f"{weights.TEXT_PREFIX}.layers.{layer}.experts"
        fused = [np.concatenate([expert["gate_proj"], expert["up_proj"]]) for expert in held]
        tensors[f"{prefix}.gate_up_proj"] = float32(np.stack(fused))
        tensors[f"{prefix}.down_proj"] = float32(np.stack([expert["down_proj"] for expert in held]))
    return tensors
