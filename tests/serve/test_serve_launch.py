import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import FrameType

import psutil
import pytest
from waiting import PATIENCE_S, alive, free_port, until

from decideploy.errors import ConfigError, EngineError
from decideploy.serve import launch
from decideploy.serve.launch import (
    EngineProcess,
    check_port,
    claim_port,
    engine_command,
    engine_environment,
    reachable_host,
)

FAKE = Path(__file__).with_name("fake_engine.py")

PARENT = """
import sys, time
from pathlib import Path
from types import FrameType
from decideploy.serve.launch import EngineProcess
fake, port, pid_file, log = sys.argv[1:]
engine = EngineProcess(
    [sys.executable, fake, port, "deaf-family", pid_file],
    env={}, host="127.0.0.1", port=int(port), log_path=Path(log),
)
engine.start()
engine.wait_ready(120)
print("ready", flush=True)
time.sleep(600)
"""


@pytest.fixture
def port() -> int:
    return free_port()


@pytest.fixture
def pid_file(tmp_path: Path) -> Iterator[Path]:
    path = tmp_path / "pids"
    yield path
    for pid in living(family(path)) if path.exists() else []:
        os.kill(pid, signal.SIGKILL)


def engine(behaviour: str, port: int, tmp_path: Path, *, drain_s: float = 5.0) -> EngineProcess:
    return EngineProcess(
        [sys.executable, str(FAKE), str(port), behaviour, str(tmp_path / "pids")],
        env={},
        host="127.0.0.1",
        port=port,
        log_path=tmp_path / "logs" / "engine.log",
        drain_s=drain_s,
    )


def family(pid_file: Path) -> list[int]:
    return [int(pid) for pid in pid_file.read_text().split()]


def living(pids: list[int]) -> list[int]:
    return [pid for pid in pids if alive(pid)]


def all_end(pids: list[int]) -> None:
    until(lambda: not living(pids), told=lambda: living(pids))


def test_ready_engine_is_logged_and_stops(port: int, tmp_path: Path) -> None:
    with engine("serves", port, tmp_path) as running:
        running.start()
        assert 0 <= running.wait_ready(PATIENCE_S) < PATIENCE_S
        running.check_alive()
        facts = running.log.facts
    assert (facts.moe_backend, facts.kv_cache_tokens) == ("HUMMING", 1_100_145)
    assert facts.kv_cache_bytes == int(2.5 * 1024**3)
    assert running.exit_status == 0
    assert "loading weights" in running.log.path.read_text()


def test_taken_port_is_found_before_the_start(port: int, tmp_path: Path) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", port))
        other.listen()
        with pytest.raises(ConfigError, match=str(port)) as caught:
            engine("serves", port, tmp_path).start()
    assert "--port" in caught.value.next_step
    assert not (tmp_path / "logs").exists()
    check_port("127.0.0.1", port)


def test_death_is_reported_with_lines_and_cause(port: int, tmp_path: Path) -> None:
    with engine("dies", port, tmp_path) as running:
        running.start()
        with pytest.raises(EngineError) as caught:
            running.wait_ready(PATIENCE_S)
    assert "exit status 3" in caught.value.what
    assert "vocab size must be" in caught.value.what
    assert "lm_head LoRA patch" in caught.value.next_step
    assert caught.value.status == 503


def test_death_by_signal_is_named(port: int, tmp_path: Path) -> None:
    with engine("killed", port, tmp_path) as running:
        running.start()
        with pytest.raises(EngineError, match="SIGKILL") as caught:
            running.wait_ready(PATIENCE_S)
    assert "memory" in caught.value.next_step


def test_startup_timeout_shows_the_last_lines(port: int, tmp_path: Path) -> None:
    with engine("hangs", port, tmp_path) as running:
        running.start()
        until(running.log.tail)
        with pytest.raises(EngineError, match="loading weights") as caught:
            running.wait_ready(0.3)
    assert caught.value.status == 504
    assert running.exit_status is not None


