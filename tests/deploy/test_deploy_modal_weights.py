from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest

from decideploy.deploy.modal import ModalConfig, ServedModel, fill, verified_model
from decideploy.deploy.modal import staging as staging_module
from decideploy.errors import ConfigError, EngineError, VerificationError

MODEL = "example/model"
REVISION = "b" * 40


def config(revision: str = REVISION) -> ModalConfig:
    return ModalConfig(
        schema_version=1,
        model=MODEL,
        revision=revision,
        base_image=f"nvidia/cuda:13.0.1-devel-ubuntu24.04@sha256:{'0' * 64}",
        gpus=("H200",),
        routing_region="us-east",
        max_containers=1,
    )


@pytest.fixture
def volume(tmp_path: Path, demo_model: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A volume where the hub id already names a folder, so that nothing is downloaded."""
    shutil.copytree(demo_model, tmp_path / MODEL)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_only_a_verified_revision_is_served(volume: Path) -> None:
    with pytest.raises(VerificationError, match=r"modal run modal_app\.py"):
        verified_model(config(), volume)
    verified = fill(config(), volume)
    assert verified.rules_run > 10
    assert verified.size_bytes == sum(f.stat().st_size for f in (volume / MODEL).rglob("*") if f.is_file())
    assert verified_model(config(), volume) == volume / MODEL
    with pytest.raises(VerificationError, match="was not verified"):
        verified_model(config("c" * 40), volume)


def test_a_fault_found_later_takes_the_record_back(volume: Path) -> None:
    fill(config(), volume)
    (volume / MODEL / "calibration.json").unlink()
    with pytest.raises(VerificationError):
        fill(config(), volume)
    with pytest.raises(VerificationError, match="was not verified"):
        verified_model(config(), volume)


def test_a_record_without_its_folder_is_none(volume: Path) -> None:
    fill(config(), volume)
    shutil.rmtree(volume / MODEL)
    with pytest.raises(VerificationError, match="was not verified"):
        verified_model(config(), volume)


def test_a_download_outside_the_volume_is_refused(
    volume: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    with pytest.raises(ConfigError, match="outside the volume"):
        fill(config(), tmp_path_factory.mktemp("other"))


def test_a_server_that_is_never_ready_is_given_up(tmp_path: Path) -> None:
    served = ServedModel(
        [sys.executable, "-c", "import time; time.sleep(60)"], ready_timeout_s=0.3, stop_timeout_s=5.0
    )
    with pytest.raises(EngineError, match="not ready within") as caught:
        served.start()
    assert caught.value.status == 504
    served.stop()


def test_a_proxy_is_left_to_the_client(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTPS_PROXY", "http://proxy.example:3128")
    staging_module.check_control_plane("https://nowhere.invalid")
    for name in staging_module._PROXY_VARIABLES:
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(ConfigError, match="cannot be reached"):
        staging_module.check_control_plane("http://127.0.0.1:1", timeout_s=1.0)
