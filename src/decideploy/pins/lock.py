"""Locks: what a recipe came to, byte for byte; written by ``scripts/update_pins.py`` only."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

from pydantic import ValidationError

from decideploy.errors import ConfigError, IntegrityError, PatchError
from decideploy.pins.recipe import (
    FileModel,
    PinnedFile,
    PythonVersion,
    Recipe,
    Sha256,
    Upstream,
    file_error,
    recipe_path,
)
from decideploy.pins.root import data_root

REGENERATE = "run scripts/update_pins.py, read the difference, then run it again with --write"


class RecipeDigest(FileModel):
    """The recipe that the lock was made from; ``sha256`` is of the file's bytes."""

    name: str
    sha256: Sha256


class PatchDigest(FileModel):
    """One patch of the series; ``sha256`` is of the file's bytes."""

    name: str
    sha256: Sha256


class SeriesDigest(FileModel):
    """The patches in order; ``sha256`` is of the lines ``<sha256>  <name>``, one for each patch."""

    sha256: Sha256
    patches: tuple[PatchDigest, ...]


class RequirementFile(FileModel):
    """One hashed requirement file beside the lock."""

    filename: str
    purpose: Literal["runtime", "development", "bootstrap"]
    python: PythonVersion
    sha256: Sha256


class OutputWheel(PinnedFile):
    """The patched wheel.

    ``files_sha256`` covers what is installed under ``vllm/``: it is the sha256 of the sorted lines
    ``<path>,<sha256>`` of those files, bytecode left out.
    """

    version: str
    files_sha256: Sha256


class LeanWheel(PinnedFile):
    """The patched wheel without what the recipe calls unused; ``files_sha256`` as in :class:`OutputWheel`."""

    files_sha256: Sha256


class Lock(FileModel):
    """The contents of ``build/locks/<name>.json``."""

    schema_version: Literal[1]
    recipe: RecipeDigest
    series: SeriesDigest
    upstream: Upstream
    requirements: tuple[RequirementFile, ...]
    wheel: OutputWheel
    lean: LeanWheel | None = None

    def requirement_file(self, python: str) -> RequirementFile:
        """Return the runtime requirement file for ``python``, such as ``"3.12"``.

        Raises:
            ConfigError: the recipe has none for that version.
        """
        runtime = {file.python: file for file in self.requirements if file.purpose == "runtime"}
        if python not in runtime:
            raise ConfigError(
                f"recipe {self.recipe.name!r} has no requirements for Python {python}",
                where=f"build/locks/{self.recipe.name}.json: requirements",
                next_step=f"use Python {' or '.join(runtime)}",
            )
        return runtime[python]


def load_lock(name: str, *, root: Path | None = None) -> Lock:
    """Read ``build/locks/<name>.json``.

    Raises:
        IntegrityError: there is no lock, or a digest in it is missing or malformed.
        ConfigError: it is malformed in another way; the key at fault is named.
    """
    path = (root or data_root()) / "build" / "locks" / f"{name}.json"
    try:
        return Lock.model_validate_json(path.read_bytes())
    except FileNotFoundError as error:
        raise IntegrityError(
            f"recipe {name!r} has no lock", where=f"build/locks/{name}.json", next_step=REGENERATE
        ) from error
    except ValidationError as error:
        raise file_error(error, f"build/locks/{name}.json") from error


def series_names(root: Path) -> tuple[str, ...]:
    """Return the patch names of ``patches/series`` in order; blank lines and ``#`` lines do not count.

    Raises:
        PatchError: there is no such file, or it is not UTF-8 text.
    """
    try:
        lines = (root / "patches" / "series").read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise PatchError(
            f"the series cannot be read: {error.strerror}",
            where="patches/series",
            next_step="restore it from the repository: it lists the patches, one a line",
        ) from error
    except UnicodeDecodeError as error:
        raise PatchError(
            f"the series is not UTF-8 text: {error.reason} at byte {error.start}",
            where="patches/series",
            next_step="save it as UTF-8, one patch name a line",
        ) from error
    return tuple(line.strip() for line in lines if line.strip() and not line.startswith("#"))


