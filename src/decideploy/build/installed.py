"""Is the vLLM that is installed here the one that was built?"""

from __future__ import annotations

import hashlib
import os
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from importlib.util import find_spec
from pathlib import Path

from decideploy.build.record import PACKAGE, RecordEntry, digest_files, is_package_file, parse_record
from decideploy.errors import IntegrityError
from decideploy.pins import Lock, load_lock, recipe_names

_REINSTALL = "install the wheel that `decideploy build` writes, with --no-deps --force-reinstall"
_SHOWN = 5


@dataclass(frozen=True, kw_only=True, slots=True)
class InstalledBuild:
    """A vLLM installation that equals its lock; ``patches`` are the names in the series.

    ``lean`` is whether it lacks what the recipe calls unused, as a lean bundle installs it.
    """

    version: str
    recipe: str
    files_sha256: str
    patches: tuple[str, ...]
    lean: bool = False


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
    lean = lock.lean is not None and digest == lock.lean.files_sha256
    if not lean and digest != lock.wheel.files_sha256:
        raise _difference(record, digests, digest, lock, str(found.locate_file("vllm")))
    _refuse_unlisted(found, record)
    _refuse_shadow(found)
    return InstalledBuild(
        version=found.version,
        recipe=lock.recipe.name,
        files_sha256=digest,
        patches=tuple(patch.name for patch in lock.series.patches),
        lean=lean,
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
    what = (
        f"installed files were changed after installation: {_some(changed)}"
        if changed
        else (f"the installed vllm calls itself {lock.wheel.version} but is another build of it")
    )
    return IntegrityError(
        what, where=where, expected=lock.wheel.files_sha256, actual=digest, next_step=_REINSTALL
    )


def _some(paths: Sequence[str]) -> str:
    return ", ".join(paths[:_SHOWN]) + (f" and {len(paths) - _SHOWN} more" if len(paths) > _SHOWN else "")


def _refuse_unlisted(found: Distribution, record: dict[str, RecordEntry]) -> None:
    """A file that no list names can be a plugin, a library or a data file that the build never had."""
    unlisted = sorted(
        path for path in _files_under_package(found) if path not in record and not _is_bytecode(path, record)
    )
    if unlisted:
        raise IntegrityError(
            f"files were added to the installed vllm: {_some(unlisted)}",
            where=str(found.locate_file(PACKAGE)),
            next_step=f"remove them, then {_REINSTALL}",
        )


def _files_under_package(found: Distribution) -> Iterator[str]:
    root = str(found.locate_file(""))
    for folder, subfolders, names in os.walk(os.path.join(root, PACKAGE)):
        # os.walk does not enter a linked folder, but Python imports from it.
        links = [name for name in subfolders if os.path.islink(os.path.join(folder, name))]
        inside = Path(folder).relative_to(root).as_posix()
        yield from (f"{inside}/{name}" for name in [*names, *links])


def _is_bytecode(path: str, record: dict[str, RecordEntry]) -> bool:
    """Whether ``path`` is what Python or the installer compiles of a listed source."""
    folder, _, name = path.rpartition("/")
    if not name.endswith(".pyc"):
        return False
    folder = folder.removesuffix("/__pycache__")
    return f"{folder}/{name.split('.')[0]}.py" in record


def _refuse_shadow(found: Distribution) -> None:
    checked = os.path.realpath(str(found.locate_file(f"{PACKAGE}__init__.py")))
    imported = _imported_file()
    if imported is None or os.path.realpath(imported) != checked:
        raise IntegrityError(
            "Python imports another vllm than the installed one",
            where="sys.path, PYTHONPATH or the working folder",
            expected=checked,
            actual=imported or "a folder without __init__.py",
            next_step=f"remove or rename {imported or 'that folder'}, or start from another folder",
        )


def _imported_file() -> str | None:
    """The file of the ``vllm`` that is imported already, or that an import would find."""
    if loaded := sys.modules.get("vllm"):
        return loaded.__file__
    spec = find_spec("vllm")
    return spec.origin if spec else None
