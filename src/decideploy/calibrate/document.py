"""The fitted temperatures as the model's ``calibration.json``."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from decideploy import __version__
from decideploy.calibrate.run import SCHEMA_VERSION, CalibrationReport
from decideploy.errors import ConfigError
from decideploy.overwriting import file_exists


def calibration_document(report: CalibrationReport) -> dict[str, Any]:
    """``per_kind`` as readers of the model's file want it, and beside it where the numbers come from.

    ConfigError when no kind was fitted: the file would only repeat what is served.
    """
    if all(kind.kept for kind in report.kinds):
        raise ConfigError(
            "no kind could be fitted, so no file is written",
            where="; ".join(f"{kind.kind}: {kind.kept}" for kind in report.kinds),
            next_step="give more labelled decisions, with different labels",
        )
    return {
        "per_kind": {kind.kind: kind.temperature for kind in report.kinds},
        "provenance": {
            "schema_version": SCHEMA_VERSION,
            "fitted_by": f"decideploy {__version__}",
            "model": report.model,
            "model_sha256": report.model_sha256,
            "data_sha256": report.data_sha256,
            "served_calibration_sha256": report.served_sha256,
            "kinds": {
                kind.kind: {"examples": kind.n, "fitted": not kind.kept, "served": kind.served}
                for kind in report.kinds
            },
        },
    }


def write_calibration(report: CalibrationReport, path: Path, *, force: bool = False) -> None:
    """Write ``path`` whole or not at all; ConfigError when it exists, unless ``force``."""
    text = json.dumps(calibration_document(report), indent=2) + "\n"
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        with partial.open("x", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        if force:
            partial.replace(path)
        else:
            # A link fails where a rename would overwrite what another process wrote meanwhile.
            path.hardlink_to(partial)
    except FileExistsError as error:
        raise file_exists(path) from error
    finally:
        partial.unlink(missing_ok=True)
