"""Make ``adapter_vllm/``: the form of System 1 that vLLM can load.

vLLM applies LoRA deltas only, so the decision head becomes one: ``A`` holds, for each slot, the head's row
minus the lm_head row of the slot's verbalizer, ``B`` sends slot ``s`` to that verbalizer's row. Base plus
delta is then the head on the 24 verbalizer rows and the base everywhere else.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from decideploy.artifacts.safetensors_file import (
    MalformedFileError,
    StoredTensor,
    TensorInfo,
    bf16,
    read_float32,
    read_float32_row,
    read_header,
    write_tensors,
)
from decideploy.errors import ConfigError

Array = NDArray[np.float32]

ADAPTER_DIR = "adapter"
VLLM_ADAPTER_DIR = "adapter_vllm"
ADAPTER_WEIGHTS = "adapter_model.safetensors"
ADAPTER_CONFIG = "adapter_config.json"
DECISION_HEAD = "decision_head.json"

PEFT_PREFIX = "base_model.model."
LM_HEAD = PEFT_PREFIX + "lm_head"
EMBEDDING = "model.language_model.embed_tokens.weight"

_RESTORE = "fetch the file again: the conversion needs it whole"

# Ranks that vLLM's --max-lora-rank accepts, up to the one that the served adapter needs.
RANKS = (8, 16, 32)

_K_PROJ = re.compile(r"^(?P<layer>.*\.layers\.(?P<index>\d+)\.self_attn)\.k_proj$")


@dataclass(frozen=True, kw_only=True, slots=True)
class ConvertResult:
    """What was written: the folder, the common rank, tensors stored and K pairs that now also serve V."""

    path: Path
    rank: int
    num_tensors: int
    value_copies: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready values."""
        return {
            "path": str(self.path),
            "rank": self.rank,
            "num_tensors": self.num_tensors,
            "value_copies": list(self.value_copies),
        }


@dataclass(frozen=True, kw_only=True, slots=True)
class _Pair:
    lora_a: Array
    lora_b: Array


def convert_adapter(model: Path, out: Path) -> ConvertResult:
    """Convert ``model/adapter`` and ``model/head.safetensors`` into ``out`` (usually ``model/adapter_vllm``).

    Every pair is zero-padded to one rank with ``lora_alpha = r``, because vLLM reads a single ``r`` and
    ``lora_alpha`` for the whole adapter. Weights are stored in bfloat16: the engine casts them to the
    model's dtype when it loads them, so a wider file would only hide the values that run.
    Raises ConfigError when a file is missing or is not what the conversion needs.
    """
    if not model.is_dir():
        raise ConfigError(
            "there is no such model folder",
            where=str(model),
            next_step="name the folder that holds config.json, adapter/ and head.safetensors",
        )
    try:
        return _convert(model, out)
    except (ArithmeticError, LookupError, TypeError, ValueError) as error:
        raise ConfigError(
            f"the model's files are not what the conversion needs: {type(error).__name__}: {error}",
            where=str(model),
            next_step="run `decideploy verify` on the folder: it names every file and key at fault",
        ) from error


def _convert(model: Path, out: Path) -> ConvertResult:
    judge = _read_json(model / "judge_config.json")
    adapter_config = _read_json(model / ADAPTER_DIR / ADAPTER_CONFIG)
    text_config = _read_json(model / "config.json")["text_config"]
    pairs = _read_pairs(model / ADAPTER_DIR / ADAPTER_WEIGHTS, _scaling(adapter_config))
    copies = _copy_keys_to_values(pairs, text_config)
    head = _header(model / "head.safetensors")
    verbalizer_ids = [int(token_id) for token_id in judge["verbalizer_ids"]]
    pairs[LM_HEAD] = head_delta(
        read_float32(head["proj.weight"]),
        read_lm_head_rows(model, verbalizer_ids),
        verbalizer_ids,
        vocab_size=int(text_config["vocab_size"]),
    )
    rank = _common_rank(pairs)
    tensors = _padded_tensors(pairs, rank)
    out.mkdir(parents=True, exist_ok=True)
    write_tensors(out / ADAPTER_WEIGHTS, tensors)
    _write_json(out / ADAPTER_CONFIG, _vllm_adapter_config(adapter_config, pairs, rank))
    _write_json(out / DECISION_HEAD, _decision_head(read_float32(head["proj.bias"]), judge))
    return ConvertResult(path=out, rank=rank, num_tensors=len(tensors), value_copies=copies)


def head_delta(head: Array, base_rows: Array, verbalizer_ids: Sequence[int], *, vocab_size: int) -> _Pair:
    """The head as a delta of lm_head.

    ``head`` and ``base_rows`` are ``[24, hidden]``; the result is ``A [24, hidden]`` and a one-hot
    ``B [vocab, 24]``.
    """
    lora_b = np.zeros((vocab_size, len(verbalizer_ids)), np.float32)
    lora_b[list(verbalizer_ids), np.arange(len(verbalizer_ids))] = 1.0
    return _Pair(lora_a=head - base_rows, lora_b=lora_b)


