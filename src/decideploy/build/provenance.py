"""Provenance: an in-toto statement with a SLSA v1 predicate, the same bytes for the same build."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from decideploy import __version__
from decideploy.build.series import Patch
from decideploy.pins import Lock, Recipe

BUILD_TYPE = "urn:decideploy:wheel-repack:v1"

Subjects = Sequence[tuple[str, str]]
"""Pairs of file name and sha256."""


def provenance_path(artifact: Path) -> Path:
    """Where the provenance of an artifact lies: beside it, with ``.provenance.json`` added."""
    return artifact.with_name(f"{artifact.name}.provenance.json")


def statement(
    subjects: Subjects,
    *,
    build_type: str,
    external: Mapping[str, Any],
    internal: Mapping[str, Any],
    dependencies: Sequence[Mapping[str, Any]],
) -> dict[str, Any]:
    """Return an in-toto statement with a SLSA v1 predicate.

    Field names are SLSA's; times and invocation ids are left out so that two builds agree.
    """
    return {
        "_type": "https://in-toto.io/Statement/v1",
        "subject": [{"name": name, "digest": {"sha256": sha256}} for name, sha256 in subjects],
        "predicateType": "https://slsa.dev/provenance/v1",
        "predicate": {
            "buildDefinition": {
                "buildType": build_type,
                "externalParameters": dict(external),
                "internalParameters": dict(internal),
                "resolvedDependencies": list(dependencies),
            },
            "runDetails": {
                "builder": {"id": "urn:decideploy:build", "version": {"decideploy": __version__}},
            },
        },
    }


def provenance_statement(
    *, filename: str, sha256: str, recipe: Recipe, lock: Lock, series: Sequence[Patch]
) -> dict[str, Any]:
    """Return the statement for one wheel."""
    return statement(
        [(filename, sha256)],
        build_type=BUILD_TYPE,
        external={"recipe": recipe.name},
        internal={
            "distribution": recipe.output.distribution,
            "version": recipe.output.version,
            "files_sha256": lock.wheel.files_sha256,
        },
        dependencies=recipe_dependencies(recipe, lock, series),
    )


def recipe_dependencies(recipe: Recipe, lock: Lock, series: Sequence[Patch]) -> list[dict[str, Any]]:
    """Return what a patched wheel is made from as SLSA's resource descriptors."""
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


def write_provenance(artifact: Path, told: Mapping[str, Any]) -> Path:
    """Write the statement ``told`` to :func:`provenance_path` and return that path."""
    path = provenance_path(artifact)
    path.write_text(json.dumps(told, indent=2, sort_keys=True) + "\n", encoding="utf-8")
    return path
