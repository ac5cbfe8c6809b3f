"""A bundle against its manifest, and its manifest against the lock."""

from __future__ import annotations

import json
import re
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from decideploy.attest.artifact import BuiltArtifact
from decideploy.attest.documents import document_faults
from decideploy.bundle import BundleManifest, BundleOptions, bundle
from decideploy.bundle.builder import bundle_statement
from decideploy.bundle.contents import MODEL
from decideploy.bundle.install import part_faults
from decideploy.bundle.manifest import MANIFEST, read_manifest
from decideploy.errors import Diagnostic
from decideploy.pins import Lock, check_lock, load_lock, load_recipe
from decideploy.pins.lock import file_sha256

_OTHER = "get the bundle again, or check it with the release of decideploy that wrote it"


def bundle_faults(built: BuiltArtifact, root: Path) -> Iterator[Diagnostic]:
    """Yield what is wrong with parts, wheels, provenance and bill.

    Raises:
        ConfigError, IntegrityError: there is no manifest, or no such recipe or lock.
    """
    manifest = read_manifest(built.folder)
    for fault in part_faults(built.folder, manifest.model_dump()):
        yield _fault(fault, built)
    recipe, lock = load_recipe(manifest.recipe, root=root), load_lock(manifest.recipe, root=root)
    check_lock(recipe, lock, root=root)
    for path in _unlocked(manifest, lock, root):
        yield _fault(f"{path} is not what the lock of {recipe.name} names", built)
    statement = bundle_statement(built.folder, manifest, recipe, lock, root)
    yield from document_faults(built.provenance, statement, next_step=_OTHER)
    yield from _bill_faults(built, manifest)


def second_bundle_faults(
    built: BuiltArtifact, root: Path, wheelhouses: Sequence[Path]
) -> Iterator[Diagnostic]:
    """Write the bundle again from the lock and yield the files whose bytes are others.

    Raises:
        IntegrityError, PatchError, ConfigError: as :func:`decideploy.bundle.bundle`.
    """
    manifest = read_manifest(built.folder)
    model = manifest.model
    if model and not model.revision:
        yield _fault(f"a second build needs the folder of the model {model.name}", built)
        return
    options = BundleOptions(
        recipe=manifest.recipe,
        python=manifest.python,
        model=f"{model.name}@{model.revision}" if model else None,
        part_bytes=manifest.parts[0].size_bytes,
        lean=manifest.lean,
        host_torch=manifest.host_torch,
        without=manifest.without,
    )
    with tempfile.TemporaryDirectory(prefix="decideploy-rebuild-") as folder:
        result = bundle(options, Path(folder), wheelhouses=wheelhouses, root=root)
        for path in sorted(result.folder.iterdir()):
            other = built.folder / path.name
            if other.is_file() and file_sha256(path) != file_sha256(other):
                yield _fault(f"a second build gave another {path.name}", built)


def _unlocked(manifest: BundleManifest, lock: Lock, root: Path) -> Iterator[str]:
    """Wheels of the manifest that no lock has; decideploy's own is built from the checkout."""
    locks = root / "build" / "locks"
    files = (locks / lock.requirement_file(manifest.python).filename, locks / "bootstrap.txt")
    known = {
        digest for file in files for digest in re.findall(r"sha256:([0-9a-f]{64})", file.read_text("utf-8"))
    }
    known.add(lock.lean.sha256 if manifest.lean and lock.lean else lock.wheel.sha256)
    for member in manifest.files:
        own = member.path.startswith((f"{MODEL}/", "wheels/decideploy-"))
        if not own and member.sha256 not in known:
            yield member.path


def _bill_faults(built: BuiltArtifact, manifest: BundleManifest) -> Iterator[Diagnostic]:
    """The bill must name the manifest, and exactly the manifest's files."""
    if not built.sbom.is_file():
        return
    try:
        bill = json.loads(built.sbom.read_text("utf-8"))
        subject = {one["content"] for one in bill["metadata"]["component"]["hashes"]}
        named = {one["content"] for part in bill["components"] for one in part["hashes"]}
    except (ValueError, KeyError, TypeError) as error:
        yield _fault(f"{built.sbom.name} is no bill of a bundle: {error!r}", built)
        return
    if subject != {file_sha256(built.folder / MANIFEST)}:
        yield _fault(f"{built.sbom.name} is the bill of another bundle", built)
    for digest in sorted(named ^ {member.sha256 for member in manifest.files}):
        paths = [member.path for member in manifest.files if member.sha256 == digest]
        what = f"lacks {paths[0]}" if paths else f"names a file of sha256 {digest} that the bundle has not"
        yield _fault(f"{built.sbom.name} {what}", built)


def _fault(what: str, built: BuiltArtifact) -> Diagnostic:
    return Diagnostic(what=what, where=str(built.folder), next_step=_OTHER)
