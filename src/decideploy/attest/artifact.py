"""A built artifact: which files belong to it, and the signed list of them.

An artifact is a wheel of ``decideploy build`` or the folder of a ``decideploy bundle``. Its attestation names
each file that belongs to it, provenance and bill of materials included, by size and sha256; one signature
over the attestation then covers all of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict

from decideploy.artifacts import sign_manifest
from decideploy.artifacts.manifest import FileRecord
from decideploy.artifacts.signing import signature_path
from decideploy.build.provenance import provenance_path
from decideploy.build.sbom import sbom_path
from decideploy.bundle.builder import ARCHIVE, INSTALLERS
from decideploy.bundle.manifest import MANIFEST, PARTS
from decideploy.errors import ConfigError
from decideploy.pins.lock import file_sha256

ATTESTATION = "attestation.json"


class Attestation(BaseModel):
    """The contents of the attestation: file names beside it, and what they are."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    schema_version: Literal[1] = 1
    artifact: str
    files: Mapping[str, FileRecord]


@dataclass(frozen=True, kw_only=True, slots=True)
class BuiltArtifact:
    """Where the files of an artifact lie; ``path`` is the wheel, or the bundle's archive by name."""

    folder: Path
    path: Path
    is_bundle: bool

    @property
    def provenance(self) -> Path:
        """The SLSA provenance."""
        return provenance_path(self.path)

    @property
    def sbom(self) -> Path:
        """The CycloneDX bill."""
        return sbom_path(self.path)

    @property
    def attestation(self) -> Path:
        """The list of files that is signed."""
        return self.folder / (ATTESTATION if self.is_bundle else f"{self.path.name}.{ATTESTATION}")

    @property
    def signature(self) -> Path:
        """The signature over the attestation."""
        return signature_path(self.attestation)

    def files(self) -> list[Path]:
        """Every file that belongs to the artifact, there or not, attestation and signature apart."""
        if not self.is_bundle:
            return [self.path, self.provenance, self.sbom]
        named = [self.folder / name for name in (MANIFEST, *INSTALLERS)]
        return [*named, *sorted(self.folder.glob(f"{PARTS}*")), self.provenance, self.sbom]


def built_artifact(artifact: Path) -> BuiltArtifact:
    """The artifact that ``artifact`` names, a wheel or a bundle's folder.

    Raises:
        ConfigError: ``artifact`` is neither.
    """
    if artifact.is_dir():
        return BuiltArtifact(folder=artifact, path=artifact / ARCHIVE, is_bundle=True)
    if artifact.suffix == ".whl":
        return BuiltArtifact(folder=artifact.parent, path=artifact, is_bundle=False)
    raise ConfigError(
        "neither a wheel nor the folder of a bundle",
        where=str(artifact),
        next_step="name what `decideploy build` or `decideploy bundle` wrote",
    )


def attest(artifact: Path, private_key: Path) -> Path:
    """Write and sign the attestation of ``artifact``; return the signature's path.

    ``private_key`` is an elliptic-curve key in PEM.

    Raises:
        ConfigError: a file of the artifact is missing, or key or library are; all missing files are told.
    """
    built = built_artifact(artifact)
    missing = [path.name for path in built.files() if not path.is_file()]
    if missing:
        raise ConfigError(
            f"missing: {', '.join(missing)}",
            where=str(built.folder),
            next_step="build the artifact again: provenance and bill are written beside it",
        )
    files = {
        path.name: FileRecord(size_bytes=path.stat().st_size, sha256=file_sha256(path))
        for path in built.files()
    }
    told = Attestation(artifact=built.path.name, files=files)
    built.attestation.write_text(told.model_dump_json(indent=1) + "\n", "utf-8")
    return sign_manifest(built.attestation, private_key)
