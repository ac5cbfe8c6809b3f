from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec


@dataclass(frozen=True)
class Keys:
    private: Path
    public: Path


def write_keys(folder: Path) -> Keys:
    folder.mkdir()
    key = ec.generate_private_key(ec.SECP256R1())
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    public = key.public_key().public_bytes(
        serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    (folder / "private.pem").write_bytes(private)
    (folder / "public.pem").write_bytes(public)
    return Keys(folder / "private.pem", folder / "public.pem")


@pytest.fixture
def keys(tmp_path: Path) -> Keys:
    return write_keys(tmp_path / "keys")


@pytest.fixture
def other_keys(tmp_path: Path) -> Keys:
    return write_keys(tmp_path / "other-keys")