def digest_series(root: Path) -> SeriesDigest:
    """Digest the patch series under ``root`` as it is now.

    Raises:
        PatchError: there is no series that can be read.
        IntegrityError: the series names a file that is not there.
    """
    patches = tuple(_digest_patch(root, name) for name in series_names(root))
    lines = "".join(f"{patch.sha256}  {patch.name}\n" for patch in patches)
    return SeriesDigest(sha256=hashlib.sha256(lines.encode()).hexdigest(), patches=patches)


def _digest_patch(root: Path, name: str) -> PatchDigest:
    try:
        return PatchDigest(name=name, sha256=file_sha256(root / "patches" / name))
    except FileNotFoundError as error:
        raise IntegrityError(
            f"patches/series names {name}, which does not exist",
            where="patches/series",
            next_step="add the patch or take the line out of the series",
        ) from error


def file_sha256(path: Path) -> str:
    """Return the sha256 of a file as 64 hex digits."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def check_lock(recipe: Recipe, lock: Lock, *, root: Path | None = None) -> None:
    """Check, offline, that ``lock`` was made from the recipe, series and requirement files at hand.

    Raises:
        IntegrityError: it was not; the first stale key is named, such as
            ``build/locks/cpu.json: series.sha256``, and the rest are counted.
    """
    stale = tuple(_differences(recipe, lock, root or data_root()))
    if not stale:
        return
    key, expected, actual = stale[0]
    others = ", ".join(f"build/locks/{recipe.name}.json: {key}" for key, _, _ in stale[1:])
    raise IntegrityError(
        "the lock is stale" + (f" (so are {others})" if others else ""),
        where=f"build/locks/{recipe.name}.json: {key}",
        expected=expected,
        actual=actual,
        next_step=REGENERATE,
    )


def _differences(recipe: Recipe, lock: Lock, root: Path) -> Iterator[tuple[str, str, str]]:
    series = digest_series(root)
    pairs = [
        ("recipe.name", lock.recipe.name, recipe.name),
        ("recipe.sha256", lock.recipe.sha256, file_sha256(recipe_path(recipe.name, root))),
        ("upstream", lock.upstream.model_dump_json(), recipe.upstream.model_dump_json()),
        ("wheel.version", lock.wheel.version, recipe.output.version),
        ("series.sha256", lock.series.sha256, series.sha256),
        ("series.patches", _told(lock.series), _told(series)),
    ]
    for index, file in enumerate(lock.requirements):
        path = root / "build" / "locks" / file.filename
        actual = file_sha256(path) if path.is_file() else "no such file"
        pairs.append((f"requirements[{index}].sha256 ({file.filename})", file.sha256, actual))
    covered = {file.python for file in lock.requirements if file.purpose == "runtime"}
    pairs.append(("requirements", " ".join(sorted(covered)), " ".join(sorted(recipe.requirements.pythons))))
    return (pair for pair in pairs if pair[1] != pair[2])


def _told(series: SeriesDigest) -> str:
    return " ".join(f"{patch.name}={patch.sha256[:12]}" for patch in series.patches)


def check_requirements(path: Path) -> dict[str, str]:
    """Check that every line of a requirement file is pinned and hashed; return name → version.

    Raises:
        IntegrityError: a line is not ``name==version`` or has no sha256; all such lines are named.
    """
    entries = path.read_text(encoding="utf-8").replace("\\\n", " ").splitlines()
    pins: dict[str, str] = {}
    faults: list[str] = []
    for entry in entries:
        if not entry.strip() or entry.lstrip().startswith("#"):
            continue
        match = _PINNED.match(entry)
        if match is None:
            faults.append(entry.split("--hash")[0].strip())
            continue
        pins[match["name"]] = match["version"]
    if faults:
        raise IntegrityError(
            f"requirements without an exact version and a sha256: {', '.join(faults)}",
            where=f"build/locks/{path.name}: {faults[0]}",
            next_step=REGENERATE,
        )
    return pins


_PINNED = re.compile(
    r"^(?P<name>[a-z0-9][a-z0-9-]*)(\[[^\]]*\])?==(?P<version>[^\s;]+)(\s*;[^\\]*?)?"
    r"(\s+--hash=sha256:[0-9a-f]{64})+\s*$"
)
