from __future__ import annotations

import hashlib
import json
from pathlib import Path
from types import SimpleNamespace

import pytest

from decideploy import cli
from decideploy.artifacts.manifest import Manifest, compare, hash_files, lock_folder
from decideploy.artifacts.named import lock_named
from decideploy.artifacts.signing import sign_manifest, signature_path, verify_signature
from decideploy.errors import ConfigError, IntegrityError


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    root = tmp_path / "model"
    (root / "sub").mkdir(parents=True)
    (root / ".cache").mkdir()
    for name, content in {"a": b"1", "b": b"22", "sub/c": b"333", ".cache/x": b"", "empty": b""}.items():
        (root / name).write_bytes(content)
    return root


def test_manifest_records_size_and_sha256_of_all_but_hidden_files(folder: Path) -> None:
    manifest = lock_folder(folder)
    assert list(manifest.files) == ["a", "b", "empty", "sub/c"]
    assert manifest.files["sub/c"].size_bytes == 3
    assert manifest.files["sub/c"].sha256 == hashlib.sha256(b"333").hexdigest()
    assert manifest.model == "model"


def test_extra_missing_and_mismatched_are_told_apart(folder: Path) -> None:
    manifest = lock_folder(folder)
    (folder / "new").write_bytes(b"")
    (folder / "a").unlink()
    (folder / "b").write_bytes(b"23")
    (folder / "sub/c").write_bytes(b"3333")
    found = compare(manifest, folder)
    assert (found.extra, found.missing) == (("new",), ("a",))
    assert list(found.mismatched) == ["b", "sub/c"]
    assert "sha256" in found.mismatched["b"]
    assert found.mismatched["sub/c"] == "4 bytes, not 3"


def test_manifest_survives_its_file(folder: Path, tmp_path: Path) -> None:
    manifest = lock_folder(folder, name="owner/name", revision="0" * 40)
    manifest.write(tmp_path / "m.json")
    assert Manifest.read(tmp_path / "m.json") == manifest


@pytest.mark.parametrize("content", ["", "[]", '{"model": "x", "files": {"a": {"size_bytes": -1}}}'])
def test_other_files_are_no_manifests(content: str, tmp_path: Path) -> None:
    (tmp_path / "m.json").write_text(content)
    with pytest.raises(ConfigError, match="no manifest"):
        Manifest.read(tmp_path / "m.json")


def test_progress_goes_to_standard_error(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    digests = hash_files([folder / "a"], quiet=False)
    assert digests[folder / "a"] == hashlib.sha256(b"1").hexdigest()
    assert capsys.readouterr().out == ""


def test_lock_and_verify_by_command(
    demo_model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "m.json"
    assert cli.main(["lock-model", str(demo_model), "--out", str(out)]) == 0
    document = json.loads(out.read_text())
    document["files"]["gone.txt"] = {"size_bytes": 1, "sha256": "0" * 64}
    out.write_text(json.dumps(document))
    assert cli.main(["verify", str(demo_model), "--manifest", str(out)]) == 5
    assert "[manifest-missing] (1)" in capsys.readouterr().out


def test_manifest_inside_its_own_folder_is_refused(demo_model: Path) -> None:
    assert cli.main(["lock-model", str(demo_model), "--out", str(demo_model / "m.json")]) == 2
    assert not (demo_model / "m.json").exists()


def test_missing_signature_is_no_valid_signature(folder: Path, tmp_path: Path) -> None:
    pytest.importorskip("model_signing")
    lock_folder(folder).write(tmp_path / "m.json")
    with pytest.raises(IntegrityError, match="missing"):
        verify_signature(tmp_path / "m.json", tmp_path / "key.pub")


def key_pair(folder: Path, name: str) -> tuple[Path, Path]:
    ec = pytest.importorskip("cryptography.hazmat.primitives.asymmetric.ec")
    from cryptography.hazmat.primitives import serialization

    private = ec.generate_private_key(ec.SECP256R1())
    pem, form = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
    private_path, public_path = folder / f"{name}.pem", folder / f"{name}.pub"
    private_path.write_bytes(private.private_bytes(pem, form, serialization.NoEncryption()))
    public = private.public_key()
    public_path.write_bytes(public.public_bytes(pem, serialization.PublicFormat.SubjectPublicKeyInfo))
    return private_path, public_path


def test_signature_holds_for_its_manifest_and_key_only(folder: Path, tmp_path: Path) -> None:
    pytest.importorskip("model_signing")
    private, public = key_pair(tmp_path, "ours")
    _, other = key_pair(tmp_path, "theirs")
    manifest = tmp_path / "m.json"
    lock_folder(folder).write(manifest)
    assert sign_manifest(manifest, private) == signature_path(manifest)
    verify_signature(manifest, public)
    with pytest.raises(IntegrityError):
        verify_signature(manifest, other)
    manifest.write_text(manifest.read_text() + " ")
    with pytest.raises(IntegrityError):
        verify_signature(manifest, public)


def test_what_is_no_key_is_a_wrong_argument(folder: Path, tmp_path: Path) -> None:
    pytest.importorskip("model_signing")
    lock_folder(folder).write(tmp_path / "m.json")
    (tmp_path / "key.pem").write_text("no key")
    with pytest.raises(ConfigError, match="cannot be signed"):
        sign_manifest(tmp_path / "m.json", tmp_path / "key.pem")


def test_key_without_library_tells_what_to_install(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(__import__("sys").modules, "model_signing.signing", None)
    lock_folder(folder).write(tmp_path / "m.json")
    with pytest.raises(ConfigError, match="not installed"):
        sign_manifest(tmp_path / "m.json", tmp_path / "key.pem")


@pytest.mark.parametrize("installed", [True, False])
def test_nothing_is_hashed_for_a_manifest_that_cannot_be_signed(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, installed: bool
) -> None:
    monkeypatch.setattr(
        "decideploy.artifacts.named.lock_folder", lambda *_args, **_named: pytest.fail("hashed")
    )
    library = SimpleNamespace() if installed else None
    monkeypatch.setitem(__import__("sys").modules, "model_signing.signing", library)
    out = tmp_path / "m.json"
    with pytest.raises(ConfigError, match="is no file" if installed else "not installed"):
        lock_named(str(folder), out=out, sign_key=tmp_path / "absent.pem")
    assert not out.exists()
