"""The papers of an artifact: which files they are, and the signed list of them.

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
from decideploy.artifacts.manifest import FileRecord, sha256_file
from decideploy.artifacts.signing import signature_path
from decideploy.build.provenance import provenance_path
from decideploy.build.sbom import sbom_path
from decideploy.bundle.builder import ARCHIVE, INSTALLERS
from decideploy.bundle.manifest import MANIFEST, PARTS
from decideploy.errors import ConfigError

ATTESTATION = "attestation.json"


class Attestation(BaseModel):
    """The contents of the attestation: file names beside it, and what they are."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    schema_version: Literal[1] = 1
    artifact: str
    files: Mapping[str, FileRecord]


@dataclass(frozen=True, kw_only=True, slots=True)
class Papers:
    """Where an artifact and its papers lie; ``artifact`` is the wheel, or the bundle's archive name."""

    folder: Path
    artifact: Path
    is_bundle: bool

    @property
    def provenance(self) -> Path:
        """The SLSA provenance."""
        return provenance_path(self.artifact)

    @property
    def sbom(self) -> Path:
        """The CycloneDX bill."""
        return sbom_path(self.artifact)

    @property
    def attestation(self) -> Path:
        """The list of files that is signed."""
        return self.folder / (ATTESTATION if self.is_bundle else f"{self.artifact.name}.{ATTESTATION}")

    @property
    def signature(self) -> Path:
        """The signature over the attestation."""
        return signature_path(self.attestation)

    def files(self) -> list[Path]:
        """Every file that belongs to the artifact, there or not, attestation and signature apart."""
        if not self.is_bundle:
            return [self.artifact, self.provenance, self.sbom]
        named = [self.folder / name for name in (MANIFEST, *INSTALLERS)]
        return [*named, *sorted(self.folder.glob(f"{PARTS}*")), self.provenance, self.sbom]


def papers_of(artifact: Path) -> Papers:
    """The papers of a wheel or of a bundle's folder.

    Raises:
        ConfigError: ``artifact`` is neither.
    """
    if artifact.is_dir():
        return Papers(folder=artifact, artifact=artifact / ARCHIVE, is_bundle=True)
    if artifact.suffix == ".whl":
        return Papers(folder=artifact.parent, artifact=artifact, is_bundle=False)
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
    papers = papers_of(artifact)
    missing = [path.name for path in papers.files() if not path.is_file()]
    if missing:
        raise ConfigError(
            f"missing: {', '.join(missing)}",
            where=str(papers.folder),
            next_step="build the artifact again: papers are written beside it",
        )
    files = {
        path.name: FileRecord(size_bytes=path.stat().st_size, sha256=sha256_file(path))
        for path in papers.files()
    }
    told = Attestation(artifact=papers.artifact.name, files=files)
    papers.attestation.write_text(told.model_dump_json(indent=1) + "\n", "utf-8")
    return sign_manifest(papers.attestation, private_key)