def test_a_signal_that_does_not_wake_the_wait_is_heard(port: int, tmp_path: Path) -> None:
    def interrupt(_number: int, _frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    def signal_elsewhere() -> None:
        assert entered.wait(PATIENCE_S)
        # Time to fall asleep: a signal that is earlier would show less, and fail nothing.
        time.sleep(0.3)
        # Taken by this thread: the main one, which waits, is not woken.
        signal.pthread_kill(threading.get_ident(), signal.SIGUSR1)
        if not heard.wait(PATIENCE_S):
            deaf.set()
            running.stop()

    def enter_and_wait(running: EngineProcess) -> None:
        entered.set()
        running.wait()

    entered, heard, deaf = threading.Event(), threading.Event(), threading.Event()
    before = signal.signal(signal.SIGUSR1, interrupt)
    sender = threading.Thread(target=signal_elsewhere)
    try:
        with engine("serves", port, tmp_path) as running:
            running.start()
            running.wait_ready(PATIENCE_S)
            sender.start()
            with pytest.raises(KeyboardInterrupt):
                enter_and_wait(running)
            heard.set()
    finally:
        sender.join()
        signal.signal(signal.SIGUSR1, before)
    assert not deaf.is_set()


def test_missing_command_is_told(port: int, tmp_path: Path) -> None:
    running = EngineProcess(
        ["/nonexistent/engine"], env={}, host="127.0.0.1", port=port, log_path=tmp_path / "log"
    )
    with running:
        running.start()
        with pytest.raises(EngineError, match="cannot run /nonexistent/engine"):
            running.wait_ready(PATIENCE_S)


@pytest.mark.parametrize("behaviour", ["family", "deaf-family"])
def test_stop_leaves_no_process(behaviour: str, port: int, tmp_path: Path, pid_file: Path) -> None:
    running = engine(behaviour, port, tmp_path, drain_s=0.5)
    running.start()
    running.wait_ready(PATIENCE_S)
    pids = family(pid_file)
    assert len(living(pids)) == 3
    running.stop()
    all_end(pids)
    assert running.stop() == running.exit_status


def test_an_engine_that_answered_all_gets_seconds_to_end(
    port: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(launch, "_TEARDOWN_S", 0.3)
    running = engine("lingers", port, tmp_path, drain_s=2 * PATIENCE_S)
    running.start()
    running.wait_ready(PATIENCE_S)
    begin = time.monotonic()
    running.stop()
    assert time.monotonic() - begin < PATIENCE_S


@pytest.mark.parametrize("dies", [True, False])
def test_a_killed_engine_leaves_no_shared_memory(dies: bool, port: int, tmp_path: Path) -> None:
    told = tmp_path / "pids"
    with engine("deaf-shares", port, tmp_path, drain_s=0.3) as running:
        running.start()
        running.wait_ready(PATIENCE_S)
        pid, name = told.read_text().split()
        assert Path("/dev/shm", name).exists()
        if dies:
            os.kill(int(pid), signal.SIGKILL)
            assert running.wait() == 128 + signal.SIGKILL
    assert not Path("/dev/shm", name).exists()


def test_a_second_interrupt_hastens_the_stop(
    port: int, tmp_path: Path, pid_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(launch, "_HASTE_S", 0.1)
    running = engine("deaf-family", port, tmp_path, drain_s=2 * PATIENCE_S)
    running.start()
    running.wait_ready(PATIENCE_S)
    pids = family(pid_file)
    await_drained = running._await_drained

    def interrupted() -> None:
        threading.Timer(0.1, signal.raise_signal, [signal.SIGINT]).start()
        await_drained()

    monkeypatch.setattr(running, "_await_drained", interrupted)
    begin = time.monotonic()
    running.stop()
    assert time.monotonic() - begin < PATIENCE_S
    all_end(pids)


@pytest.mark.integration
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_death_of_the_parent_leaves_no_process(
    number: signal.Signals, port: int, tmp_path: Path, pid_file: Path
) -> None:
    command = [sys.executable, "-c", PARENT, str(FAKE), str(port), str(pid_file), str(tmp_path / "log")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        assert parent.stdout.readline() == "ready\n"
        pids = family(pid_file) + [child.pid for child in psutil.Process(parent.pid).children(recursive=True)]
        assert len(living(pids)) >= 3
        parent.send_signal(number)
        parent.wait(PATIENCE_S)
    all_end(pids)


def test_death_of_the_engine_takes_its_family(port: int, tmp_path: Path, pid_file: Path) -> None:
    with engine("family", port, tmp_path) as running:
        running.start()
        running.wait_ready(PATIENCE_S)
        pids = family(pid_file)
        os.kill(pids[0], signal.SIGKILL)
        assert running.wait() == 128 + signal.SIGKILL
    all_end(pids)


def test_vllm_runs_in_this_python() -> None:
    command = engine_command(("vllm", "serve", "/m"))
    assert command == (sys.executable, "-P", "-m", "vllm.entrypoints.cli.main", "serve", "/m")


@pytest.mark.parametrize(
    ("host", "reached"),
    [("0.0.0.0", "127.0.0.1"), ("::", "[::1]"), ("::1", "[::1]"), ("10.0.0.7", "10.0.0.7")],
)
def test_reachable_host(host: str, reached: str) -> None:
    assert reachable_host(host) == reached


def test_environment_leads_to_the_checked_vllm() -> None:
    found = engine_environment({"A": "plan"}, {"A": "shell", "B": "shell", "PYTHONPATH": "/elsewhere"})
    assert found == {"A": "plan", "B": "shell", "PYTHONSAFEPATH": "1"}


def test_engine_does_not_see_the_working_folder(
    port: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "vllm").mkdir()
    (tmp_path / "vllm" / "__init__.py").write_text("")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    look = "from importlib.util import find_spec; print(getattr(find_spec('vllm'), 'origin', None))"
    running = EngineProcess(
        (*engine_command(("vllm",))[:2], "-c", look),
        env={},
        host="127.0.0.1",
        port=port,
        log_path=tmp_path / "log",
    )
    with running:
        running.start()
        running.wait()
    assert len(running.log.tail()) == 1
    assert str(tmp_path) not in running.log.tail()[0]


def test_second_engine_on_the_port_is_refused_before_the_first_listens(port: int, tmp_path: Path) -> None:
    with engine("hangs", port, tmp_path) as first:
        first.start()
        with pytest.raises(ConfigError, match=f"cannot listen on 127.0.0.1:{port}") as caught:
            engine("serves", port, tmp_path / "second").start()
        with pytest.raises(ConfigError, match="another `decideploy serve`"):
            check_port("127.0.0.1", port)
    assert "--port" in caught.value.next_step
    assert not (tmp_path / "second").exists()
    check_port("127.0.0.1", port)


def test_failed_start_lets_go_of_the_port(port: int, tmp_path: Path) -> None:
    (tmp_path / "logs").write_text("a file")
    with pytest.raises(ConfigError, match="cannot write to the state folder") as caught:
        engine("serves", port, tmp_path).start()
    assert "DECIDEPLOY_HOME" in caught.value.next_step
    claim_port("127.0.0.1", port).close()


@pytest.mark.parametrize("number", [-1, 0, 65536, 2**70])
def test_port_outside_the_range_is_told(number: int) -> None:
    with pytest.raises(ConfigError, match=f"port {number} does not exist") as caught:
        check_port("127.0.0.1", number)
    assert "65535" in caught.value.next_step


@pytest.mark.parametrize(
    ("host", "advice"),
    [("192.0.2.1", "0.0.0.0"), ("name.invalid", "getent"), ("a" * 64, "getent"), ("a\0b", "getent")],
)
def test_address_of_another_machine_gets_its_own_advice(host: str, advice: str, port: int) -> None:
    with pytest.raises(ConfigError, match="cannot listen") as caught:
        check_port(host, port)
    assert advice in caught.value.next_step
    assert "ss -ltnp" not in caught.value.next_step
