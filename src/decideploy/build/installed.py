"""Is the vLLM that is installed here the one that was built?"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path

from decideploy.build.record import RecordEntry, digest_files, is_package_file, parse_record
from decideploy.errors import IntegrityError
from decideploy.pins import Lock, load_lock, recipe_names

_REINSTALL = "install the wheel that `decideploy build` writes, with --no-deps --force-reinstall"
_SHOWN = 5


@dataclass(frozen=True, kw_only=True, slots=True)
class InstalledBuild:
    """A vLLM installation that equals its lock; ``patches`` are the names in the series."""

    version: str
    recipe: str
    files_sha256: str
    patches: tuple[str, ...]


def check_installed(lock: Lock | None = None) -> InstalledBuild:
    """Check every installed file of vLLM against ``lock``, or against the lock of its version.

    Raises:
        IntegrityError: vLLM is not installed, is another build, or files differ; they are named.
    """
    found = _installed()
    lock = _lock_for(found.version, [lock] if lock else [load_lock(name) for name in recipe_names()])
    record = _record(found)
    digests = _hash_files(found, [path for path in record if is_package_file(path)])
    digest = digest_files(digests.items())
    if digest != lock.wheel.files_sha256:
        raise _difference(record, digests, digest, lock, str(found.locate_file("vllm")))
    return InstalledBuild(
        version=found.version,
        recipe=lock.recipe.name,
        files_sha256=digest,
        patches=tuple(patch.name for patch in lock.series.patches),
    )


def _installed() -> Distribution:
    try:
        return distribution("vllm")
    except PackageNotFoundError as error:
        raise IntegrityError("vllm is not installed here", where="vllm", next_step=_REINSTALL) from error


def _lock_for(version: str, locks: Sequence[Lock]) -> Lock:
    for lock in locks:
        if lock.wheel.version == version:
            return lock
    raise IntegrityError(
        "the installed vllm is another build",
        where="vllm",
        expected=" or ".join(lock.wheel.version for lock in locks),
        actual=version,
        next_step=_REINSTALL,
    )


def _record(found: Distribution) -> dict[str, RecordEntry]:
    try:
        return parse_record(found.read_text("RECORD") or "")
    except ValueError as error:
        raise IntegrityError(
            f"the installed RECORD cannot be read: {error}", where="vllm", next_step=_REINSTALL
        ) from error


def _hash_files(found: Distribution, paths: Sequence[str]) -> dict[str, str]:
    # hashlib releases the interpreter lock, so the threads read and digest side by side.
    with ThreadPoolExecutor() as pool:
        digests = pool.map(lambda path: _sha256_or_missing(Path(str(found.locate_file(path)))), paths)
        return dict(zip(paths, digests, strict=True))


def _sha256_or_missing(path: Path) -> str:
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except FileNotFoundError:
        return "missing"


def _difference(
    record: dict[str, RecordEntry], digests: dict[str, str], digest: str, lock: Lock, where: str
) -> IntegrityError:
    changed = [
        f"{path} (missing)" if sha256 == "missing" else path
        for path, sha256 in digests.items()
        if sha256 != record[path].sha256
    ]
    shown = ", ".join(changed[:_SHOWN]) + (
        f" and {len(changed) - _SHOWN} more" if len(changed) > _SHOWN else ""
    )
    what = (
        f"installed files were changed after installation: {shown}"
        if changed
        else (f"the installed vllm calls itself {lock.wheel.version} but is another build of it")
    )
    return IntegrityError(
        what, where=where, expected=lock.wheel.files_sha256, actual=digest, next_step=_REINSTALL
    )
