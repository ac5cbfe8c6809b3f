"""One tar archive in parts, the same bytes for the same files."""

from __future__ import annotations

import hashlib
import io
import tarfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any, BinaryIO

from decideploy.bundle.manifest import PARTS, Part

_CHUNK_BYTES = 1 << 20


def write_parts(files: Iterable[tuple[str, Path]], folder: Path, *, part_bytes: int) -> tuple[Part, ...]:
    """Write ``files`` (path in the archive, file) in their order to ``folder`` as bundle.tar.000, .001, …

    Wheels are compressed already, so the archive is not. Owner, mode and time are the same for every file.
    """
    with PartWriter(folder, part_bytes) as parts, _tar(parts) as archive:
        for name, path in files:
            info = tarfile.TarInfo(name)
            info.size = path.stat().st_size
            with path.open("rb") as file:
                archive.addfile(info, file)
    return tuple(parts.parts)


def _tar(parts: PartWriter) -> tarfile.TarFile:
    return tarfile.open(fileobj=parts, mode="w|", format=tarfile.PAX_FORMAT, bufsize=_CHUNK_BYTES)


class PartWriter(io.RawIOBase):
    """A file to write to that goes on in a new part whenever one has ``part_bytes``.

    ``parts`` are those that are whole; all are once it is closed.
    """

    def __init__(self, folder: Path, part_bytes: int) -> None:
        self._folder = folder
        self._part_bytes = part_bytes
        self._file: BinaryIO | None = None
        self._digest = hashlib.sha256()
        self._size = 0
        self.parts: list[Part] = []

    def writable(self) -> bool:
        """Always."""
        return True

    def write(self, data: Any) -> int:
        """Write all of ``data``; returns its length."""
        rest = memoryview(data)
        while rest:
            rest = rest[self._fill(self._file or self._open(), rest) :]
        return len(data)

    def close(self) -> None:
        """End the last part."""
        if self._file is not None:
            self._end(self._file)
        super().close()

    @property
    def _name(self) -> str:
        return f"{PARTS}{len(self.parts):03d}"

    def _open(self) -> BinaryIO:
        self._file = (self._folder / self._name).open("wb")
        self._digest, self._size = hashlib.sha256(), 0
        return self._file

    def _fill(self, file: BinaryIO, data: memoryview) -> int:
        piece = data[: self._part_bytes - self._size]
        file.write(piece)
        self._digest.update(piece)
        self._size += len(piece)
        if self._size == self._part_bytes:
            self._end(file)
        return len(piece)

    def _end(self, file: BinaryIO) -> None:
        file.close()
        self.parts.append(Part(name=self._name, size_bytes=self._size, sha256=self._digest.hexdigest()))
        self._file = None
