"""Verify or record whatever the user names: a folder, or a hub id at a pinned commit."""

from __future__ import annotations

from pathlib import Path

from decideploy.artifacts.hub import HubModel, lock_hub, split_hub_id, verify_hub
from decideploy.artifacts.manifest import Manifest, lock_folder
from decideploy.artifacts.resolve import resolve_model
from decideploy.artifacts.signing import check_signing, sign_manifest, verify_signature
from decideploy.artifacts.verification import Verification, verify
from decideploy.errors import ConfigError


def verify_named(
    model: str,
    *,
    revision: str | None = None,
    adapter: Path | None = None,
    deep: bool = False,
    manifest: Path | None = None,
    verify_key: Path | None = None,
    quiet: bool = False,
) -> Verification:
    """Check a folder, or a hub id without its weights; ``deep`` and ``manifest`` download a hub id first.

    With ``verify_key`` the manifest's signature is checked before anything else: IntegrityError.
    """
    if verify_key and manifest is None:
        raise ConfigError("--verify-key needs --manifest", where="--verify-key")
    if verify_key and manifest:
        verify_signature(manifest, verify_key)
    recorded = Manifest.read(manifest) if manifest else None
    local = Path(model).expanduser().is_dir()
    if not local and not deep and recorded is None and adapter is None:
        repo, commit = split_hub_id(model, revision)
        return verify_hub(HubModel(repo=repo, revision=commit))
    folder = resolve_model(model, revision=revision)
    return verify(folder, adapter=adapter, deep=deep, manifest=recorded, quiet=quiet)


def lock_named(
    model: str,
    *,
    revision: str | None = None,
    out: Path | None = None,
    sign_key: Path | None = None,
    quiet: bool = False,
) -> tuple[Path, Manifest]:
    """Write the manifest of a folder or hub id to ``out`` (default: NAME.manifest.json), signed on demand."""
    folder = Path(model).expanduser()
    if sign_key:
        check_signing(sign_key)
    if folder.is_dir():
        manifest = lock_folder(folder, quiet=quiet)
    else:
        repo, commit = split_hub_id(model, revision)
        manifest = lock_hub(HubModel(repo=repo, revision=commit))
    path = out or Path(f"{manifest.model.replace('/', '--')}.manifest.json")
    if folder.is_dir() and path.resolve().is_relative_to(folder.resolve()):
        raise ConfigError(
            f"{path} lies in the folder that it records", where="--out", next_step="write it elsewhere"
        )
    manifest.write(path)
    if sign_key:
        sign_manifest(path, sign_key)
    return path, manifest
