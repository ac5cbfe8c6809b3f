"""A lazily read view of a model's folder, shared by all rules."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

from decideploy.artifacts.convert import (
    ADAPTER_CONFIG,
    ADAPTER_WEIGHTS,
    DECISION_HEAD,
    VLLM_ADAPTER_DIR,
)
from decideploy.artifacts.manifest import Comparison, Manifest, compare
from decideploy.artifacts.safetensors_file import (
    MalformedFileError,
    NotFetchedError,
    TensorInfo,
    UnavailableError,
    read_header,
    read_scalars,
)
from decideploy.artifacts.shape import Shape, VisionShape, parse_shape, parse_vision
from decideploy.texts import parse_json

CONFIG = "config.json"
QUANT_CONFIG = "hf_quant_config.json"
INDEX = "model.safetensors.index.json"
SINGLE_SHARD = "model.safetensors"
GENERATION_CONFIG = "generation_config.json"
TOKENIZER = "tokenizer.json"
TOKENIZER_CONFIG = "tokenizer_config.json"
CHAT_TEMPLATE = "chat_template.jinja"
PROCESSOR_CONFIG = "processor_config.json"
PREPROCESSOR_CONFIG = "preprocessor_config.json"
CALIBRATION = "calibration.json"
CALIBRATION_GOLD = "calibration_gold.json"
JUDGE_CONFIG = "judge_config.json"
HEAD = "head.safetensors"

# The largest is the published tokenizer, 33 MB; more is not JSON that belongs to a model.
MAX_JSON_BYTES = 100_000_000

Document = Mapping[str, Any]

__all__ = ["ModelFiles", "NotFetchedError", "UnavailableError"]


class ModelFiles:
    """Files of one model; each is read at most once, or raises UnavailableError."""

    def __init__(
        self,
        root: Path,
        adapter: Path | None = None,
        *,
        manifest: Manifest | None = None,
        quiet: bool = True,
    ) -> None:
        self.root = root
        self._manifest = manifest
        self._quiet = quiet
        self.adapter_root = adapter or root / VLLM_ADAPTER_DIR
        self._documents: dict[Path, Document | str] = {}
        self._headers: dict[Path, Mapping[str, TensorInfo] | str] = {}

    @cached_property
    def comparison(self) -> Comparison:
        """The folder against its manifest, every file hashed; UnavailableError without a manifest."""
        if self._manifest is None:
            raise UnavailableError("manifest")
        return compare(self._manifest, self.root, quiet=self._quiet)

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

    def is_object(self, name: str | Path) -> bool:
        """Whether the file is there and holds a JSON object."""
        return (self.root / name).is_file() and not self.json_fault(self.root / name)

    @cached_property
    def listing(self) -> tuple[Path, ...]:
        """Every file of the model and its adapter, hidden folders of download tools apart."""
        roots = dict.fromkeys((self.root, self.adapter_root))
        found = (path for root in roots for path in root.rglob("*") if path.is_symlink() or path.is_file())
        return tuple(sorted({path for path in found if not _is_hidden(path, self.root)}))

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
    def vision_or_faults(self) -> VisionShape | tuple[str, ...]:
        """The vision tower's sizes, or the keys of ``vision_config`` that are missing or wrong."""
        vision = self.json(CONFIG).get("vision_config")
        return parse_vision(vision if isinstance(vision, dict) else {})

    @property
    def vision(self) -> VisionShape:
        """The vision tower's sizes."""
        if isinstance(self.vision_or_faults, tuple):
            raise UnavailableError("vision_config")
        return self.vision_or_faults

    @cached_property
    def weight_map(self) -> Mapping[str, str]:
        """Tensor to shard, from the index; empty for a checkpoint of one file."""
        if not (self.root / INDEX).is_file():
            return {}
        weight_map = self.json(INDEX).get("weight_map")
        if not isinstance(weight_map, dict) or index_faults(weight_map):
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

    @cached_property
    def expert_tensors(self) -> Mapping[str, TensorInfo]:
        """Routed experts' tensors under one exporter's names (see ``canonical_expert``)."""
        named = ((canonical_expert(name), tensor) for name, tensor in self.tensors.items())
        return {name: tensor for name, tensor in named if ".experts." in name}

    @cached_property
    def expert_scalars(self) -> Mapping[str, float]:
        """Values of the experts' well-formed scalars, by the names of ``expert_tensors``."""
        scalars = [t for t in self.expert_tensors.values() if t.dtype == "F32" and t.size_bytes == 4]
        if not all(tensor.fetched for tensor in scalars):
            raise NotFetchedError("expert scalars")
        return {canonical_expert(name): value for name, value in read_scalars(scalars).items()}

    def is_nvfp4(self) -> bool:
        """Whether the configuration that the engine reads first says NVFP4."""
        return quant_algo(self) == "NVFP4"


def _is_hidden(path: Path, root: Path) -> bool:
    inside = path.relative_to(root).parts if path.is_relative_to(root) else path.parts[-1:]
    return any(part.startswith(".") for part in inside)


def index_faults(weight_map: Any) -> list[str]:
    """Tensors that an index sends to something that is no weight file in the model's folder."""
    if not isinstance(weight_map, dict) or not weight_map:
        return ["weight_map"]
    return [
        name for name, shard in weight_map.items() if not (isinstance(shard, str) and _is_file_name(shard))
    ]


# A name with a separator could leave the folder; surrogates and NUL are no file names at all.
_FILE_NAME = re.compile(r"\A[A-Za-z0-9_-][A-Za-z0-9_.-]{0,200}\.safetensors\Z")


@lru_cache(maxsize=1024)
def _is_file_name(shard: str) -> bool:
    return bool(_FILE_NAME.match(shard)) and shard != HEAD


def canonical_expert(name: str) -> str:
    """One name for both exporters' spelling of an expert; the engine maps one to the other, too."""
    return name.replace(".moe.experts.", ".experts.")


def quant_algo(files: ModelFiles) -> str | None:
    """The declared algorithm in upper case; config.json wins over hf_quant_config.json, as in the engine."""
    declared = files.json(CONFIG).get("quantization_config")
    if declared is None and (files.root / QUANT_CONFIG).is_file():
        declared = files.json(QUANT_CONFIG)
    if not isinstance(declared, dict):
        return None
    section = declared.get("quantization", declared)
    return str(section.get("quant_algo", "")).upper()[:40] if isinstance(section, dict) else ""


def packed_experts(files: ModelFiles) -> list[str]:
    """Expert tensors that hold packed FP4 codes, whatever is declared."""
    return [name for name, tensor in files.tensors.items() if ".experts." in name and tensor.dtype == "U8"]


def _read_json(path: Path) -> Document | str:
    try:
        size_bytes = path.stat().st_size
        if size_bytes > MAX_JSON_BYTES:
            return f"has {size_bytes} bytes, too many for JSON"
        content = parse_json(path.read_bytes())
    except (OSError, ValueError) as error:
        return f"is not readable JSON: {error}"
    return content if isinstance(content, dict) else "is not a JSON object"


def _read_header(path: Path) -> Mapping[str, TensorInfo] | str:
    try:
        return read_header(path)
    except (OSError, MalformedFileError) as error:
        return str(error)
