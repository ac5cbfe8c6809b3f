"""The same container with the real engine: the CPU build and the demo model."""

from __future__ import annotations

import re
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import psutil
import pytest
from control_plane import control_plane
from modal_checkout import REVISION, make_checkout
from modal_container import Container, mark_verified, relocate, running
from waiting import PATIENCE_S, alive, free_port, until

from decideploy.decide import DecideResponse, ask

pytestmark = pytest.mark.integration

CLIENTS = 24


def decision(url: str, number: int) -> DecideResponse:
    state = f"Box {number} was torn. " * 120
    return ask(url, kind="noul", question="Was the box whole?", state=state, timeout_s=PATIENCE_S)


def in_flight(url: str) -> float:
    text = httpx.get(f"{url}/metrics", timeout=PATIENCE_S, trust_env=False).text
    return float(re.search(r"^decideploy_inflight (\S+)$", text, re.MULTILINE)[1])


def test_decisions_in_flight_are_answered_after_sigterm(
    demo_model: Path, engine_home: Path, tmp_path: Path
) -> None:
    checkout = make_checkout(tmp_path / "checkout")
    volume, home, port = tmp_path / "weights", tmp_path / "home", free_port()
    relocate(checkout, port=port, volume=volume, home=home)
    mark_verified(volume, model="autotrust/GEV-26B-Decide-NVFP4", revision=REVISION)
    (engine_home / "vllm").mkdir(exist_ok=True)
    home.mkdir()
    (home / "vllm").symlink_to(engine_home / "vllm")
    shutil.copytree(demo_model, volume / "hub" / "snapshot", dirs_exist_ok=True)
    with control_plane() as plane, ThreadPoolExecutor(CLIENTS) as pool:
        result = checkout.deploy(plane)
        assert result.returncode == 0, result.stdout + result.stderr
        container = Container(checkout=checkout, plane=plane, port=port, volume=volume, home=home)
        with running(container, "none"):
            container.until(lambda: "ready after" in container.output() or container.ended(), 600)
            assert sum(decision(container.url, 0).probabilities) == pytest.approx(1)
            family = psutil.Process(container.process.pid).children(recursive=True)
            flying = [pool.submit(decision, container.url, number) for number in range(CLIENTS)]
            # All of them there, or answered: one that comes after the signal is refused, as it should be.
            container.until(
                lambda: in_flight(container.url) + sum(future.done() for future in flying) >= CLIENTS
            )
            container.terminate()
            assert not all(future.done() for future in flying), "they ended before the signal: ask more"
            ended = [future.exception() for future in flying]
            assert container.wait() == 0
    assert ended == [None] * CLIENTS
    until(lambda: not [process for process in family if alive(process.pid)])
    assert plane.sent("TaskResult") == []
