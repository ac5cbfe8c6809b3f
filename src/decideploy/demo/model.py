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
from decideploy.demo import architecture, tokenizer, trained, weights
from decideploy.demo.content import Content
from decideploy.errors import ConfigError
from decideploy.nvfp4 import FP4_MAX, FP8_MAX, quantize_expert

# Largest activation before each expert projection over the reference decisions, rounded up.
ACTIVATION_AMAX = {"gate_proj": 6.0, "up_proj": 6.0, "down_proj": 16.0}

# Read by the reference engine from the bf16 variant; tests/integration/record_golden.py writes them.
GOLDEN = Path(__file__).with_name("golden.json")


def demo_model_name() -> str:
    """``demo-model-`` and the first of the model's digest: another name for every change of its content."""
    return f"demo-model-{json.loads(GOLDEN.read_bytes())['model_sha256'][:8]}"


def write_demo_model(out: Path, *, nvfp4: bool = False, trained_weights: bool = False) -> None:
    """Write a complete small model into the folder ``out``, about 110 MB, the same bytes everywhere.

    Its weights are random, or with ``trained_weights`` those that decide sensibly (docs/demo-model.md).
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
    write_content(out, trained.content() if trained_weights else random_content(), nvfp4=nvfp4)


def random_content() -> Content:
    """The random model: the same numbers for ever, because tests and recorded decisions stand on them."""
    return Content(
        words=tokenizer.merged_words(),
        text_config={},
        text=weights.text_tensors(),
        experts=weights.fused_experts(),
        adapter=weights.adapter_tensors(),
        adapter_rank=architecture.ADAPTER_RANK,
        adapter_alpha=architecture.ADAPTER_ALPHA,
        head=weights.head_tensors(),
        activation_amax=ACTIVATION_AMAX,
        calibration={"noul": 1.003, "choice": 1.017, "score": 0.999},
        calibration_gold={"noul": 1.214, "choice": 1.098, "score": 1.0},
        golden=GOLDEN,
    )


def write_content(out: Path, content: Content, *, nvfp4: bool = False) -> None:
    """Write ``content`` as a model's files into the folder ``out``."""
    _write_checkpoint(out, content, nvfp4=nvfp4)
    _write_texts(out, content, nvfp4=nvfp4)
    _write_decision_files(out, content)
    convert_adapter(out, out / VLLM_ADAPTER_DIR)
    if content.golden and not nvfp4:
        shutil.copyfile(content.golden, out / GOLDEN.name)


def _write_checkpoint(out: Path, content: Content, *, nvfp4: bool) -> None:
    text = {name: bf16(values) for name, values in content.text.items()}
    vision = {name: bf16(values) for name, values in weights.vision_tensors().items()}
    experts = _nvfp4_experts(content) if nvfp4 else {n: bf16(v) for n, v in content.experts.items()}
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


def _nvfp4_experts(content: Content) -> dict[str, StoredTensor]:
    tensors: dict[str, StoredTensor] = {}
    for layer, expert, projections in weights.split_experts(content.experts):
        prefix = weights.expert_prefix(layer, expert)
        for name, quantized in quantize_expert(projections).items():
            amax = content.activation_amax[name]
            input_scale = np.float32(amax / (FP8_MAX * FP4_MAX))
            tensors |= {
                f"{prefix}.{name}.weight": StoredTensor(dtype="U8", values=quantized.weight),
                f"{prefix}.{name}.weight_scale": StoredTensor(dtype="F8_E4M3", values=quantized.scale),
                f"{prefix}.{name}.weight_scale_2": float32(np.array(quantized.scale_2)),
                f"{prefix}.{name}.input_scale": float32(np.array(input_scale)),
            }
    return tensors


def _write_texts(out: Path, content: Content, *, nvfp4: bool) -> None:
    quantization = architecture.quantization_config() if nvfp4 else None
    config = architecture.model_config(quantization)
    config["text_config"] |= content.text_config
    _write_json(out / "config.json", config)
    _write_json(out / "generation_config.json", architecture.generation_config())
    _write_json(out / "preprocessor_config.json", architecture.image_processor_config())
    _write_json(out / "processor_config.json", architecture.processor_config())
    _write_json(out / "tokenizer_config.json", tokenizer.tokenizer_config())
    _write_json(out / "tokenizer.json", tokenizer.tokenizer_json(content.words), indent=None)
    (out / "chat_template.jinja").write_text(tokenizer.CHAT_TEMPLATE, "utf-8")
    if nvfp4:
        _write_json(out / "hf_quant_config.json", architecture.hf_quant_config())
        _write_json(out / "nvfp4_activation_amax.json", _activation_amax(content))


def _activation_amax(content: Content) -> dict[str, float]:
    return {
        f"{weights.expert_prefix(layer, expert)}.{name}": amax
        for layer in range(architecture.NUM_LAYERS)
        for expert in range(architecture.NUM_EXPERTS)
        for name, amax in content.activation_amax.items()
    }


def _write_decision_files(out: Path, content: Content) -> None:
    write_tensors(out / "head.safetensors", {name: float32(values) for name, values in content.head.items()})
    _write_json(out / "judge_config.json", _judge_config())
    _write_json(out / "calibration.json", {"per_kind": content.calibration})
    _write_json(out / "calibration_gold.json", {"per_kind": content.calibration_gold})
    adapter = out / "adapter"
    adapter.mkdir(exist_ok=True)
    tensors = {name: bf16(values) for name, values in content.adapter.items()}
    write_tensors(adapter / "adapter_model.safetensors", tensors)
    _write_json(adapter / "adapter_config.json", _adapter_config(content))


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


def _adapter_config(content: Content) -> dict[str, Any]:
    return {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": None,
        "inference_mode": True,
        "r": content.adapter_rank,
        "lora_alpha": content.adapter_alpha,
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
