"""Check an artifact: signature, files, provenance and bill of materials, and a second build on demand."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from decideploy.artifacts import verify_signature
from decideploy.artifacts.manifest import FileRecord, sha256_file
from decideploy.attest.bundles import bundle_faults, second_bundle_faults
from decideploy.attest.papers import Attestation, Papers, papers_of
from decideploy.attest.wheels import second_wheel_faults, wheel_faults
from decideploy.errors import Diagnostic, Error, IntegrityError
from decideploy.pins import data_root


@dataclass(frozen=True, kw_only=True, slots=True)
class BuildCheck:
    """An artifact that passed: its digest (a bundle's is its manifest's) and what was checked, in order."""

    artifact: str
    sha256: str
    checked: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        """As a JSON document."""
        return {
            "schema_version": 1,
            "artifact": self.artifact,
            "sha256": self.sha256,
            "checked": list(self.checked),
        }


@dataclass(kw_only=True)
class _Round:
    """Runs the checks one after another and keeps every fault."""

    checked: list[str] = field(default_factory=list)
    faults: list[Diagnostic] = field(default_factory=list)

    def run(self, name: str, check: Callable[[], Iterable[Diagnostic]]) -> None:
        self.checked.append(name)
        try:
            # One by one: what was found before a check had to stop counts too.
            for fault in check():
                self.faults.append(fault)
        except Error as error:
            self.faults += error.diagnostics()


def verify_build(
    artifact: Path,
    *,
    public_key: Path | None = None,
    again: bool = False,
    wheelhouses: Sequence[Path] = (),
    root: Path | None = None,
) -> BuildCheck:
    """Check a wheel, or the folder of a bundle, against its papers and against the lock at hand.

    With ``public_key`` the signature must fit and name every file. Provenance and bill must be those that
    the lock, recipe and patches of this decideploy lead to. With ``again`` the artifact is built once more
    and its bytes compared.

    Raises:
        IntegrityError: something is wrong; every fault is told at once.
        ConfigError: ``artifact`` is neither a wheel nor a bundle, or the library for signatures is missing.
    """
    papers = papers_of(artifact)
    checks = _Round()
    checks.run("files", lambda: _missing(papers))
    if public_key is not None:
        checks.run("signature", lambda: _signature(papers, public_key))
        checks.run("attested files", lambda: _attested(papers))
    against_lock, second_build = (
        (bundle_faults, second_bundle_faults) if papers.is_bundle else (wheel_faults, second_wheel_faults)
    )
    root = root or data_root()
    checks.run("lock, provenance and sbom", lambda: against_lock(papers, root))
    if again:
        checks.run("second build", lambda: second_build(papers, root, wheelhouses))
    if checks.faults:
        raise IntegrityError(
            f"{artifact} is not what its papers say", where=str(artifact), faults=checks.faults
        )
    stands_for = papers.files()[0]
    return BuildCheck(
        artifact=papers.artifact.name, sha256=sha256_file(stands_for), checked=tuple(checks.checked)
    )


def _missing(papers: Papers) -> Iterator[Diagnostic]:
    for path in papers.files():
        if not path.is_file():
            yield Diagnostic(
                what=f"{path.name} is missing",
                where=str(papers.folder),
                next_step="get all files that belong to the artifact: they are published together",
            )


def _signature(papers: Papers, public_key: Path) -> Iterator[Diagnostic]:
    verify_signature(papers.attestation, public_key)
    yield from ()


def _attested(papers: Papers) -> Iterator[Diagnostic]:
    """The files against the attestation: what differs, what it lacks, what it names in vain."""
    try:
        told = Attestation.model_validate_json(papers.attestation.read_bytes())
    except (OSError, ValidationError) as error:
        raise IntegrityError(f"no attestation: {error}", where=str(papers.attestation)) from error
    present = {path.name: path for path in papers.files() if path.is_file()}
    for name in sorted(present.keys() | told.files.keys()):
        if fault := _attested_fault(told.files.get(name), present.get(name)):
            yield Diagnostic(
                what=f"{name} {fault}",
                where=papers.attestation.name,
                next_step="do not use the artifact; get it from the one who signed",
            )


def _attested_fault(told: FileRecord | None, path: Path | None) -> str:
    if told is None:
        return "is not attested"
    if path is None:
        return "is attested and not here"
    return "" if sha256_file(path) == told.sha256 else f"is not the attested file of sha256 {told.sha256}"
