"""A lazily read view of a model's folder, shared by all rules."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

from decideploy.artifacts.convert import (
    ADAPTER_CONFIG,
    ADAPTER_WEIGHTS,
    DECISION_HEAD,
    VLLM_ADAPTER_DIR,
)
from decideploy.artifacts.safetensors_file import MalformedFileError, TensorInfo, read_header
from decideploy.artifacts.shape import Shape, parse_shape

CONFIG = "config.json"
QUANT_CONFIG = "hf_quant_config.json"
INDEX = "model.safetensors.index.json"
SINGLE_SHARD = "model.safetensors"
GENERATION_CONFIG = "generation_config.json"
TOKENIZER = "tokenizer.json"
TOKENIZER_CONFIG = "tokenizer_config.json"
CHAT_TEMPLATE = "chat_template.jinja"
PROCESSOR_CONFIG = "processor_config.json"
CALIBRATION = "calibration.json"
JUDGE_CONFIG = "judge_config.json"
HEAD = "head.safetensors"

Document = Mapping[str, Any]


class UnavailableError(Exception):
    """A rule needs something that is missing or malformed.

    The rule that owns that thing reports it; every other rule simply cannot look.
    """


class ModelFiles:
    """Files of one model; each is read at most once, or raises UnavailableError."""

    def __init__(self, root: Path, adapter: Path | None = None) -> None:
        self.root = root
        self.adapter_root = adapter or root / VLLM_ADAPTER_DIR
        self._documents: dict[Path, Document | str] = {}
        self._headers: dict[Path, Mapping[str, TensorInfo] | str] = {}

    def label(self, path: Path) -> str:
        """How findings name a file: relative to the model where it lies inside."""
        return str(path.relative_to(self.root)) if path.is_relative_to(self.root) else str(path)

    @property
    def adapter_config_path(self) -> Path:
        """The adapter's configuration."""
        return self.adapter_root / ADAPTER_CONFIG

    @property
    def adapter_weights_path(self) -> Path:
        """The adapter's tensors."""
        return self.adapter_root / ADAPTER_WEIGHTS

    @property
    def decision_head_path(self) -> Path:
        """Biases and verbalizers."""
        return self.adapter_root / DECISION_HEAD

    def json_fault(self, path: Path) -> str:
        """Why ``path`` is not a JSON object, empty when it is one."""
        if path not in self._documents:
            self._documents[path] = _read_json(path)
        content = self._documents[path]
        return content if isinstance(content, str) else ""

    def json(self, name: str | Path) -> Document:
        """The JSON object in a file of the model (or at an absolute path)."""
        path = self.root / name
        self.json_fault(path)
        content = self._documents[path]
        if isinstance(content, str):
            raise UnavailableError(str(path))
        return content

    def header_fault(self, path: Path) -> str:
        """Why ``path`` is not a safetensors file, empty when it is one."""
        if path not in self._headers:
            self._headers[path] = _read_header(path)
        header = self._headers[path]
        return header if isinstance(header, str) else ""

    def header(self, path: Path) -> Mapping[str, TensorInfo]:
        """Tensors of one safetensors file by name."""
        self.header_fault(path)
        header = self._headers[path]
        if isinstance(header, str):
            raise UnavailableError(str(path))
        return header

    @property
    def text_config(self) -> Document:
        """``text_config`` of config.json."""
        text = self.json(CONFIG).get("text_config")
        if not isinstance(text, dict):
            raise UnavailableError("text_config")
        return text

    @cached_property
    def shape_or_faults(self) -> Shape | tuple[str, ...]:
        """The architecture's sizes, or the keys of ``text_config`` that are missing or wrong."""
        return parse_shape(self.text_config)

    @property
    def shape(self) -> Shape:
        """The architecture's sizes."""
        if isinstance(self.shape_or_faults, tuple):
            raise UnavailableError(CONFIG)
        return self.shape_or_faults

    @cached_property
    def weight_map(self) -> Mapping[str, str]:
        """Tensor to shard, from the index; empty for a checkpoint of one file."""
        if not (self.root / INDEX).is_file():
            return {}
        weight_map = self.json(INDEX).get("weight_map")
        if not isinstance(weight_map, dict):
            raise UnavailableError(INDEX)
        return weight_map

    @cached_property
    def shards(self) -> tuple[Path, ...]:
        """The checkpoint's files as the index names them."""
        names = sorted(set(self.weight_map.values())) or [SINGLE_SHARD]
        return tuple(self.root / name for name in names)

    @cached_property
    def tensors(self) -> Mapping[str, TensorInfo]:
        """Every tensor of the checkpoint that its shards really hold."""
        return {name: tensor for shard in self.shards for name, tensor in self.header(shard).items()}

    @property
    def adapter_config(self) -> Document:
        """adapter_config.json."""
        return self.json(self.adapter_config_path)

    @property
    def adapter_tensors(self) -> Mapping[str, TensorInfo]:
        """The adapter's tensors."""
        return self.header(self.adapter_weights_path)

    def is_nvfp4(self) -> bool:
        """Whether the configuration that the engine reads first says NVFP4."""
        return quant_algo(self) == "NVFP4"


def quant_algo(files: ModelFiles) -> str | None:
    """The declared algorithm in upper case; config.json wins over hf_quant_config.json, as in the engine."""
    declared = files.json(CONFIG).get("quantization_config")
    if declared is None and (files.root / QUANT_CONFIG).is_file():
        declared = files.json(QUANT_CONFIG)
    if not isinstance(declared, dict):
        return None
    section = declared.get("quantization", declared)
    return str(section.get("quant_algo", "")).upper() if isinstance(section, dict) else ""


def packed_experts(files: ModelFiles) -> list[str]:
    """Expert tensors that hold packed FP4 codes, whatever is declared."""
    return [name for name, tensor in files.tensors.items() if ".experts." in name and tensor.dtype == "U8"]


def _read_json(path: Path) -> Document | str:
    try:
        content = json.loads(path.read_bytes())
    except (OSError, ValueError) as error:
        return f"is not readable JSON: {error}"
    return content if isinstance(content, dict) else "is not a JSON object"


def _read_header(path: Path) -> Mapping[str, TensorInfo] | str:
    try:
        return read_header(path)
    except (OSError, MalformedFileError) as error:
        return str(error)
