"""Write a bundle: what it holds, its parts, manifest, bill of materials and provenance."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from decideploy import __version__
from decideploy.artifacts import Manifest, lock_folder, resolve_model, split_hub_id
from decideploy.build.provenance import recipe_dependencies, statement, write_provenance
from decideploy.build.sbom import (
    document,
    patched_component,
    sha256_component,
    wheel_component,
    write_sbom,
)
from decideploy.build.series import read_series
from decideploy.bundle.archive import write_parts
from decideploy.bundle.contents import (
    MODEL,
    TOOLS,
    WHEELS,
    Wheels,
    check_names,
    gather_wheels,
    left_out,
)
from decideploy.bundle.manifest import MANIFEST, PARTS, BundledModel, BundleManifest, Member
from decideploy.errors import ConfigError
from decideploy.pins import Lock, Recipe, check_lock, data_root, load_lock, load_recipe
from decideploy.pins.lock import file_sha256

BUILD_TYPE = "urn:decideploy:bundle:v1"
# Bill and provenance are named after the archive, which is the parts joined.
ARCHIVE = "bundle"
INSTALLERS = ("install.py", "install.sh")
# A part without limit: one file of any size.
_WHOLE_BYTES = 1 << 62


@dataclass(frozen=True, kw_only=True, slots=True)
class BundleOptions:
    """What a bundle is for, and what it leaves out.

    ``lean`` leaves out what the recipe calls unused, ``host_torch`` torch and what comes with it,
    ``without`` the locked packages of these names. ``model`` is a folder or a hub id at a commit.
    ``part_bytes`` is the size of a part, 0 for one part.
    """

    recipe: str
    python: str
    model: str | None = None
    part_bytes: int = 0
    lean: bool = False
    host_torch: bool = False
    without: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class BundleResult:
    """A bundle that was written to ``folder``; ``sha256`` is the manifest's and stands for all of it."""

    folder: Path
    manifest: BundleManifest
    sha256: str
    sbom: Path
    provenance: Path

    def to_dict(self) -> dict[str, Any]:
        """As a JSON document."""
        return {
            "schema_version": 1,
            "folder": str(self.folder),
            "sha256": self.sha256,
            "sbom": str(self.sbom),
            "provenance": str(self.provenance),
            "manifest": self.manifest.model_dump(mode="json"),
        }


def bundle(
    options: BundleOptions,
    out: Path,
    *,
    wheelhouses: Sequence[Path] = (),
    root: Path | None = None,
) -> BundleResult:
    """Write a bundle to the folder ``out``, where an earlier bundle is replaced.

    The same inputs give the same bytes. ``root`` is a checkout, by default the one that this runs from.

    Raises:
        ConfigError: an option does not fit the recipe, or ``out`` holds something else.
        IntegrityError: a lock is stale, or a file is not to be had or is not what the lock names.
        PatchError: the series does not apply.
    """
    root = root or data_root()
    recipe, lock = load_recipe(options.recipe, root=root), load_lock(options.recipe, root=root)
    check_lock(recipe, lock, root=root)
    _check_options(options, recipe, lock, root)
    _make_room(out)
    model = _Model.of(options.model)
    with tempfile.TemporaryDirectory(prefix=".bundle-", dir=out) as scratch:
        wheels = gather_wheels(
            recipe,
            lock,
            python=options.python,
            leave=_left_out(options, recipe, lock, root),
            lean=options.lean,
            root=root,
            scratch=Path(scratch),
            wheelhouses=wheelhouses,
        )
        files = _files(wheels, model)
        members = _members(files, wheels, model)
        parts = write_parts(files.items(), out, part_bytes=options.part_bytes or _WHOLE_BYTES)
        manifest = BundleManifest(
            recipe=recipe.name,
            python=options.python,
            platform=recipe.requirements.platform,
            decideploy=__version__,
            vllm=recipe.output.version,
            lean=options.lean,
            host_torch=options.host_torch,
            without=tuple(sorted(options.without)),
            model=model.told if model else None,
            parts=parts,
            files=members,
        )
        manifest.write(out)
        return _describe(out, manifest, wheels, _Inputs(recipe=recipe, lock=lock, root=root))


@dataclass(frozen=True, kw_only=True, slots=True)
class _Inputs:
    recipe: Recipe
    lock: Lock
    root: Path


@dataclass(frozen=True, kw_only=True, slots=True)
class _Model:
    folder: Path
    manifest: Manifest

    @classmethod
    def of(cls, named: str | None) -> _Model | None:
        """The model that an option names, its files digested; None without one."""
        if named is None:
            return None
        folder = resolve_model(named, revision=None)
        local = Path(named).expanduser().is_dir()
        name, revision = ("", None) if local else split_hub_id(named, None)
        return cls(folder=folder, manifest=lock_folder(folder, name=name, revision=revision))

    @property
    def told(self) -> BundledModel:
        return BundledModel(name=self.manifest.model, revision=self.manifest.revision)


