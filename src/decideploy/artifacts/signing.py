"""Sign a manifest with a local key, and verify the signature, through ``model-signing``.

The signature is a sigstore bundle over the manifest file, made with an elliptic-curve key in PEM: no
account, no network and no transparency log. Needs the optional dependency ``model-signing``.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from decideploy.errors import ConfigError, IntegrityError


def signature_path(manifest: Path) -> Path:
    """Where the signature of a manifest lies: beside it, with ``.sig`` added."""
    return manifest.with_name(manifest.name + ".sig")


def check_signing(private_key: Path) -> None:
    """Refuse what cannot sign before the hashes are made: ConfigError without library or key file."""
    _model_signing("signing")
    if not private_key.is_file():
        raise ConfigError(
            f"{private_key} is no file",
            where="--sign-key",
            next_step="give an elliptic-curve private key in PEM, without a password",
        )


def sign_manifest(manifest: Path, private_key: Path) -> Path:
    """Sign the file ``manifest``; returns the signature's path. ConfigError without key or library."""
    signing = _model_signing("signing")
    signature = signature_path(manifest)
    try:
        with _alone(manifest) as folder:
            signing.Config().use_elliptic_key_signer(private_key=private_key).sign(folder, signature)
    except (OSError, ValueError, TypeError) as error:
        raise ConfigError(
            f"{manifest} cannot be signed: {error}",
            where=str(private_key),
            next_step="give an elliptic-curve private key in PEM, without a password",
        ) from error
    return signature


def verify_signature(manifest: Path, public_key: Path) -> None:
    """Check the manifest's signature; IntegrityError when it is missing or does not fit."""
    verifying = _model_signing("verifying")
    signature = signature_path(manifest)
    if not signature.is_file() or not public_key.is_file():
        raise IntegrityError(
            f"{signature if not signature.is_file() else public_key} is missing",
            where=str(manifest),
            next_step="sign it with `decideploy lock-model --sign-key` or `decideploy attest --key`",
        )
    try:
        with _alone(manifest) as folder:
            verifying.Config().use_elliptic_key_verifier(public_key=public_key).verify(folder, signature)
    # The library has no common base for its failures; none of them may pass as a valid signature.
    except Exception as error:
        raise IntegrityError(
            f"the signature does not fit: {error}",
            where=str(signature),
            next_step="get manifest, signature and public key from the one who signed",
        ) from error


@contextmanager
def _alone(manifest: Path) -> Iterator[Path]:
    """A folder that holds nothing but the manifest, under a fixed name: the library signs folders."""
    with TemporaryDirectory() as folder:
        shutil.copyfile(manifest, Path(folder) / "manifest.json")
        yield Path(folder)


def _model_signing(module: str) -> Any:
    from importlib import import_module  # noqa: PLC0415

    try:
        return import_module(f"model_signing.{module}")
    except ImportError as error:
        raise ConfigError(
            "model-signing is not installed",
            where="signing or verifying with a key",
            next_step="install decideploy with its extra `signing`",
        ) from error
