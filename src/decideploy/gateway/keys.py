"""API keys: where they come from, and whether a request has one. Only their digests are kept."""

from __future__ import annotations

import hashlib
import hmac
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from decideploy.errors import ConfigError, Diagnostic, Error

KEYS_VARIABLE: Final = "DECIDEPLOY_API_KEYS"
_SHORTEST_KEY: Final = 16
_FINGERPRINT_DIGITS: Final = 8


class KeyFaultsError(ConfigError):
    """Keys that cannot be used; none is shown."""

    def __init__(self, faults: tuple[Diagnostic, ...]) -> None:
        super().__init__(faults[0].what, where=faults[0].where, next_step=faults[0].next_step)
        self.faults = faults

    def diagnostics(self) -> tuple[Diagnostic, ...]:
        """One for each key at fault."""
        return self.faults


def read_keys(file: Path | None, environ: Mapping[str, str] | None = None) -> tuple[str, ...]:
    """The keys of DECIDEPLOY_API_KEYS (commas or blanks between them) and of ``file`` (one a line).

    Lines that start with # are comments. ConfigError names every key at fault by its place, and a file that
    cannot be read or holds no key: a server would be open that was meant to be closed.
    """
    variable = (os.environ if environ is None else environ).get(KEYS_VARIABLE, "")
    placed = [
        (f"{KEYS_VARIABLE}: key {n}", key) for n, key in enumerate(variable.replace(",", " ").split(), 1)
    ]
    if file is not None:
        placed += _file_keys(file)
    if faults := tuple(_faults(placed)):
        raise KeyFaultsError(faults)
    return tuple(dict.fromkeys(key for _, key in placed))


def _file_keys(file: Path) -> list[tuple[str, str]]:
    try:
        lines = file.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"the API keys cannot be read: {getattr(error, 'strerror', None) or 'not UTF-8 text'}",
            where=str(file),
            next_step="name a readable file with one key a line",
        ) from error
    stripped = [(number, line.strip()) for number, line in enumerate(lines, 1)]
    keys = [(f"{file}: line {number}", key) for number, key in stripped if key and not key.startswith("#")]
    if not keys:
        raise ConfigError("the file holds no API key", where=str(file), next_step="write one key a line")
    return keys


def _faults(placed: list[tuple[str, str]]) -> Iterator[Diagnostic]:
    for where, key in placed:
        if len(key) < _SHORTEST_KEY:
            what = f"an API key has {len(key)} characters; {_SHORTEST_KEY} are the least"
        elif not key.isascii() or not key.isprintable() or " " in key:
            what = "an API key has a character that no HTTP header carries"
        else:
            continue
        yield Diagnostic(what=what, where=where, next_step="make one with `openssl rand -hex 24`")


@dataclass(frozen=True, kw_only=True, slots=True)
class Caller:
    """Who asks. ``fingerprint`` is of its key, None without one; ``internal`` is the server itself."""

    fingerprint: str | None = None
    internal: bool = False


class Keyring:
    """The digests of ``keys`` and of the server's own ``token``; without keys everybody may ask."""

    def __init__(self, keys: tuple[str, ...], *, token: str) -> None:
        self._digests = tuple(_digest(key) for key in keys)
        self._token = _digest(token)

    @property
    def closed(self) -> bool:
        """Whether a key is needed."""
        return bool(self._digests)

    def caller(self, authorization: str | None) -> Caller | None:
        """Who sent this ``Authorization`` header; None for nobody known.

        Every digest is compared, in constant time, so that the answer's time tells nothing about any key.
        """
        scheme, _, key = (authorization or "").partition(" ")
        given = _digest(key.strip() if scheme.lower() == "bearer" else "")
        known = False
        for digest in self._digests:
            known |= hmac.compare_digest(given, digest)
        if hmac.compare_digest(given, self._token):
            return Caller(internal=True)
        if known:
            return Caller(fingerprint=given.hex()[:_FINGERPRINT_DIGITS])
        return None if self._digests else Caller()


class KeyFile:
    """A keyring that follows its file, so that keys are changed without a restart."""

    def __init__(self, file: Path | None, *, token: str, environ: Mapping[str, str] | None = None) -> None:
        self._file, self._token, self._environ = file, token, environ
        self._seen = _version(file)
        self.keyring = Keyring(read_keys(file, environ), token=token)

    def refresh(self) -> Error | None:
        """Read the file again when it has changed; a fault leaves the keys as they were and is returned."""
        if (seen := _version(self._file)) == self._seen:
            return None
        self._seen = seen
        try:
            self.keyring = Keyring(read_keys(self._file, self._environ), token=self._token)
        except Error as error:
            return error
        return None


def _version(file: Path | None) -> tuple[int, int, int] | None:
    try:
        found = file.stat() if file else None
    except OSError:
        return None
    return (found.st_mtime_ns, found.st_ino, found.st_size) if found else None


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode("utf-8", "surrogateescape")).digest()
