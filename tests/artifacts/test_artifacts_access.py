"""What keeps a model away is told before anything is fetched."""

import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
from hub_server import REPO, REVISION, HubServer, point_at, serving
from huggingface_hub import close_session, constants

from decideploy.artifacts.access import check_access
from decideploy.errors import ConfigError


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[HubServer]:
    model = tmp_path / "model"
    model.mkdir()
    (model / "config.json").write_text("{}")
    (model / "model.safetensors").write_bytes(b"0" * 5000)
    with serving(model) as server:
        point_at(server, monkeypatch)
        monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
        yield server


def test_a_folder_asks_nobody(tmp_path: Path) -> None:
    assert check_access(str(tmp_path), revision=None) == f"{tmp_path} is here"


def test_what_can_be_fetched_is_told_with_its_size(hub: HubServer) -> None:
    assert check_access(REPO, revision=REVISION) == f"{REPO} can be fetched: 5,002 bytes"


def test_a_gated_model_is_told_with_the_remedy(hub: HubServer) -> None:
    hub.refusal = (403, "GatedRepo")
    with pytest.raises(ConfigError, match="gated") as caught:
        check_access(REPO, revision=REVISION)
    assert "HF_TOKEN" in caught.value.next_step


def test_offline_without_weights(hub: HubServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    close_session()
    try:
        with pytest.raises(ConfigError, match="HF_HUB_OFFLINE"):
            check_access(REPO, revision=REVISION)
    finally:
        close_session()


def test_a_small_disk(hub: HubServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _path: SimpleNamespace(free=5001))
    with pytest.raises(ConfigError, match=r"5,002 bytes, the disk has room for 5,001"):
        check_access(REPO, revision=REVISION)


@pytest.mark.parametrize(("offset_s", "word"), [(4000, "ahead of"), (-4000, "behind")])
def test_a_wrong_clock(offset_s: float, word: str, hub: HubServer) -> None:
    with pytest.raises(ConfigError, match=word):
        check_access(REPO, revision=REVISION, now=lambda: time.time() + offset_s)


def test_a_branch_is_refused_before_the_hub_is_asked() -> None:
    with pytest.raises(ConfigError, match="revision"):
        check_access(REPO, revision="main")
