"""The weights volume: filled by a CPU job, and served from only what that job verified."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, ValidationError

from decideploy import __version__
from decideploy.deploy.modal.config import ModalConfig
from decideploy.errors import ConfigError, Diagnostic, VerificationError


class VerifiedModel(BaseModel):
    """What the filling job leaves in the volume: ``folder`` is relative to it, sizes are in bytes."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    schema_version: Literal[1] = 1
    model: str
    revision: str
    folder: str
    verified_by: str
    rules_run: int
    size_bytes: int


def fill(config: ModalConfig, volume: Path) -> VerifiedModel:
    """Download the pinned revision into ``volume``, read every weight, and record that it was right.

    The record is removed first, so that a revision which fails now is not served because it passed once.

    Raises:
        ConfigError: the revision cannot be had, or it was not downloaded into the volume.
        VerificationError: the files are not what the engine needs; every fault is named.
    """
    from decideploy.artifacts import resolve_model, verify  # noqa: PLC0415

    record = _record_path(config, volume)
    record.unlink(missing_ok=True)
    folder = resolve_model(config.model, revision=config.revision)
    if not folder.resolve().is_relative_to(volume.resolve()):
        raise ConfigError(
            f"{folder} is outside the volume {volume}",
            where="HF_HOME",
            next_step="deploy the modal_app.py of this release: its image sets HF_HOME inside the volume",
        )
    verification = verify(folder, deep=True)
    verification.raise_for_issues()
    for issue in verification.issues:
        print(issue.to_diagnostic(), flush=True)
    verified = VerifiedModel(
        model=config.model,
        revision=config.revision,
        folder=str(folder.resolve().relative_to(volume.resolve())),
        verified_by=f"decideploy {__version__}",
        rules_run=verification.rules_run,
        size_bytes=sum(path.stat().st_size for path in folder.rglob("*") if path.is_file()),
    )
    _write(record, verified)
    return verified


def verified_model(config: ModalConfig, volume: Path) -> Path:
    """The folder of the pinned revision in ``volume``; VerificationError when no job has verified it."""
    record = _record_path(config, volume)
    try:
        verified = VerifiedModel.model_validate_json(record.read_bytes())
    except (FileNotFoundError, ValidationError) as error:
        raise _unverified(config, record) from error
    folder = volume / verified.folder
    if (verified.model, verified.revision) != (config.model, config.revision) or not folder.is_dir():
        raise _unverified(config, record)
    return folder


def _unverified(config: ModalConfig, record: Path) -> VerificationError:
    fault = Diagnostic(
        what=f"{config.model} at {config.revision} was not verified in the volume {config.weights_volume}",
        where=str(record),
        next_step="run `modal run modal_app.py` first, and read what it reports",
    )
    return VerificationError(fault.what, issues=(fault,), where=fault.where)


def _record_path(config: ModalConfig, volume: Path) -> Path:
    return volume / "verified" / f"{config.model.replace('/', '--')}@{config.revision}.json"


def _write(record: Path, verified: VerifiedModel) -> None:
    record.parent.mkdir(parents=True, exist_ok=True)
    partial = record.with_suffix(".partial")
    partial.write_text(json.dumps(verified.model_dump(), indent=2) + "\n", "utf-8")
    os.replace(partial, record)
