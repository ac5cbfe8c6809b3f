"""What can be fetched: a file of a release, named by its bytes."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class Artifact:
    """One file of release ``version`` of distribution ``name``; ``sha256`` is 64 hex digits."""

    name: str
    version: str
    filename: str
    size_bytes: int
    sha256: str
