"""A sparse checkpoint with the published model's full shape: 18 GB apparent, a few megabytes on disk.

Weights are holes and read as zeros; the scales that header verification reads are written. Tensors are in the
order of the common writers: wider dtypes first, then by name.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from decideploy.artifacts.convert import convert_adapter
from decideploy.artifacts.safetensors_file import DTYPE_BYTES, bf16, float32, write_tensors
from decideploy.artifacts.shape import (
    Shape,
    dense_tensors,
    linear_modules,
    nvfp4_expert_tensors,
    parse_shape,
)
from decideploy.demo import architecture, tokenizer

NUM_LAYERS = 30
SHARDS = 4

TEXT: dict[str, Any] = {
    "hidden_size": 2816,
    "intermediate_size": 2112,
    "num_hidden_layers": NUM_LAYERS,
    "layer_types": ["full_attention" if n % 6 == 5 else "sliding_attention" for n in range(NUM_LAYERS)],
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "head_dim": 256,
    "global_head_dim": 512,
    "num_global_key_value_heads": 2,
    "sliding_window": 1024,
    "num_experts": 128,
    "top_k_experts": 8,
    "moe_intermediate_size": 704,
}

# The published tower's sizes: 1.03 GiB in bf16.
VISION = {
    "hidden_size": 1152,
    "intermediate_size": 4304,
    "num_hidden_layers": 27,
    "num_attention_heads": 16,
    "num_key_value_heads": 16,
    "head_dim": 72,
    "position_embedding_size": 10_240,
}

Form = tuple[str, tuple[int, ...]]


def write_full_shape(out: Path) -> None:
    """Write the folder; every rule of a whole model holds."""
    out.mkdir(parents=True)
    config = architecture.model_config(quantization())
    config["text_config"] |= TEXT
    config["vision_config"] |= VISION
    shape = parse_shape(config["text_config"])
    assert isinstance(shape, Shape)
    write_json(out / "config.json", config)
    write_checkpoint(out, shape)
    write_texts(out)
    write_decision_files(out, shape)


def quantization() -> dict[str, Any]:
    return architecture.quantization_config() | {"ignore": exclusions()}


def exclusions() -> list[str]:
    parts = ("mlp", "router", "self_attn")
    layers = [f"model.language_model.layers.{n}.{part}*" for n in range(NUM_LAYERS) for part in parts]
    return ["lm_head", "model.embed_vision*", *layers, "model.vision_tower*"]


def write_checkpoint(out: Path, shape: Shape) -> None:
    forms: dict[str, Form] = {name: ("BF16", size) for name, size in dense_tensors(shape).items()}
    forms |= {**nvfp4_expert_tensors(shape), **vision_forms()}
    names = sorted(forms)
    weight_map = {name: shard_name(number * SHARDS // len(names)) for number, name in enumerate(names)}
    for shard in range(SHARDS):
        held = {name: forms[name] for name in names if weight_map[name] == shard_name(shard)}
        write_sparse(out / shard_name(shard), held)
    total = sum(size_bytes(form) for form in forms.values())
    write_json(
        out / "model.safetensors.index.json", {"metadata": {"total_size": total}, "weight_map": weight_map}
    )


def shard_name(shard: int) -> str:
    return f"model-{shard + 1:05}-of-{SHARDS:05}.safetensors"


def vision_forms() -> dict[str, Form]:
    """The vision tower, whose shapes are no concern of the rules."""
    hidden, inner = VISION["hidden_size"], VISION["intermediate_size"]
    shapes = {f"self_attn.{name}_proj.linear": (hidden, hidden) for name in "qkvo"}
    shapes |= {f"mlp.{name}_proj.linear": (inner, hidden) for name in ("gate", "up")}
    shapes["mlp.down_proj.linear"] = (hidden, inner)
    norms = ("input", "post_attention", "pre_feedforward", "post_feedforward")
    vectors = {f"{name}_layernorm": (hidden,) for name in norms}
    vectors |= {f"self_attn.{name}_norm": (VISION["head_dim"],) for name in "qk"}
    prefix = "model.vision_tower.encoder.layers"
    forms: dict[str, Form] = {
        f"{prefix}.{n}.{name}.weight": ("BF16", shape)
        for n in range(VISION["num_hidden_layers"])
        for name, shape in (shapes | vectors).items()
    }
    embedder = "model.vision_tower.patch_embedder"
    return forms | {
        f"{embedder}.input_proj.weight": ("BF16", (hidden, 3 * architecture.PATCH_SIZE**2)),
        f"{embedder}.position_embedding_table": ("BF16", (2, VISION["position_embedding_size"], hidden)),
        "model.embed_vision.embedding_projection.weight": ("BF16", (TEXT["hidden_size"], hidden)),
    }


def size_bytes(form: Form) -> int:
    dtype, shape = form
    return int(np.prod(shape, dtype=np.int64)) * DTYPE_BYTES[dtype]


def write_sparse(path: Path, forms: Mapping[str, Form]) -> None:
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    offset = 0
    scales: list[int] = []
    for name in sorted(forms, key=lambda name: (-DTYPE_BYTES[forms[name][0]], name)):
        dtype, shape = forms[name]
        end = offset + size_bytes(forms[name])
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [offset, end]}
        scales += [offset] if dtype == "F32" else []
        offset = end
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for place in scales:
            file.seek(8 + len(text) + place)
            file.write(struct.pack("<f", 0.01))
        file.truncate(8 + len(text) + offset)


def write_texts(out: Path) -> None:
    write_json(out / "generation_config.json", architecture.generation_config())
    write_json(out / "preprocessor_config.json", architecture.image_processor_config())
    write_json(out / "processor_config.json", architecture.processor_config())
    write_json(out / "tokenizer_config.json", tokenizer.tokenizer_config())
    write_json(out / "tokenizer.json", tokenizer.tokenizer_json())
    (out / "chat_template.jinja").write_text(tokenizer.CHAT_TEMPLATE, "utf-8")
    legacy = architecture.hf_quant_config()
    legacy["quantization"]["exclude_modules"] = exclusions()
    write_json(out / "hf_quant_config.json", legacy)


def write_decision_files(out: Path, shape: Shape) -> None:
    rng = np.random.default_rng(1)
    head = {"proj.weight": rng.normal(size=(24, shape.hidden_size)), "proj.bias": np.zeros(24)}
    write_tensors(out / "head.safetensors", {name: float32(values) for name, values in head.items()})
    judge = {
        "adapter_subfolder": "adapter",
        "hidden_size": shape.hidden_size,
        "softcap": architecture.SOFTCAP,
        "readout": {"prefix_token": "<bos>"},
        "slots": {
            "num_slots": 24,
            "template_version": architecture.TEMPLATE_VERSION,
            "ranges": architecture.SLOT_RANGES,
        },
        "verbalizer_ids": list(tokenizer.VERBALIZERS.values()),
    }
    write_json(out / "judge_config.json", judge)
    write_json(out / "calibration.json", {"per_kind": {"noul": 1.003, "score": 1.017, "choice": 0.999}})
    write_adapter(out / "adapter", shape)
    convert_adapter(out, out / "adapter_vllm")


def write_adapter(out: Path, shape: Shape) -> None:
    out.mkdir()
    pairs = {}
    for module, (outputs, inputs) in linear_modules(shape).items():
        if module != "lm_head":
            prefix = f"base_model.model.{module}"
            pairs[f"{prefix}.lora_A.weight"] = bf16(np.full((32, inputs), 0.01, np.float32))
            pairs[f"{prefix}.lora_B.weight"] = bf16(np.full((outputs, 32), 0.01, np.float32))
    write_tensors(out / "adapter_model.safetensors", pairs)
    write_json(out / "adapter_config.json", {"peft_type": "LORA", "r": 32, "lora_alpha": 32})


def write_json(path: Path, content: object) -> None:
    path.write_text(json.dumps(content), "utf-8")
