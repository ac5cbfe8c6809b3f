"""Build: upstream wheel by digest, series applied exactly, wheel equal to its lock; provenance and SBOM."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from decideploy.build.provenance import provenance_statement, write_provenance
from decideploy.build.sbom import wheel_sbom, write_sbom
from decideploy.build.series import Patch, read_series
from decideploy.build.wheel import PackedWheel, repack, wheel_filename
from decideploy.errors import IntegrityError
from decideploy.pins import Lock, cache_folder, check_lock, data_root, fetch, load_lock, load_recipe


@dataclass(frozen=True, kw_only=True, slots=True)
class PatchInfo:
    """What one patch did: its name, digest, first line of its description, and changed files."""

    name: str
    sha256: str
    description: str
    paths: tuple[str, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class BuildResult:
    """A wheel that equals its lock; ``seconds`` is wall time, download included."""

    wheel: Path
    sha256: str
    size_bytes: int
    provenance: Path
    sbom: Path
    patches: tuple[PatchInfo, ...]
    seconds: float
    upstream_sha256: str
    recipe_sha256: str

    def to_dict(self) -> dict[str, object]:
        """As a JSON document, the digests of its inputs included."""
        return {
            "schema_version": 1,
            "inputs": {"upstream_sha256": self.upstream_sha256, "recipe_sha256": self.recipe_sha256},
            "wheel": str(self.wheel),
            "sha256": self.sha256,
            "size_bytes": self.size_bytes,
            "provenance": str(self.provenance),
            "sbom": str(self.sbom),
            "patches": [asdict(patch) for patch in self.patches],
            "seconds": self.seconds,
        }


def build(
    recipe_name: str,
    out: Path,
    *,
    wheelhouses: Sequence[Path] = (),
    root: Path | None = None,
    cache: Path | None = None,
) -> BuildResult:
    """Build the patched wheel of a recipe into the folder ``out``.

    ``wheelhouses`` are searched before any index; ``root`` defaults to :func:`data_root` and ``cache``
    to :func:`cache_folder`.

    Raises:
        ConfigError: no such recipe, or git is missing.
        IntegrityError: the lock is stale, the download is not what it names, or the wheel differs from it.
        PatchError: the series is malformed or does not apply exactly.
    """
    started = time.perf_counter()
    root = root or data_root()
    recipe, lock = load_recipe(recipe_name, root=root), load_lock(recipe_name, root=root)
    check_lock(recipe, lock, root=root)
    series = read_series(root)
    upstream = fetch(recipe.wheel_artifact, cache or cache_folder(), wheelhouses=wheelhouses)
    out.mkdir(parents=True, exist_ok=True)
    wheel = out / wheel_filename(recipe)
    with tempfile.TemporaryDirectory(prefix=".build-", dir=out) as folder:
        packed = repack(upstream, Path(folder) / wheel.name, recipe=recipe, series=series)
        _check_output(packed, lock)
        os.replace(packed.path, wheel)
    statement = provenance_statement(
        filename=wheel.name, sha256=packed.sha256, recipe=recipe, lock=lock, series=series
    )
    bill = wheel_sbom(wheel, sha256=packed.sha256, recipe=recipe, lock=lock, series=series, root=root)
    return BuildResult(
        wheel=wheel,
        sha256=packed.sha256,
        upstream_sha256=lock.upstream.wheel.sha256,
        recipe_sha256=lock.recipe.sha256,
        size_bytes=packed.size_bytes,
        provenance=write_provenance(wheel, statement),
        sbom=write_sbom(wheel, bill),
        patches=tuple(_told(patch) for patch in series),
        seconds=time.perf_counter() - started,
    )


def _check_output(packed: PackedWheel, lock: Lock) -> None:
    found = (packed.path.name, packed.size_bytes, packed.sha256, packed.files_sha256)
    expected = (lock.wheel.filename, lock.wheel.size_bytes, lock.wheel.sha256, lock.wheel.files_sha256)
    for key, want, have in zip(
        ("filename", "size_bytes", "sha256", "files_sha256"), expected, found, strict=True
    ):
        if want != have:
            raise IntegrityError(
                "the wheel that was built is not the one in the lock",
                where=f"build/locks/{lock.recipe.name}.json: wheel.{key}",
                expected=str(want),
                actual=str(have),
                next_step="if a change of the build is intended, run scripts/update_pins.py --write",
            )


def _told(patch: Patch) -> PatchInfo:
    return PatchInfo(name=patch.name, sha256=patch.sha256, description=patch.description, paths=patch.paths)
