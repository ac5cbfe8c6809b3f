"""Replicas in network namespaces of their own, as on other machines, and a cable that is cut."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import httpx
import pytest
from replicas import CHAT, DECIDE, Fakes, fakes, load
from waiting import until

pytestmark = pytest.mark.system

# Of the range that is kept for benchmarks: no network of this machine has it.
HOSTS = (("198.18.77.1", "198.18.77.2"), ("198.18.77.5", "198.18.77.6"))


def run(*words: str) -> None:
    subprocess.run(words, check=True)


def network(index: int, stack: ExitStack) -> tuple[str, str]:
    """A namespace and its host, with a cable to this one."""
    name, cable = f"replica-{os.getpid()}-{index}", f"r{os.getpid()}-{index}"
    here, there = HOSTS[index]
    run("ip", "netns", "add", name)
    stack.callback(run, "ip", "netns", "delete", name)
    run("ip", "link", "add", cable, "type", "veth", "peer", "name", "cable", "netns", name)
    run("ip", "address", "add", f"{here}/30", "dev", cable)
    stack.callback(run, "ip", "link", "delete", cable)
    run("ip", "link", "set", cable, "up")
    run("ip", "-n", name, "address", "add", f"{there}/30", "dev", "cable")
    run("ip", "-n", name, "link", "set", "cable", "up")
    return name, there


@pytest.fixture
def apart() -> Iterator[Fakes]:
    assert os.geteuid() == 0, "network namespaces are made as root only"
    with ExitStack() as stack:
        networks = [network(index, stack) for index in range(2)]
        yield stack.enter_context(fakes(2, networks))


def test_a_cut_cable_fails_no_decision_and_hangs_none(apart: Fakes) -> None:
    def of_the_first() -> int:
        return apart.front.servers()[0].sessions

    apart.front.drain(1)
    with ThreadPoolExecutor() as pool:
        decision, text = pool.submit(apart.ask, DECIDE, "slow"), pool.submit(apart.ask, CHAT, "slow")
        until(lambda: of_the_first() == 2)
        apart.front.admit(1)
        until(lambda: apart.serving() == [True, True])
        with load(apart.url) as told:
            # Nothing that the first sends arrives any more, and nobody says so.
            run("ip", "-n", apart.namespaces[0], "route", "add", "blackhole", f"{HOSTS[0][0]}/32")
            until(lambda: apart.serving() == [False, True])
            # Long before the limit of a request: the silence is asked for.
            until(lambda: of_the_first() == 0)
        host, port = apart.addresses[1]
        until(lambda: decision.done() or httpx.get(f"http://{host}:{port}/go").is_error)
        assert (decision.result().status_code, decision.result().headers["x-port"]) == (200, str(port))
        assert (text.result().status_code, text.result().headers["retry-after"]) == (503, "5")
        assert (told.faults, set(told.statuses)) == ([], {200})
        run("ip", "-n", apart.namespaces[0], "route", "delete", "blackhole", f"{HOSTS[0][0]}/32")
        until(lambda: apart.serving() == [True, True])
