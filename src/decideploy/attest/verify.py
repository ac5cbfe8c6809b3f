"""Check an artifact: signature, files, provenance and bill of materials, and a second build on demand."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from decideploy.artifacts import verify_signature
from decideploy.artifacts.manifest import FileRecord
from decideploy.attest.artifact import Attestation, BuiltArtifact, built_artifact
from decideploy.attest.bundles import bundle_faults, second_bundle_faults
from decideploy.attest.wheels import second_wheel_faults, wheel_faults
from decideploy.errors import Diagnostic, Error, IntegrityError
from decideploy.pins import data_root
from decideploy.pins.lock import file_sha256


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
    """Check a wheel, or the folder of a bundle, against the files that belong to it and the lock at hand.

    With ``public_key`` the signature must fit and name every file. Provenance and bill must be those that
    the lock, recipe and patches of this decideploy lead to. With ``again`` the artifact is built once more
    and its bytes compared.

    Raises:
        IntegrityError: something is wrong; every fault is told at once.
        ConfigError: ``artifact`` is neither a wheel nor a bundle, or the library for signatures is missing.
    """
    built = built_artifact(artifact)
    checks = _Round()
    checks.run("files", lambda: _missing(built))
    if public_key is not None:
        checks.run("signature", lambda: _signature(built, public_key))
        checks.run("attested files", lambda: _attested(built))
    against_lock, second_build = (
        (bundle_faults, second_bundle_faults) if built.is_bundle else (wheel_faults, second_wheel_faults)
    )
    root = root or data_root()
    checks.run("lock, provenance and sbom", lambda: against_lock(built, root))
    if again:
        checks.run("second build", lambda: second_build(built, root, wheelhouses))
    if checks.faults:
        raise IntegrityError(
            f"{artifact} is not what lock, provenance and bill say", where=str(artifact), faults=checks.faults
        )
    stands_for = built.files()[0]
    return BuildCheck(artifact=built.path.name, sha256=file_sha256(stands_for), checked=tuple(checks.checked))


def _missing(built: BuiltArtifact) -> Iterator[Diagnostic]:
    for path in built.files():
        if not path.is_file():
            yield Diagnostic(
                what=f"{path.name} is missing",
                where=str(built.folder),
                next_step="get all files that belong to the artifact: they are published together",
            )


def _signature(built: BuiltArtifact, public_key: Path) -> Iterator[Diagnostic]:
    verify_signature(built.attestation, public_key)
    yield from ()


def _attested(built: BuiltArtifact) -> Iterator[Diagnostic]:
    """The files against the attestation: what differs, what it lacks, what it names in vain."""
    try:
        told = Attestation.model_validate_json(built.attestation.read_bytes())
    except (OSError, ValidationError) as error:
        raise IntegrityError(f"no attestation: {error}", where=str(built.attestation)) from error
    present = {path.name: path for path in built.files() if path.is_file()}
    for name in sorted(present.keys() | told.files.keys()):
        if fault := _attested_fault(told.files.get(name), present.get(name)):
            yield Diagnostic(
                what=f"{name} {fault}",
                where=built.attestation.name,
                next_step="do not use the artifact; get it from the one who signed",
            )


def _attested_fault(told: FileRecord | None, path: Path | None) -> str:
    if told is None:
        return "is not attested"
    if path is None:
        return "is attested and not here"
    return "" if file_sha256(path) == told.sha256 else f"is not the attested file of sha256 {told.sha256}"
