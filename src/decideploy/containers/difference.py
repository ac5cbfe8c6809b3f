"""What makes two images differ: their configuration, and each layer file by file."""

from __future__ import annotations

import hashlib
import json
import tarfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, BinaryIO

from decideploy.containers.stored import CHUNK_BYTES, StoredImage, open_image


@dataclass(frozen=True, kw_only=True, slots=True)
class Entry:
    """One file of a layer as its archive tells it; ``content`` is a digest, and empty for what has none."""

    type: str
    mode: str
    owner: str
    mtime: float
    size_bytes: int
    link: str
    attributes: str
    content: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Change:
    """One value that is ``left`` in the first image and ``right`` in the second; None where it is missing."""

    what: str
    left: Any
    right: Any


@dataclass(frozen=True, kw_only=True, slots=True)
class LayerDifference:
    """How one layer differs; ``index`` counts from 0, the lowest.

    ``added`` and ``removed`` are paths that the second image has more or less, ``changed`` maps a path to the
    fields of :class:`Entry` that differ. With all three empty, ``order`` names the first path that stands at
    another place in the archive, or is empty when only the archive's own form differs.
    """

    index: int
    left: str
    right: str
    added: Sequence[str] = ()
    removed: Sequence[str] = ()
    changed: Mapping[str, Sequence[Change]] | None = None
    order: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class ImageDifference:
    """How two images differ; nothing in ``config`` and ``layers`` means that only the compression does."""

    left: str
    right: str
    config: Sequence[Change]
    layers: Sequence[LayerDifference]

    @property
    def same(self) -> bool:
        """Whether both are one image, down to the manifest's bytes."""
        return self.left == self.right

    def to_dict(self) -> dict[str, Any]:
        """As a JSON document."""
        return {"schema_version": 1, "same": self.same, **asdict(self)}


def compare_images(left: Path, right: Path) -> ImageDifference:
    """Compare the images in two files or folders; see :func:`open_image` for what they may be.

    Raises:
        ConfigError: one is no image that can be read.
        IntegrityError: a layer's bytes are not what its image names.
    """
    with open_image(left) as first, open_image(right) as second:
        return ImageDifference(
            left=first.manifest_digest,
            right=second.manifest_digest,
            config=tuple(_config_changes(first.config, second.config)),
            layers=tuple(_layer_differences(first, second)),
        )


def _config_changes(left: Mapping[str, Any], right: Mapping[str, Any]) -> Iterator[Change]:
    first, second = dict(_flat(left)), dict(_flat(right))
    for what in sorted(first.keys() | second.keys()):
        # The layers are compared by themselves.
        if not what.startswith("rootfs.") and first.get(what) != second.get(what):
            yield Change(what=what, left=first.get(what), right=second.get(what))


def _flat(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping):
        for key, below in value.items():
            yield from _flat(below, f"{path}.{key}" if path else key)
    elif isinstance(value, list):
        for index, below in enumerate(value):
            yield from _flat(below, f"{path}[{index}]")
    else:
        yield path, value


def _layer_differences(left: StoredImage, right: StoredImage) -> Iterator[LayerDifference]:
    for index in range(max(len(left.diff_ids), len(right.diff_ids))):
        first, second = (image.diff_ids[index : index + 1] for image in (left, right))
        if not (first and second):
            yield LayerDifference(index=index, left="".join(first), right="".join(second))
        elif first != second:
            with left.layer(index) as one, right.layer(index) as other:
                yield _compare_layers(index, (first[0], second[0]), _entries(one), _entries(other))


def _compare_layers(
    index: int, diff_ids: tuple[str, str], left: Mapping[str, Entry], right: Mapping[str, Entry]
) -> LayerDifference:
    both = [path for path in left if path in right]
    changed = {path: tuple(_entry_changes(left[path], right[path])) for path in sorted(both)}
    moved = (one for one, other in zip(left, right, strict=False) if one != other)
    return LayerDifference(
        index=index,
        left=diff_ids[0],
        right=diff_ids[1],
        added=tuple(sorted(right.keys() - left.keys())),
        removed=tuple(sorted(left.keys() - right.keys())),
        changed={path: changes for path, changes in changed.items() if changes},
        order=next(moved, "") if left.keys() == right.keys() else "",
    )


def _entry_changes(left: Entry, right: Entry) -> Iterator[Change]:
    for field in fields(Entry):
        first, second = getattr(left, field.name), getattr(right, field.name)
        if first != second:
            yield Change(what=field.name, left=first, right=second)


def _entries(layer: BinaryIO) -> dict[str, Entry]:
    with tarfile.open(fileobj=layer, mode="r:") as archive:
        return {f"/{member.name.removeprefix('./')}": _entry(archive, member) for member in archive}


_TYPES = {
    tarfile.REGTYPE: "file",
    tarfile.AREGTYPE: "file",
    tarfile.DIRTYPE: "folder",
    tarfile.SYMTYPE: "symbolic link",
    tarfile.LNKTYPE: "hard link",
    tarfile.CHRTYPE: "character device",
    tarfile.BLKTYPE: "block device",
    tarfile.FIFOTYPE: "pipe",
}


def _entry(archive: tarfile.TarFile, member: tarfile.TarInfo) -> Entry:
    attributes = {key: value for key, value in member.pax_headers.items() if key.startswith("SCHILY.xattr.")}
    return Entry(
        type=_TYPES.get(member.type, repr(member.type)),
        mode=f"{member.mode:04o}",
        owner=f"{member.uid}:{member.gid}",
        mtime=member.mtime,
        size_bytes=member.size,
        link=member.linkname,
        attributes=json.dumps(attributes, sort_keys=True) if attributes else "",
        content=_sha256(archive, member) if member.isreg() else "",
    )


def _sha256(archive: tarfile.TarFile, member: tarfile.TarInfo) -> str:
    found = hashlib.sha256()
    if file := archive.extractfile(member):
        while chunk := file.read(CHUNK_BYTES):
            found.update(chunk)
    return found.hexdigest()
