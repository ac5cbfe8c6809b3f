"""Provenance: an in-toto statement with a SLSA v1 predicate, the same bytes for the same build."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from decideploy import __version__
from decideploy.build.series import Patch
from decideploy.pins import Lock, Recipe

BUILD_TYPE = "urn:decideploy:wheel-repack:v1"


def provenance_statement(
    *, filename: str, sha256: str, recipe: Recipe, lock: Lock, series: Sequence[Patch]
) -> dict[str, Any]:
    """Return the statement for one wheel.

    Field names are SLSA's; times and invocation ids are left out so that two builds agree.
    """
    return {
        "_type": "https://in-toto.io/Statement/v1",
        "subject": [{"name": filename, "digest": {"sha256": sha256}}],
        "predicateType": "https://slsa.dev/provenance/v1",
        "predicate": {
            "buildDefinition": {
                "buildType": BUILD_TYPE,
                "externalParameters": {"recipe": recipe.name},
                "internalParameters": {
                    "distribution": recipe.output.distribution,
                    "version": recipe.output.version,
                    "files_sha256": lock.wheel.files_sha256,
                },
                "resolvedDependencies": _dependencies(recipe, lock, series),
            },
            "runDetails": {
                "builder": {"id": "urn:decideploy:build", "version": {"decideploy": __version__}},
            },
        },
    }


def _dependencies(recipe: Recipe, lock: Lock, series: Sequence[Patch]) -> list[dict[str, Any]]:
    upstream = recipe.upstream
    return [
        {
            "name": upstream.wheel.filename,
            "uri": f"pkg:pypi/{upstream.distribution}@{upstream.version}?file_name={upstream.wheel.filename}",
            "digest": {"sha256": upstream.wheel.sha256},
        },
        {"name": f"build/recipes/{recipe.name}.toml", "digest": {"sha256": lock.recipe.sha256}},
        {"name": "patches/series", "digest": {"sha256": lock.series.sha256}},
        *({"name": f"patches/{patch.name}", "digest": {"sha256": patch.sha256}} for patch in series),
    ]


def write_provenance(wheel: Path, statement: dict[str, Any]) -> Path:
    """Write ``statement`` to ``<wheel>.provenance.json`` and return that path."""
    path = wheel.with_name(f"{wheel.name}.provenance.json")
    path.write_text(json.dumps(statement, indent=2, sort_keys=True) + "\n", encoding="utf-8")
    return path
