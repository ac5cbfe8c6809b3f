from __future__ import annotations

import shutil
import tomllib
from pathlib import Path
from typing import Any

import pytest

from decideploy.deploy.modal import ModalConfig, load_config, offers
from decideploy.deploy.modal.config import SERVE_STOP_S
from decideploy.errors import ConfigError
from decideploy.hardware import known_cards
from decideploy.serve import stages

ROOT = Path(__file__).parents[2]
REVISION = "a" * 40
SHIPPED: dict[str, Any] = tomllib.loads((ROOT / "deploy" / "modal.toml").read_text("utf-8"))


def config(**settings: Any) -> ModalConfig:
    return ModalConfig.model_validate({**SHIPPED, "revision": REVISION, **settings})


def test_the_shipped_settings_need_only_a_revision(tmp_path: Path) -> None:
    (tmp_path / "deploy").mkdir()
    path = Path(shutil.copy(ROOT / "deploy" / "modal.toml", tmp_path / "deploy"))
    with pytest.raises(ConfigError, match="revision: Field required") as caught:
        load_config(tmp_path)
    assert "40 hexadecimal digits" in caught.value.next_step
    path.write_text(f'{path.read_text("utf-8")}\nrevision = "{REVISION}"\n')
    assert load_config(tmp_path) == config()


def test_the_environment_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ModalConfig.model_fields:
        monkeypatch.setenv(name.upper(), "1")
        monkeypatch.setenv(f"DECIDEPLOY_{name.upper()}", "1")
    assert config().gpus == ("H200", "H100")


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"gpus": ["nonsense"]}, "Modal offers no 'nonsense'"),
        ({"gpus": []}, "gpus"),
        ({"gpus": ["A10"], "gpu_count": 5}, "at most 4 of A10"),
        ({"gpus": ["H100"], "gpu_count": 9}, "at most 8 of H100"),
        ({"gpu_count": 2, "gpu_snapshot": True}, "one GPU only"),
        ({"compute_regions": ["us-east", "moon"]}, "no region 'moon'"),
        ({"routing_region": "us-central"}, "no region 'us-central'"),
        ({"startup_timeout_s": 1199}, "startup_timeout_s"),
        ({"exit_grace_period_s": SERVE_STOP_S}, "cut the drain short"),
        ({"min_containers": 5}, "above max_containers"),
        ({"target_concurrency": 65}, "429 comes first"),
        ({"revision": "main"}, "revision"),
        ({"base_image": "nvidia/cuda:13.0.1-devel-ubuntu24.04"}, "base_image"),
        ({"base_image": f"nvidia/cuda:13.0.1-runtime-ubuntu24.04@sha256:{'0' * 64}"}, "base_image"),
        ({"gpu": "H200"}, "gpu"),
        ({"hub_secret": "two words"}, "hub_secret"),
    ],
)
def test_wrong_settings_are_refused(settings: dict[str, Any], told: str) -> None:
    with pytest.raises(ValueError, match=told):
        config(**settings)


def test_all_faults_are_told_at_once() -> None:
    with pytest.raises(ValueError, match=r"'nonsense'.*'moon'.*above max_containers"):
        config(gpus=["nonsense"], routing_region="moon", min_containers=9)


def test_the_innermost_wait_ends_first() -> None:
    waits = config(startup_timeout_s=1200)
    assert 0 < waits.engine_timeout_s < waits.ready_timeout_s < waits.startup_timeout_s


def test_gpus_are_written_as_modal_reads_them() -> None:
    assert config(gpus=["B200+", "H100!"]).gpu_requests == ("B200+", "H100!")
    assert config(gpus=["H200"], gpu_count=2).gpu_requests == ("H200:2",)


def test_every_gpu_on_offer_is_a_known_card() -> None:
    for name, offer in offers().gpus.items():
        assert offer.card in known_cards(), name
        assert offer.known_card().memory_bytes > 0
    assert set(offers().regions.routing) <= set(offers().regions.compute)


def test_a_stop_of_serve_fits_into_the_time_that_is_left_for_it() -> None:
    drain = stages.ServeOptions().workload.shutdown_timeout_s
    assert drain + stages._DRAIN_MARGIN_S + 15 < SERVE_STOP_S
    assert config().exit_grace_period_s > SERVE_STOP_S
