"""RECORD: the list of a wheel's files with their digests (PyPA binary distribution format)."""

from __future__ import annotations

import base64
import csv
import hashlib
import io
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

PACKAGE = "vllm/"


@dataclass(frozen=True, kw_only=True, slots=True)
class RecordEntry:
    """One line of RECORD: sha256 in hex and size; both are None for RECORD itself."""

    sha256: str | None
    size_bytes: int | None


def entry_for(content: bytes) -> RecordEntry:
    """Return the entry of a file with this content."""
    return RecordEntry(sha256=hashlib.sha256(content).hexdigest(), size_bytes=len(content))


def parse_record(text: str) -> dict[str, RecordEntry]:
    """Parse RECORD in file order.

    Raises:
        ValueError: a line is malformed, names a path twice, or uses another digest than sha256.
    """
    entries: dict[str, RecordEntry] = {}
    for row in csv.reader(io.StringIO(text)):
        path, digest, size = row
        if path in entries:
            raise ValueError(f"{path} is listed twice")
        entries[path] = RecordEntry(sha256=_hex(path, digest), size_bytes=int(size) if size else None)
    return entries


def _hex(path: str, digest: str) -> str | None:
    if not digest:
        return None
    algorithm, _, value = digest.partition("=")
    if algorithm != "sha256":
        raise ValueError(f"{path} has a digest of another kind: {algorithm}")
    return base64.urlsafe_b64decode(value + "=" * (-len(value) % 4)).hex()


def format_record(entries: Mapping[str, RecordEntry]) -> bytes:
    """Write RECORD in the order of ``entries``."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    for path, entry in entries.items():
        if entry.sha256 is None:
            writer.writerow((path, "", ""))
            continue
        value = base64.urlsafe_b64encode(bytes.fromhex(entry.sha256)).rstrip(b"=").decode()
        writer.writerow((path, f"sha256={value}", entry.size_bytes))
    return text.getvalue().encode()


def is_package_file(path: str) -> bool:
    """Whether ``path`` is a file that installation puts under ``vllm/``, bytecode left out."""
    return path.startswith(PACKAGE) and not path.endswith(".pyc")


def digest_files(files: Iterable[tuple[str, str]]) -> str:
    """Return the sha256 of the sorted lines ``<path>,<sha256>``: one value for what is installed."""
    lines = sorted(f"{path},{sha256}\n" for path, sha256 in files)
    return hashlib.sha256("".join(lines).encode()).hexdigest()


def digest_record(entries: Mapping[str, RecordEntry]) -> str:
    """Return :func:`digest_files` of the package files that a RECORD lists."""
    return digest_files(
        (path, entry.sha256) for path, entry in entries.items() if is_package_file(path) and entry.sha256
    )