def _check_options(options: BundleOptions, recipe: Recipe, lock: Lock, root: Path) -> None:
    check_names(recipe, lock, python=options.python, without=options.without, root=root)
    if options.lean and not recipe.bundle.has_lean:
        raise ConfigError(
            f"recipe {recipe.name} has nothing that a lean bundle leaves out",
            where="--lean",
            next_step="leave the option out, or list it under [bundle] in the recipe",
        )


def _left_out(options: BundleOptions, recipe: Recipe, lock: Lock, root: Path) -> set[str]:
    chosen = left_out(
        recipe, lock, python=options.python, lean=options.lean, host_torch=options.host_torch, root=root
    )
    return chosen | set(options.without)


def _make_room(out: Path) -> None:
    """Take an earlier bundle away: its parts would be extra ones."""
    if out.exists() and any(out.iterdir()) and not (out / MANIFEST).is_file():
        raise ConfigError(
            "the folder holds something that is no bundle",
            where=str(out),
            next_step="name a new folder, or one of an earlier bundle",
        )
    out.mkdir(parents=True, exist_ok=True)
    for part in out.glob(f"{PARTS}*"):
        part.unlink()


def _files(wheels: Wheels, model: _Model | None) -> dict[str, Path]:
    """Every file of the archive by its path inside, sorted."""
    packages = (wheels.engine, wheels.project, *wheels.dependencies)
    files = {f"{WHEELS}/{wheel.name}": wheel for wheel in packages}
    files[f"{TOOLS}/{wheels.installer.name}"] = wheels.installer
    if model:
        files |= {f"{MODEL}/{name}": model.folder / name for name in model.manifest.files}
    return dict(sorted(files.items()))


def _members(files: Mapping[str, Path], wheels: Wheels, model: _Model | None) -> tuple[Member, ...]:
    known = model.manifest.files if model else {}
    return tuple(
        Member(
            path=name,
            size_bytes=path.stat().st_size,
            sha256=known[name.removeprefix(f"{MODEL}/")].sha256
            if name.startswith(f"{MODEL}/")
            else file_sha256(path),
            from_host=name.startswith(f"{WHEELS}/") and wheels.is_from_host(path),
        )
        for name, path in files.items()
    )


def _describe(out: Path, manifest: BundleManifest, wheels: Wheels, inputs: _Inputs) -> BundleResult:
    source = Path(__file__).parent
    for name in INSTALLERS:
        shutil.copyfile(source / name, out / name)
        (out / name).chmod(0o755)
    sha256 = file_sha256(out / MANIFEST)
    return BundleResult(
        folder=out,
        manifest=manifest,
        sha256=sha256,
        sbom=write_sbom(out / ARCHIVE, _sbom(manifest, sha256, wheels, inputs)),
        provenance=write_provenance(
            out / ARCHIVE, bundle_statement(out, manifest, inputs.recipe, inputs.lock, inputs.root)
        ),
    )


def _sbom(manifest: BundleManifest, sha256: str, wheels: Wheels, inputs: _Inputs) -> dict[str, Any]:
    digests = {member.path.rpartition("/")[2]: member.sha256 for member in manifest.files}
    series = read_series(inputs.root)
    engine = patched_component(
        wheels.engine,
        sha256=digests[wheels.engine.name],
        recipe=inputs.recipe,
        lock=inputs.lock,
        series=series,
    )
    others = (wheels.project, wheels.installer, *wheels.dependencies)
    parts = [engine, *(wheel_component(wheel, sha256=digests[wheel.name]) for wheel in others)]
    if manifest.model:
        parts += model_components(manifest)
    return document(sha256_component(ARCHIVE, manifest.decideploy, sha256), parts)


def model_components(manifest: BundleManifest) -> list[Any]:
    """The model's files as components."""
    return [
        sha256_component(member.path, "", member.sha256, kind="file")
        for member in manifest.files
        if member.path.startswith(f"{MODEL}/")
    ]


def bundle_statement(
    folder: Path, manifest: BundleManifest, recipe: Recipe, lock: Lock, root: Path
) -> dict[str, Any]:
    """Return the provenance of the bundle in ``folder``, as ``manifest`` and the lock tell it."""
    installers = [(name, file_sha256(folder / name)) for name in INSTALLERS]
    parts = [(part.name, part.sha256) for part in manifest.parts]
    requirements = lock.requirement_file(manifest.python)
    chosen = manifest.model_dump(
        mode="json", include={"recipe", "python", "lean", "host_torch", "without", "model"}
    )
    return statement(
        [(MANIFEST, file_sha256(folder / MANIFEST)), *installers, *parts],
        build_type=BUILD_TYPE,
        external={**chosen, "part_bytes": manifest.parts[0].size_bytes},
        internal={"version": recipe.output.version, "platform": manifest.platform},
        dependencies=[
            *recipe_dependencies(recipe, lock, read_series(root)),
            {"name": f"build/locks/{requirements.filename}", "digest": {"sha256": requirements.sha256}},
            *({"name": member.path, "digest": {"sha256": member.sha256}} for member in manifest.files),
        ],
    )
