"""Images of a few files: an OCI layout, its archive, or what `buildah push IMAGE dir:FOLDER` writes."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import tarfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

Files = Mapping[str, bytes | tarfile.TarInfo]


def layer(files: Files, **fields: Any) -> bytes:
    """An archive of ``files``; ``fields`` are set on each member, such as ``mode`` or ``mtime``."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for name, content in files.items():
            if isinstance(content, tarfile.TarInfo):
                archive.addfile(content)
                continue
            member = tarfile.TarInfo(name)
            member.size = len(content)
            for field, value in fields.items():
                setattr(member, field, value)
            archive.addfile(member, io.BytesIO(content))
    return buffer.getvalue()


def blobs_of(
    layers: Sequence[bytes], *, compress: bool = False, **config: Any
) -> tuple[bytes, dict[str, bytes]]:
    """The manifest, and every blob by its digest."""
    stored = [gzip.compress(data, mtime=0) if compress else data for data in layers]
    diff_ids = [f"sha256:{sha256(data)}" for data in layers]
    described = json.dumps({"config": config, "rootfs": {"type": "layers", "diff_ids": diff_ids}}).encode()
    manifest = {
        "schemaVersion": 2,
        "config": {"digest": f"sha256:{sha256(described)}"},
        "layers": [{"digest": f"sha256:{sha256(data)}"} for data in stored],
    }
    blobs = {sha256(data): data for data in [described, *stored]}
    return json.dumps(manifest).encode(), blobs


def write_directory(folder: Path, layers: Sequence[bytes], **options: Any) -> Path:
    """As ``dir:`` of buildah and skopeo."""
    manifest, blobs = blobs_of(layers, **options)
    folder.mkdir()
    (folder / "manifest.json").write_bytes(manifest)
    for digest, data in blobs.items():
        (folder / digest).write_bytes(data)
    return folder


def write_layout(folder: Path, layers: Sequence[bytes], *, copies: int = 1, **options: Any) -> Path:
    """As an OCI layout, whose index names the image ``copies`` times."""
    manifest, blobs = blobs_of(layers, **options)
    store = folder / "blobs" / "sha256"
    store.mkdir(parents=True)
    for digest, data in {**blobs, sha256(manifest): manifest}.items():
        (store / digest).write_bytes(data)
    index = {"schemaVersion": 2, "manifests": [{"digest": f"sha256:{sha256(manifest)}"}] * copies}
    (folder / "index.json").write_text(json.dumps(index))
    return folder


def write_archive(path: Path, layers: Sequence[bytes], **options: Any) -> Path:
    """As the tar archive of an OCI layout."""
    folder = write_layout(path.with_suffix(".layout"), layers, **options)
    with tarfile.open(path, "w") as archive:
        for file in sorted(folder.rglob("*")):
            archive.add(file, file.relative_to(folder).as_posix(), recursive=False)
    return path


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
