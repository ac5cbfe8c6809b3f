"""Zip archives, read by their directory and written byte for byte the same on every machine."""

from __future__ import annotations

import hashlib
import mmap
import struct
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from decideploy.errors import IntegrityError

_LOCAL = struct.Struct("<4s5H3I2H")
_CENTRAL = struct.Struct("<4s6H3I5H2I")
_END = struct.Struct("<4s4H2IH")
_LIMIT = 0xFFFFFFFF
_UTF8_FLAG = 0x800


@dataclass(frozen=True, kw_only=True, slots=True)
class ZipReader:
    """An open archive; ``members`` maps names to directory entries, in file order."""

    archive: zipfile.ZipFile
    data: mmap.mmap
    members: dict[str, zipfile.ZipInfo]

    def read(self, name: str) -> bytes:
        """Return the content of a member; KeyError if there is none."""
        return self.archive.read(self.members[name])

    def compressed(self, name: str) -> memoryview:
        """Return the bytes of a member as they stand in the archive."""
        info = self.members[name]
        fields = _LOCAL.unpack_from(self.data, info.header_offset)
        start = info.header_offset + _LOCAL.size + fields[-2] + fields[-1]
        return memoryview(self.data)[start : start + info.compress_size]


@contextmanager
def open_zip(path: Path) -> Iterator[ZipReader]:
    """Open an archive for reading.

    Raises:
        IntegrityError: it is no zip archive, or lists a name twice.
    """
    try:
        with path.open("rb") as file, zipfile.ZipFile(file) as archive:
            infos = archive.infolist()
            members = {info.filename: info for info in infos}
            if len(members) != len(infos):
                raise IntegrityError("the archive lists a name twice", where=str(path))
            data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
            yield ZipReader(archive=archive, data=data, members=members)
    except zipfile.BadZipFile as error:
        raise IntegrityError(f"not a zip archive: {error}", where=str(path)) from error


class ZipWriter:
    """Writes members in the order given and digests the archive on the way.

    ``zipfile`` can neither copy compressed bytes nor digest what it writes.
    """

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._digest = hashlib.sha256()
        self._directory: list[bytes] = []
        self.size_bytes = 0

    @property
    def sha256(self) -> str:
        """Digest of everything written so far, 64 hex digits."""
        return self._digest.hexdigest()

    def copy(self, name: str, info: zipfile.ZipInfo, compressed: memoryview) -> None:
        """Write a member under ``name`` without touching its compressed bytes."""
        self._member(name, info, info.compress_type, (info.CRC, info.compress_size, info.file_size))
        self._write(compressed)

    def add(self, name: str, info: zipfile.ZipInfo, content: bytes) -> None:
        """Write ``content`` under ``name`` with the time and mode of ``info``.

        It is stored, not compressed: zlib and zlib-ng compress to different bytes, and the archive's
        digest must not depend on which of them this Python was built with.
        """
        size = len(content)
        self._member(name, info, zipfile.ZIP_STORED, (zlib.crc32(content), size, size))
        self._write(content)

    def close(self) -> None:
        """Write the directory; nothing can be added afterwards."""
        start, count = self.size_bytes, len(self._directory)
        directory = b"".join(self._directory)
        if start > _LIMIT or count > 0xFFFF:
            raise IntegrityError("the archive would need the zip64 format, which is not written")
        self._write(directory)
        self._write(_END.pack(b"PK\5\6", 0, 0, count, count, len(directory), start, 0))

    def _member(self, name: str, info: zipfile.ZipInfo, method: int, sizes: tuple[int, int, int]) -> None:
        encoded = name.encode()
        flags = 0 if name.isascii() else _UTF8_FLAG
        common = (info.extract_version, flags, method, *_dos_time(info.date_time), *sizes, len(encoded), 0)
        made_by = info.create_version | info.create_system << 8
        tail = (0, 0, info.internal_attr, info.external_attr, self.size_bytes)
        self._directory.append(_CENTRAL.pack(b"PK\1\2", made_by, *common, *tail) + encoded)
        self._write(_LOCAL.pack(b"PK\3\4", *common) + encoded)

    def _write(self, data: bytes | memoryview) -> None:
        self._file.write(data)
        self._digest.update(data)
        self.size_bytes += len(data)


def _dos_time(when: tuple[int, int, int, int, int, int]) -> tuple[int, int]:
    year, month, day, hour, minute, second = when
    return hour << 11 | minute << 5 | second // 2, (year - 1980) << 9 | month << 5 | day
