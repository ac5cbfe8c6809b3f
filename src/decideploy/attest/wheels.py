"""A patched wheel against the lock that names it."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from decideploy.artifacts.manifest import sha256_file
from decideploy.attest.documents import document_faults
from decideploy.attest.papers import Papers
from decideploy.build import build
from decideploy.build.provenance import provenance_statement
from decideploy.build.sbom import wheel_sbom
from decideploy.build.series import read_series
from decideploy.errors import Diagnostic, IntegrityError
from decideploy.pins import Lock, load_lock, load_recipe, recipe_names

_OTHER = "get the artifact again, or check it with the release of decideploy that built it"


def wheel_faults(papers: Papers, root: Path) -> Iterator[Diagnostic]:
    """Yield what is wrong with the wheel, its provenance and its bill, by the lock of its file name.

    Raises:
        IntegrityError: no lock names such a wheel, or it cannot be read.
    """
    lock = _lock_of(papers.artifact.name, root)
    recipe, series = load_recipe(lock.recipe.name, root=root), read_series(root)
    if papers.artifact.is_file() and (found := sha256_file(papers.artifact)) != lock.wheel.sha256:
        yield Diagnostic(
            what=f"the wheel has sha256 {found}, the lock of {recipe.name} {lock.wheel.sha256}",
            where=str(papers.artifact),
            next_step=_OTHER,
        )
    named: dict[str, Any] = {"recipe": recipe, "lock": lock, "series": series, "sha256": lock.wheel.sha256}
    statement = provenance_statement(filename=lock.wheel.filename, **named)
    yield from document_faults(papers.provenance, statement, next_step=_OTHER)
    if papers.artifact.is_file():
        bill = wheel_sbom(papers.artifact, root=root, **named)
        yield from document_faults(papers.sbom, bill, next_step=_OTHER)


def second_wheel_faults(papers: Papers, root: Path, wheelhouses: Sequence[Path]) -> Iterator[Diagnostic]:
    """Build the wheel again from the lock and yield a fault when its bytes are others.

    Raises:
        IntegrityError, PatchError: as :func:`decideploy.build.build`.
    """
    lock = _lock_of(papers.artifact.name, root)
    with tempfile.TemporaryDirectory(prefix="decideploy-rebuild-") as folder:
        result = build(lock.recipe.name, Path(folder), wheelhouses=wheelhouses, root=root)
    if papers.artifact.is_file() and (found := sha256_file(papers.artifact)) != result.sha256:
        yield Diagnostic(
            what=f"a second build gave sha256 {result.sha256}, the wheel has {found}",
            where=str(papers.artifact),
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
