"""What the deployed server does in Modal's own container entrypoint, with a stand-in for the engine."""

from __future__ import annotations

import json
import os
import shutil
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest
from control_plane import control_plane
from modal_checkout import REVISION, make_checkout
from modal_container import Container, mark_verified, relocate, replace_serve, running
from waiting import PATIENCE_S, free_port

# Each starts processes for seconds, too many for the fast tests.
pytestmark = pytest.mark.integration

MODEL = "autotrust/GEV-26B-Decide-NVFP4"


@pytest.fixture(scope="module")
def deployment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Container]:
    yield from deploy(tmp_path_factory.mktemp("modal-container"), gpu_snapshot=False)


@pytest.fixture(scope="module")
def snapshot_deployment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Container]:
    yield from deploy(tmp_path_factory.mktemp("modal-snapshot"), gpu_snapshot=True)


def deploy(folder: Path, *, gpu_snapshot: bool) -> Iterator[Container]:
    checkout = make_checkout(folder / "checkout")
    port, volume, home = free_port(), folder / "weights", folder / "home"
    relocate(checkout, port=port, volume=volume, home=home)
    replace_serve(checkout)
    checkout.configure(gpus=["H200"], gpu_snapshot=gpu_snapshot)
    with control_plane() as plane:
        result = checkout.deploy(plane)
        assert result.returncode == 0, result.stdout + result.stderr
        # Modal's container has no staged wheel: the objects must come out the same without it.
        shutil.rmtree(checkout.folder / ".cache")
        yield Container(checkout=checkout, plane=plane, port=port, volume=volume, home=home)


@pytest.fixture
def container(deployment: Container) -> Iterator[Container]:
    mark_verified(deployment.volume, model=MODEL, revision=REVISION)
    yield deployment
    shutil.rmtree(deployment.volume)


def test_it_serves_until_sigterm_and_then_drains(container: Container) -> None:
    with running(container, "serves"), ThreadPoolExecutor() as pool:
        container.until_serving()
        slow = pool.submit(httpx.post, f"{container.url}/slow", json={}, timeout=PATIENCE_S, trust_env=False)
        container.until(lambda: "answering slowly" in container.output())
        assert not slow.done()
        container.terminate()
        assert slow.result().json() == {"slow": True}
        assert container.wait() == 0
        container.until(container.child_is_gone)
    assert "drained" in container.output()
    assert container.plane.sent("TaskResult") == []
    committed = {request.volume_id for request in container.plane.sent("VolumeCommit")}
    assert "vo-decideploy-cache" in committed
    argv = json.loads(container.pid_file.with_suffix(".argv").read_text())
    assert argv[:2] == ["serve", str(container.volume / "hub" / "snapshot")]
    assert "--json" in argv


def test_weights_that_no_job_verified_stop_it_before_anything_loads(container: Container) -> None:
    shutil.rmtree(container.volume / "verified")
    with running(container, "serves"):
        container.wait()
    assert "was not verified" in container.failure()
    assert "modal run modal_app.py" in container.output()
    assert not container.pid_file.exists()


def test_a_server_that_dies_while_loading_is_told_and_leaves_nothing(container: Container) -> None:
    with running(container, "dies"):
        container.wait()
        container.until(container.child_is_gone)
    assert "exit status 5 before it was ready" in container.failure()
    assert "the cause of it" in container.output()


def test_the_death_of_the_server_ends_the_container_as_a_failure(container: Container) -> None:
    with running(container, "serves"):
        container.until_serving()
        with pytest.raises(httpx.HTTPError):
            httpx.post(f"{container.url}/die", timeout=PATIENCE_S, trust_env=False)
        container.wait()
        container.until(container.child_is_gone)
    assert "ended by itself with exit status 9" in container.failure()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_container_stopped_while_loading_leaves_nothing(number: int, container: Container) -> None:
    with running(container, "loads"):
        container.until(container.pid_file.exists)
        container.until(container.pid_file.read_text)
        os.kill(container.process.pid, number)
        container.wait()
        container.until(container.child_is_gone)


def test_a_restored_container_is_proven_again(snapshot_deployment: Container) -> None:
    container = snapshot_deployment
    mark_verified(container.volume, model=MODEL, revision=REVISION)
    data = container.plane.function("Decideploy").function_data
    assert data.ranked_functions[0].function.checkpointing_enabled
    assert dict(data.experimental_options) == {"enable_gpu_snapshot": "True"}
    with running(container, "serves", snapshot=True):
        container.until(lambda: container.plane.sent("ContainerCheckpoint") or container.ended())
        assert container.plane.one("ContainerCheckpoint").checkpoint_id == "ch-1"
        container.restore("ta-2")
        container.until(lambda: "proven again" in container.output() or container.ended())
        container.terminate()
        assert container.wait() == 0
    assert container.plane.sent("TaskResult") == []


def test_a_restored_container_that_answers_wrongly_gets_no_traffic(snapshot_deployment: Container) -> None:
    container = snapshot_deployment
    mark_verified(container.volume, model=MODEL, revision=REVISION)
    with running(container, "adapter-is-base", snapshot=True):
        container.until(lambda: container.plane.sent("ContainerCheckpoint") or container.ended())
        container.restore("ta-2")
        container.wait()
        container.until(container.child_is_gone)
    assert "adapter" in container.failure()
