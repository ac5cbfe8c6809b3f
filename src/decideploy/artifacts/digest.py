"""A name for the model that a server answers with: one digest, cheap enough for every start."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, Final

from decideploy.artifacts.convert import VLLM_ADAPTER_DIR
from decideploy.artifacts.manifest import model_paths, sha256_file

# What the engine and the read-out load from the model's folder, weights and adapter apart.
FILES: Final = (
    "calibration.json",
    "calibration_gold.json",
    "chat_template.jinja",
    "config.json",
    "generation_config.json",
    "hf_quant_config.json",
    "model.safetensors.index.json",
    "preprocessor_config.json",
    "processor_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
)
HEAD: Final = "head.safetensors"
SAMPLES: Final = 64
SAMPLE_BYTES: Final = 4096
# The safetensors format allows no longer header.
MAX_HEADER_BYTES: Final = 100_000_000


def model_digest(model: Path, *, adapter: Path | None = None) -> str:
    """sha256 (hex) over what decides the answers of the model in the folder ``model``.

    Configuration, tokenizer, calibration and every file of the served adapter (default
    ``model/adapter_vllm``) count whole. Of each weight file count its size, its safetensors header and 64
    blocks of 4 KiB spread evenly over the tensors: another checkpoint or another quantisation has another
    digest, but a single damaged weight may not; for that there is ``decideploy lock-model``, which reads
    everything. Only files that are there count: what must be there is for ``decideploy verify``.
    """
    weights = sorted(path for path in model.glob("*.safetensors") if path.name != HEAD)
    lines = sorted([*_whole(model, adapter or model / VLLM_ADAPTER_DIR), *map(_outlined, weights)])
    return hashlib.sha256("".join(lines).encode()).hexdigest()


def _whole(model: Path, adapter: Path) -> Iterator[str]:
    for name in FILES:
        if (model / name).is_file():
            yield f"{name} {sha256_file(model / name)}\n"
    for name, path in model_paths(adapter).items():
        yield f"adapter/{name} {sha256_file(path)}\n"


def _outlined(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        for block in _outline(file, path.stat().st_size):
            digest.update(block)
    return f"{path.name} {path.stat().st_size} {digest.hexdigest()}\n"


def _outline(file: BinaryIO, size_bytes: int) -> Iterator[bytes]:
    """The header of a safetensors file, then blocks spread over what follows it."""
    length = file.read(8)
    yield length
    yield file.read(min(int.from_bytes(length, "little"), MAX_HEADER_BYTES))
    first = file.tell()
    for number in range(SAMPLES):
        file.seek(first + (size_bytes - first) * number // SAMPLES)
        yield file.read(SAMPLE_BYTES)