def read_lm_head_rows(model: Path, token_ids: Sequence[int]) -> Array:
    """Rows ``[len(token_ids), hidden]`` of the tied lm_head, reading nothing else of the checkpoint."""
    table = _find_tensor(model, EMBEDDING)
    return np.stack([read_float32_row(table, token_id) for token_id in token_ids])


def _find_tensor(model: Path, name: str) -> TensorInfo:
    index = model / "model.safetensors.index.json"
    shard = _read_json(index)["weight_map"].get(name, "") if index.is_file() else "model.safetensors"
    tensor = _header(model / shard).get(name) if shard else None
    if tensor is None:
        raise ConfigError(f"the checkpoint has no tensor {name}", where=str(model))
    return tensor


def _scaling(config: Mapping[str, Any]) -> float:
    for key in ("rank_pattern", "alpha_pattern", "use_dora", "modules_to_save"):
        if config.get(key):
            raise ConfigError(
                f"the adapter uses {key}, which vLLM drops without a word",
                where=f"{ADAPTER_DIR}/{ADAPTER_CONFIG}",
                next_step="merge it into plain LoRA pairs of one rank before converting",
            )
    rank, alpha = float(config["r"]), float(config["lora_alpha"])
    return float(alpha / np.sqrt(rank)) if config.get("use_rslora") else alpha / rank


def _read_pairs(path: Path, scaling: float) -> dict[str, _Pair]:
    tensors = _header(path)
    modules = sorted({name.rsplit(".lora_", 1)[0] for name in tensors})
    pairs = {}
    for module in modules:
        lora_a, lora_b = (tensors.get(f"{module}.lora_{side}.weight") for side in "AB")
        if lora_a is None or lora_b is None:
            raise ConfigError(f"{module} has no complete lora_A and lora_B pair", where=str(path))
        pairs[module] = _Pair(lora_a=read_float32(lora_a), lora_b=read_float32(lora_b) * np.float32(scaling))
    return pairs


def _copy_keys_to_values(pairs: dict[str, _Pair], text_config: Mapping[str, Any]) -> tuple[str, ...]:
    """In full-attention layers the value is the key's projection, delta included; vLLM keeps two."""
    if not text_config.get("attention_k_eq_v"):
        return ()
    copies = []
    for module in list(pairs):
        match = _K_PROJ.match(module)
        if match and text_config["layer_types"][int(match["index"])] == "full_attention":
            value = f"{match['layer']}.v_proj"
            pairs[value] = pairs[module]
            copies.append(value)
    return tuple(copies)


def _common_rank(pairs: Mapping[str, _Pair]) -> int:
    needed = max(len(pair.lora_a) for pair in pairs.values())
    for rank in RANKS:
        if rank >= needed:
            return rank
    raise ConfigError(
        f"the adapter needs rank {needed}, the engine is run with at most {RANKS[-1]}",
        where=f"{ADAPTER_DIR}/{ADAPTER_WEIGHTS}",
        next_step=f"train or compress the adapter to rank {RANKS[-1]}",
    )


def _padded_tensors(pairs: Mapping[str, _Pair], rank: int) -> dict[str, StoredTensor]:
    tensors = {}
    for module, pair in pairs.items():
        missing = rank - len(pair.lora_a)
        tensors[f"{module}.lora_A.weight"] = bf16(np.pad(pair.lora_a, ((0, missing), (0, 0))))
        tensors[f"{module}.lora_B.weight"] = bf16(np.pad(pair.lora_b, ((0, 0), (0, missing))))
    return tensors


def _vllm_adapter_config(source: Mapping[str, Any], pairs: Mapping[str, _Pair], rank: int) -> dict[str, Any]:
    return {
        "peft_type": "LORA",
        "task_type": source.get("task_type", "CAUSAL_LM"),
        "base_model_name_or_path": source.get("base_model_name_or_path"),
        "inference_mode": True,
        "r": rank,
        "lora_alpha": rank,
        "lora_dropout": 0.0,
        "bias": "none",
        "fan_in_fan_out": False,
        "use_rslora": False,
        "use_dora": False,
        "modules_to_save": None,
        "rank_pattern": {},
        "alpha_pattern": {},
        "target_modules": sorted({module.rsplit(".", 1)[1] for module in pairs}),
    }


def _decision_head(bias: Array, judge: Mapping[str, Any]) -> dict[str, Any]:
    slots = judge["slots"]
    return {
        "bias": [float(value) for value in bias],
        "verbalizer_ids": list(judge["verbalizer_ids"]),
        "slots": {
            "num_slots": len(judge["verbalizer_ids"]),
            "template_version": slots["template_version"],
            "ranges": slots["ranges"],
        },
    }


def _header(path: Path) -> dict[str, TensorInfo]:
    try:
        return read_header(path)
    except (OSError, MalformedFileError) as error:
        raise ConfigError(f"cannot read tensors: {error}", where=str(path), next_step=_RESTORE) from error


def _read_json(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise ConfigError(f"cannot read JSON: {error}", where=str(path), next_step=_RESTORE) from error
    if not isinstance(content, dict):
        raise ConfigError("is not a JSON object", where=str(path), next_step=_RESTORE)
    return content


def _write_json(path: Path, content: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=2) + "\n", "utf-8")
