from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path

import huggingface_hub.constants
import huggingface_hub.hf_api
import pytest
from hub_server import REPO, REVISION, HubServer, point_at, serving
from model_edits import Edit, drop, linked_copy, replace_bytes, set_key, set_value

from decideploy import cli
from decideploy.artifacts import HubModel, lock_folder, lock_hub, split_hub_id, verify, verify_hub
from decideploy.errors import ConfigError

# Tens of seconds together; the fast tests keep the single faults.
pytestmark = pytest.mark.integration

REST = "model-00002-of-00002.safetensors"
GATE = "model.language_model.layers.1.experts.3.gate_proj"
# Rules that read a tensor's values, or a tokenizer too large to move.
VALUES = {"adapter-not-finite", "head-delta-disagrees", "head-row-foreign"}


@pytest.fixture
def hub(demo_model_nvfp4: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[HubServer]:
    with serving(linked_copy(demo_model_nvfp4, tmp_path / "hub")) as server:
        point_at(server, monkeypatch)
        yield server


def model() -> HubModel:
    return HubModel(repo=REPO, revision=REVISION)


def test_hub_model_is_verified_from_headers(hub: HubServer, demo_model_nvfp4: Path) -> None:
    remote = model()
    verification = verify_hub(remote)
    assert verification.issues == ()
    assert set(verification.not_run) >= VALUES
    local = verify(demo_model_nvfp4).known_facts()
    facts = verification.known_facts()
    assert facts.weight_bytes == local.weight_bytes
    assert facts.adapter is not None
    assert str(facts.path) == REPO
    # The demo is 110 MB; its tokenizer of 7 MB is most of what was read.
    assert hub.sent_bytes - remote.moved_bytes < 100_000
    assert remote.moved_bytes < 10_000_000


@pytest.mark.parametrize(
    ("code", "edit"),
    [
        ("calibration", set_key("calibration.json", "per_kind.noul", 0)),
        ("index-tensor-absent", drop("model-00001-of-00002.safetensors", "model.language_model.norm.weight")),
        ("header-malformed", replace_bytes("head.safetensors", struct.pack("<Q", 1 << 60))),
        ("input-scale", set_value(REST, f"{GATE}.input_scale", (), 0.0)),
        ("head-tensors", drop("head.safetensors", "proj.bias")),
    ],
)
def test_faults_are_found_on_the_hub(code: str, edit: Edit, hub: HubServer) -> None:
    edit(hub.model)
    assert {issue.code for issue in verify_hub(model()).issues} == {code}


def test_server_without_ranges_is_refused(demo_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with serving(demo_model, ranges=False) as server:
        point_at(server, monkeypatch)
        with pytest.raises(ConfigError, match="ignores ranges"):
            verify_hub(model())


def test_hub_manifest_is_the_folders(hub: HubServer) -> None:
    remote = model()
    manifest = lock_hub(remote)
    assert manifest.files == lock_folder(hub.model).files
    assert (manifest.model, manifest.revision) == (REPO, REVISION)
    assert remote.moved_bytes < 10_000_000


def test_path_outside_the_folder_is_refused(hub: HubServer) -> None:
    hub.extra_names.append("../escape")
    with pytest.raises(ConfigError, match="escape"):
        verify_hub(model())


@pytest.mark.parametrize(
    ("refusal", "reason", "remedy"),
    [
        ((403, "GatedRepo"), "access to the model is gated", "HF_TOKEN"),
        ((401, "RepoNotFound"), "no such model, or a private one", "HF_TOKEN"),
        ((404, "RevisionNotFound"), "the commit does not exist", "commit id"),
        ((404, "EntryNotFound"), "a listed file is gone", "try again"),
        ((500, ""), "the hub cannot be reached", "try again"),
    ],
)
def test_refusal_is_named_with_its_remedy(
    refusal: tuple[int, str], reason: str, remedy: str, hub: HubServer
) -> None:
    hub.refusal = refusal
    with pytest.raises(ConfigError, match=reason) as caught:
        verify_hub(model())
    assert remedy in caught.value.next_step


def test_offline_mode_is_named(hub: HubServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    huggingface_hub.close_session()
    try:
        with pytest.raises(ConfigError, match="HF_HUB_OFFLINE is set"):
            verify_hub(model())
    finally:
        huggingface_hub.close_session()


def test_slow_hub_is_named(hub: HubServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_DOWNLOAD_TIMEOUT", 0.2)
    hub.delay_s = 2
    with pytest.raises(ConfigError, match="did not answer in time"):
        verify_hub(model())


def test_hub_that_is_not_there_is_named(hub: HubServer) -> None:
    hub.socket.close()
    with pytest.raises(ConfigError, match="cannot be reached"):
        verify_hub(model())


def test_short_range_is_named(hub: HubServer) -> None:
    hub.short_ranges = True
    with pytest.raises(ConfigError, match="ended after"):
        verify_hub(model())


def test_unknown_model_is_a_wrong_argument(hub: HubServer) -> None:
    with pytest.raises(ConfigError, match="cannot be read"):
        verify_hub(HubModel(repo="owner/other", revision=REVISION))


def test_commands_take_a_pinned_id(
    hub: HubServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["verify", f"{REPO}@{REVISION}"]) == 0
    assert "not run, their values are on the hub" in capsys.readouterr().out
    assert cli.main(["verify", REPO, "--revision", REVISION]) == 0
    assert cli.main(["verify", REPO]) == 2
    assert cli.main(["lock-model", f"{REPO}@{REVISION}", "--out", str(tmp_path / "m.json")]) == 0


def test_ids_are_pinned() -> None:
    assert split_hub_id(f"a/b@{'1' * 40}", None) == ("a/b", "1" * 40)
    assert split_hub_id("a/b", "2" * 40) == ("a/b", "2" * 40)
    for name, revision in (("a/b", None), ("a/b@main", None), ("a/b", "v1"), ("a", "1" * 40)):
        with pytest.raises(ConfigError):
            split_hub_id(name, revision)
