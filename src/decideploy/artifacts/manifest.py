"""The inventory of a model: every file's size and sha256, recorded once and compared later.

Source of the idea to report extra, missing and mismatched files apart: sigstore's model-transparency.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

from decideploy.errors import ConfigError

_CHUNK_BYTES = 4 << 20

Advance = Callable[[int], object]


class FileRecord(BaseModel):
    """What is recorded of one file."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    size_bytes: Annotated[int, Field(ge=0)]
    sha256: Annotated[str, Field(pattern="^[0-9a-f]{64}$")]


class Manifest(BaseModel):
    """A model's files by path relative to its folder; ``revision`` is the hub's commit where there is one."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    schema_version: Literal[1] = 1
    model: str
    revision: str | None = None
    files: Mapping[str, FileRecord]

    @classmethod
    def read(cls, path: Path) -> Manifest:
        """The manifest in the file ``path``; ConfigError when it is none."""
        try:
            return cls.model_validate_json(path.read_bytes())
        except (OSError, ValidationError) as error:
            raise ConfigError(
                f"{path} is no manifest: {error}",
                where=str(path),
                next_step="write one with `decideploy lock-model`",
            ) from error

    def write(self, path: Path) -> None:
        """Write the manifest; equal files give equal bytes."""
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(self.model_dump_json(indent=2) + "\n", "utf-8")


@dataclass(frozen=True, kw_only=True, slots=True)
class Comparison:
    """Paths that differ between a manifest and a folder, by how they differ."""

    extra: tuple[str, ...]
    missing: tuple[str, ...]
    mismatched: Mapping[str, str]


def model_paths(root: Path) -> dict[str, Path]:
    """Files of a folder by relative path; hidden files and folders belong to download tools."""
    found = (path for path in root.rglob("*") if path.is_file())
    named = ((path.relative_to(root), path) for path in found)
    return {
        name.as_posix(): path
        for name, path in sorted(named)
        if not any(part.startswith(".") for part in name.parts)
    }


def lock_folder(root: Path, *, name: str = "", revision: str | None = None, quiet: bool = True) -> Manifest:
    """Record every file of the folder ``root``."""
    paths = model_paths(root)
    digests = hash_files(list(paths.values()), quiet=quiet)
    files = {
        relative: FileRecord(size_bytes=path.stat().st_size, sha256=digests[path])
        for relative, path in paths.items()
    }
    return Manifest(model=name or root.resolve().name, revision=revision, files=files)


def compare(manifest: Manifest, root: Path, *, quiet: bool = True) -> Comparison:
    """Compare a folder with its manifest; only files of the recorded size are hashed."""
    paths = model_paths(root)
    shared = {name: paths[name] for name in manifest.files if name in paths}
    sizes = {name: path.stat().st_size for name, path in shared.items()}
    resized = {name for name, size in sizes.items() if size != manifest.files[name].size_bytes}
    digests = hash_files([path for name, path in shared.items() if name not in resized], quiet=quiet)
    mismatched = {name: f"{sizes[name]} bytes, not {manifest.files[name].size_bytes}" for name in resized}
    for name, path in shared.items():
        if name not in resized and digests[path] != manifest.files[name].sha256:
            mismatched[name] = f"sha256 {digests[path]}, not {manifest.files[name].sha256}"
    return Comparison(
        extra=tuple(sorted(paths.keys() - manifest.files.keys())),
        missing=tuple(sorted(manifest.files.keys() - paths.keys())),
        mismatched=dict(sorted(mismatched.items())),
    )


def hash_files(paths: list[Path], *, quiet: bool = True) -> dict[Path, str]:
    """sha256 of each file, one thread a core, with a progress bar on standard error unless ``quiet``."""
    columns = (TextColumn("hashing"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    with Progress(*columns, disable=quiet, transient=True, console=_stderr()) as progress:
        task = progress.add_task("hashing", total=sum(path.stat().st_size for path in paths))
        # The largest first: the last thread then ends soon after the others.
        ordered = sorted(paths, key=lambda path: -path.stat().st_size)
        with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
            digests = pool.map(lambda path: sha256_file(path, lambda n: progress.advance(task, n)), ordered)
            return dict(zip(ordered, digests, strict=True))


def _stderr() -> Console:
    return Console(stderr=True)


def sha256_file(path: Path, advance: Advance = lambda count: None) -> str:
    """sha256 of one file; ``advance`` is told the bytes read since its last call."""
    digest = hashlib.sha256()
    buffer = memoryview(bytearray(_CHUNK_BYTES))
    with path.open("rb", buffering=0) as file:
        while count := file.readinto(buffer):
            digest.update(buffer[:count])
            advance(count)
    return digest.hexdigest()
