"""A patched wheel against the lock that names it."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from decideploy.attest.artifact import BuiltArtifact
from decideploy.attest.documents import document_faults
from decideploy.build import build
from decideploy.build.provenance import provenance_statement
from decideploy.build.sbom import wheel_sbom
from decideploy.build.series import read_series
from decideploy.errors import Diagnostic, IntegrityError
from decideploy.pins import Lock, load_lock, load_recipe, recipe_names
from decideploy.pins.lock import file_sha256

_OTHER = "get the artifact again, or check it with the release of decideploy that built it"


def wheel_faults(built: BuiltArtifact, root: Path) -> Iterator[Diagnostic]:
    """Yield what is wrong with the wheel, its provenance and its bill, by the lock of its file name.

    Raises:
        IntegrityError: no lock names such a wheel, or it cannot be read.
    """
    lock = _lock_of(built.path.name, root)
    recipe, series = load_recipe(lock.recipe.name, root=root), read_series(root)
    if built.path.is_file() and (found := file_sha256(built.path)) != lock.wheel.sha256:
        yield Diagnostic(
            what=f"the wheel has sha256 {found}, the lock of {recipe.name} {lock.wheel.sha256}",
            where=str(built.path),
            next_step=_OTHER,
        )
    named: dict[str, Any] = {"recipe": recipe, "lock": lock, "series": series, "sha256": lock.wheel.sha256}
    statement = provenance_statement(filename=lock.wheel.filename, **named)
    yield from document_faults(built.provenance, statement, next_step=_OTHER)
    if built.path.is_file():
        bill = wheel_sbom(built.path, root=root, **named)
        yield from document_faults(built.sbom, bill, next_step=_OTHER)


def second_wheel_faults(
    built: BuiltArtifact, root: Path, wheelhouses: Sequence[Path]
) -> Iterator[Diagnostic]:
    """Build the wheel again from the lock and yield a fault when its bytes are others.

    Raises:
        IntegrityError, PatchError: as :func:`decideploy.build.build`.
    """
    lock = _lock_of(built.path.name, root)
    with tempfile.TemporaryDirectory(prefix="decideploy-rebuild-") as folder:
        result = build(lock.recipe.name, Path(folder), wheelhouses=wheelhouses, root=root)
    if built.path.is_file() and (found := file_sha256(built.path)) != result.sha256:
        yield Diagnostic(
            what=f"a second build gave sha256 {result.sha256}, the wheel has {found}",
            where=str(built.path),
            next_step="do not use the wheel; use the one that was built here",
        )


def _lock_of(filename: str, root: Path) -> Lock:
    locks = [load_lock(name, root=root) for name in recipe_names(root)]
    for lock in locks:
        if lock.wheel.filename == filename:
            return lock
    raise IntegrityError(
        "no lock here names a wheel of this name",
        where=filename,
        expected=" or ".join(lock.wheel.filename for lock in locks),
        actual=filename,
        next_step=_OTHER,
    )
