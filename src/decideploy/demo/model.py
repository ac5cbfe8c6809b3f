"""Write the demo model's folder."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from decideploy.artifacts.convert import VLLM_ADAPTER_DIR, convert_adapter
from decideploy.artifacts.safetensors_file import StoredTensor, bf16, float32, write_tensors
from decideploy.demo import architecture, tokenizer, weights
from decideploy.errors import ConfigError
from decideploy.nvfp4 import FP4_MAX, FP8_MAX, quantize_expert

# Largest activation before each expert projection over the reference decisions, rounded up.
ACTIVATION_AMAX = {"gate_proj": 6.0, "up_proj": 6.0, "down_proj": 16.0}

# Read by the reference engine from the bf16 variant; tests/integration/record_golden.py writes them.
GOLDEN = Path(__file__).with_name("golden.json")


def demo_model_name() -> str:
    """``demo-model-`` and the first of the model's digest: another name for every change of its content."""
    return f"demo-model-{json.loads(GOLDEN.read_bytes())['model_sha256'][:8]}"


def write_demo_model(out: Path, *, nvfp4: bool = False) -> None:
    """Write a complete synthetic model into the folder ``out``, about 110 MB, the same bytes everywhere.

    ``nvfp4`` stores the routed experts as ModelOpt does; everything else is bf16 in both variants. Golden
    decisions come with the bf16 variant, the one that the reference engine reads.
    Needs neither torch nor a forward pass.

    Raises:
        ConfigError: ``out`` is a folder that holds something already; nothing is written then.
    """
    out.mkdir(parents=True, exist_ok=True)
    if any(out.iterdir()):
        raise ConfigError(
            "the folder is not empty",
            where=str(out),
            next_step="name a new folder, or empty this one: its files would be mixed with the model's",
        )
    _write_checkpoint(out, nvfp4=nvfp4)
    _write_texts(out, nvfp4=nvfp4)
    _write_decision_files(out)
    convert_adapter(out, out / VLLM_ADAPTER_DIR)
    if not nvfp4:
        shutil.copyfile(GOLDEN, out / GOLDEN.name)


def _write_checkpoint(out: Path, *, nvfp4: bool) -> None:
    text = {name: bf16(values) for name, values in weights.text_tensors().items()}
    vision = {name: bf16(values) for name, values in weights.vision_tensors().items()}
    experts = _nvfp4_experts() if nvfp4 else {n: bf16(v) for n, v in weights.fused_experts().items()}
    shards = [text, experts | vision]
    weight_map: dict[str, str] = {}
    total_bytes = 0
    for number, tensors in enumerate(shards, start=1):
        filename = f"model-{number:05}-of-{len(shards):05}.safetensors"
        write_tensors(out / filename, tensors)
        weight_map |= dict.fromkeys(tensors, filename)
        total_bytes += sum(tensor.values.nbytes for tensor in tensors.values())
    index = {"metadata": {"total_size": total_bytes}, "weight_map": dict(sorted(weight_map.items()))}
    _write_json(out / "model.safetensors.index.json", index)


def _nvfp4_experts() -> dict[str, StoredTensor]:
    tensors: dict[str, StoredTensor] = {}
    for layer, expert, projections in weights.expert_projections():
        prefix = weights.expert_prefix(layer, expert)
        for name, quantized in quantize_expert(projections).items():
            input_scale = np.float32(ACTIVATION_AMAX[name] / (FP8_MAX * FP4_MAX))
            tensors |= {
                f"{prefix}.{name}.weight": StoredTensor(dtype="U8", values=quantized.weight),
                f"{prefix}.{name}.weight_scale": StoredTensor(dtype="F8_E4M3", values=quantized.scale),
                f"{prefix}.{name}.weight_scale_2": float32(np.array(quantized.scale_2)),
                f"{prefix}.{name}.input_scale": float32(np.array(input_scale)),
            }
    return tensors


def _write_texts(out: Path, *, nvfp4: bool) -> None:
    quantization = architecture.quantization_config() if nvfp4 else None
    _write_json(out / "config.json", architecture.model_config(quantization))
    _write_json(out / "generation_config.json", architecture.generation_config())
    _write_json(out / "preprocessor_config.json", architecture.image_processor_config())
    _write_json(out / "processor_config.json", architecture.processor_config())
    _write_json(out / "tokenizer_config.json", tokenizer.tokenizer_config())
    _write_json(out / "tokenizer.json", tokenizer.tokenizer_json(), indent=None)
    (out / "chat_template.jinja").write_text(tokenizer.CHAT_TEMPLATE, "utf-8")
    if nvfp4:
        _write_json(out / "hf_quant_config.json", architecture.hf_quant_config())
        _write_json(out / "nvfp4_activation_amax.json", _activation_amax())


def _activation_amax() -> dict[str, float]:
    return {
        f"{weights.expert_prefix(layer, expert)}.{name}": amax
        for layer in range(architecture.NUM_LAYERS)
        for expert in range(architecture.NUM_EXPERTS)
        for name, amax in ACTIVATION_AMAX.items()
    }


def _write_decision_files(out: Path) -> None:
    write_tensors(out / "head.safetensors", {n: float32(v) for n, v in weights.head_tensors().items()})
    _write_json(out / "judge_config.json", _judge_config())
    _write_json(out / "calibration.json", {"per_kind": {"noul": 1.003, "choice": 1.017, "score": 0.999}})
    _write_json(out / "calibration_gold.json", {"per_kind": {"noul": 1.214, "choice": 1.098, "score": 1.0}})
    adapter = out / "adapter"
    adapter.mkdir(exist_ok=True)
    tensors = {name: bf16(values) for name, values in weights.adapter_tensors().items()}
    write_tensors(adapter / "adapter_model.safetensors", tensors)
    _write_json(adapter / "adapter_config.json", _adapter_config())


def _judge_config() -> dict[str, Any]:
    return {
        "adapter_subfolder": "adapter",
        "hidden_size": architecture.HIDDEN_SIZE,
        "softcap": architecture.SOFTCAP,
        "readout": {"prefix_token": "<bos>"},
        "slots": {
            "num_slots": architecture.NUM_SLOTS,
            "template_version": architecture.TEMPLATE_VERSION,
            "ranges": architecture.SLOT_RANGES,
        },
        "verbalizer_ids": list(tokenizer.VERBALIZERS.values()),
    }


def _adapter_config() -> dict[str, Any]:
    return {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": None,
        "inference_mode": True,
        "r": architecture.ADAPTER_RANK,
        "lora_alpha": architecture.ADAPTER_ALPHA,
        "lora_dropout": 0.0,
        "bias": "none",
        "fan_in_fan_out": False,
        "use_rslora": False,
        "use_dora": False,
        "modules_to_save": None,
        "rank_pattern": {},
        "alpha_pattern": {},
        # A pattern, not suffixes: the vision tower has projections of the same names.
        "target_modules": (
            r".*language_model\.layers\.\d+\.(self_attn\.[qkvo]_proj|mlp\.(gate|up|down)_proj)"
        ),
    }


def _write_json(path: Path, content: Mapping[str, Any], *, indent: int | None = 2) -> None:
    path.write_text(json.dumps(content, indent=indent, ensure_ascii=False) + "\n", "utf-8")
