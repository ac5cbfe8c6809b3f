"""Names of the demo model's files and tensors, and single faults to put into them."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
from model_edits import Edit, both, drop, edit_json, put, read_tensors, replace_bytes, set_key

from decideploy.artifacts.safetensors_file import StoredTensor, bf16

CONFIG, INDEX, QUANT = "config.json", "model.safetensors.index.json", "hf_quant_config.json"
TEXT, REST = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"
ADAPTER, ADAPTER_CONFIG = "adapter_vllm/adapter_model.safetensors", "adapter_vllm/adapter_config.json"
DECISION_HEAD = "adapter_vllm/decision_head.json"
LAYER = "model.language_model.layers.1"
FULL = "base_model.model.model.language_model.layers.5.self_attn"
Q_PROJ = f"base_model.model.{LAYER}.self_attn.q_proj"
LM_HEAD = "base_model.model.lm_head"
GATE, UP = f"{LAYER}.experts.3.gate_proj", f"{LAYER}.experts.3.up_proj"
VISION = "model.embed_vision.embedding_projection.weight"


def index_tensor(name: str, shard: str | None, added_bytes: int) -> Edit:
    def change(index: dict[str, dict[str, object]]) -> None:
        index["metadata"]["total_size"] += added_bytes  # type: ignore[operator]
        if shard is None:
            del index["weight_map"][name]
        else:
            index["weight_map"][name] = shard

    return edit_json(INDEX, change)


def without(name: str, shard: str) -> Edit:
    def edit(model: Path) -> None:
        size = read_tensors(model / shard)[name].values.nbytes
        both(drop(shard, name), index_tensor(name, None, -size))(model)

    return edit


def replaced(name: str, stored: StoredTensor, shard: str) -> Edit:
    def edit(model: Path) -> None:
        old = read_tensors(model / shard).get(name)
        added = stored.values.nbytes - (old.values.nbytes if old else 0)
        both(put(shard, name, stored), index_tensor(name, shard, added))(model)

    return edit


def zeros(*shape: int) -> StoredTensor:
    return bf16(np.zeros(shape, np.float32))


def both_lists(change_ignore: object) -> Edit:
    return both(
        set_key(CONFIG, "quantization_config.ignore", change_ignore),
        set_key(QUANT, "quantization.exclude_modules", change_ignore),
    )


def without_exclusions(mark: str) -> Edit:
    def edit(model: Path) -> None:
        listed = json.loads((model / CONFIG).read_text())["quantization_config"]["ignore"]
        both_lists([pattern for pattern in listed if mark not in pattern])(model)

    return edit


def with_exclusion(pattern: str) -> Edit:
    def edit(model: Path) -> None:
        listed = json.loads((model / CONFIG).read_text())["quantization_config"]["ignore"]
        both_lists([*listed, pattern])(model)

    return edit


def foreign_head_row(tensors: dict[str, StoredTensor]) -> None:
    tensors[f"{LM_HEAD}.lora_B.weight"].values[7, 0] = 0x3F80


def break_value_copy(tensors: dict[str, StoredTensor]) -> None:
    tensors[f"{FULL}.v_proj.lora_B.weight"].values[0, 0] ^= 1


def rename_key_to_exclude(document: dict[str, dict[str, object]]) -> None:
    section = document["quantization_config"]
    section["exclude_modules"] = section["ignore"]


def swap_bias(document: dict[str, list[float]]) -> None:
    document["bias"][3] += 0.5


def swap_verbalizers(*names: str) -> Edit:
    def change(document: dict[str, list[int]]) -> None:
        ids = document["verbalizer_ids"]
        ids[2], ids[3] = ids[3], ids[2]

    return both(*(edit_json(name, change) for name in names))


def add(name: str, content: bytes) -> Edit:
    def edit(model: Path) -> None:
        (model / name).write_bytes(content)

    return edit


def link_out(name: str) -> Edit:
    def edit(model: Path) -> None:
        outside = model.parent / "outside"
        if (model / name).is_file():
            (model / name).rename(outside)
        else:
            outside.write_bytes(b"")
        (model / name).symlink_to(outside)

    return edit


def set_shard(shard: object) -> Edit:
    def change(index: dict[str, dict[str, object]]) -> None:
        index["weight_map"]["model.language_model.norm.weight"] = shard

    return edit_json(INDEX, change)


def as_half(tensors: dict[str, StoredTensor], name: str) -> None:
    tensors[name] = StoredTensor(dtype="F16", values=tensors[name].values)


def stored_lm_head(name: str) -> Edit:
    def edit(model: Path) -> None:
        table = read_tensors(model / TEXT)["model.language_model.embed_tokens.weight"]
        replaced(name, table, REST)(model)

    return edit


def without_control_token(token: str) -> Edit:
    def change(document: dict[str, list[dict[str, object]]]) -> None:
        document["added_tokens"] = [one for one in document["added_tokens"] if one["content"] != token]

    return edit_json("tokenizer.json", change)


def header_length(length: int) -> Edit:
    def edit(model: Path) -> None:
        content = (model / "head.safetensors").read_bytes()
        replace_bytes("head.safetensors", length.to_bytes(8, "little") + content[8:])(model)

    return edit
