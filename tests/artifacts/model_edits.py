"""Cheap copies of a model folder and single changes to them."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from decideploy.artifacts.safetensors_file import StoredTensor, read_header, read_raw, write_tensors

Edit = Callable[[Path], None]


def linked_copy(model: Path, out: Path) -> Path:
    """The same folder with a hard link for each file; an edit replaces the link, never the original."""
    for source in sorted(model.rglob("*")):
        target = out / source.relative_to(model)
        if source.is_dir():
            target.mkdir(parents=True)
        else:
            target.parent.mkdir(parents=True, exist_ok=True)
            target.hardlink_to(source)
    return out


def remove(name: str) -> Edit:
    return lambda model: (model / name).unlink()


def replace_bytes(name: str, content: bytes) -> Edit:
    def edit(model: Path) -> None:
        (model / name).unlink()
        (model / name).write_bytes(content)

    return edit


def truncate(name: str, missing: int) -> Edit:
    def edit(model: Path) -> None:
        replace_bytes(name, (model / name).read_bytes()[:-missing])(model)

    return edit


def edit_json(name: str, change: Callable[[Any], object]) -> Edit:
    """Apply ``change``, which alters the document in place."""

    def edit(model: Path) -> None:
        document = json.loads((model / name).read_text())
        change(document)
        replace_bytes(name, json.dumps(document).encode())(model)

    return edit


def set_key(name: str, path: str, value: object) -> Edit:
    """Set one key of a JSON file; ``path`` is dotted."""

    def change(document: Any) -> None:
        *parents, last = path.split(".")
        for key in parents:
            document = document[key]
        document[last] = value

    return edit_json(name, change)


def drop_key(name: str, path: str) -> Edit:
    def change(document: Any) -> None:
        *parents, last = path.split(".")
        for key in parents:
            document = document[key]
        del document[last]

    return edit_json(name, change)


def edit_tensors(name: str, change: Callable[[dict[str, StoredTensor]], object]) -> Edit:
    """Apply ``change`` to all tensors of one safetensors file."""

    def edit(model: Path) -> None:
        tensors = read_tensors(model / name)
        change(tensors)
        (model / name).unlink()
        write_tensors(model / name, tensors)

    return edit


def read_tensors(path: Path) -> dict[str, StoredTensor]:
    header = read_header(path)
    return {key: StoredTensor(dtype=tensor.dtype, values=read_raw(tensor)) for key, tensor in header.items()}


def put(name: str, tensor: str, stored: StoredTensor) -> Edit:
    return edit_tensors(name, lambda tensors: tensors.update({tensor: stored}))


def drop(name: str, *removed: str) -> Edit:
    return edit_tensors(name, lambda tensors: [tensors.pop(tensor) for tensor in removed])


def rename(name: str, names: Mapping[str, str]) -> Edit:
    def change(tensors: dict[str, StoredTensor]) -> None:
        for old, new in names.items():
            tensors[new] = tensors.pop(old)

    return edit_tensors(name, change)


def scale(name: str, tensor: str, factor: float) -> Edit:
    """Multiply a BF16 or F32 tensor by a power of two."""

    def change(tensors: dict[str, StoredTensor]) -> None:
        from decideploy.artifacts.safetensors_file import bf16, float32, to_float32

        stored = tensors[tensor]
        values = to_float32(stored.values, stored.dtype) * factor
        tensors[tensor] = bf16(values) if stored.dtype == "BF16" else float32(values)

    return edit_tensors(name, change)


def set_value(name: str, tensor: str, place: tuple[int, ...], bits: int | float) -> Edit:
    """Set one stored element: bits for BF16 and FP8, a value for F32."""

    def change(tensors: dict[str, StoredTensor]) -> None:
        tensors[tensor].values[place] = bits

    return edit_tensors(name, change)


def both(*edits: Edit) -> Edit:
    def edit(model: Path) -> None:
        for step in edits:
            step(model)

    return edit
