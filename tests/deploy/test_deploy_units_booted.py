"""The unit under a real systemd, with the real engine: ready, watched, drained, ended."""

import re
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import httpx
import pytest
from booted import booted, copy_of_etc
from waiting import PATIENCE_S, free_port, until

from decideploy.deploy.units import Service, systemd_files, write_files

pytestmark = [pytest.mark.integration, pytest.mark.system]

sys.path.insert(0, str(Path(__file__).parents[1] / "serve"))
from replicas import free_ports, load  # noqa: E402

REPLICAS = Path(__file__).parents[1] / "serve" / "serve_replicas_fakes.py"
KEY = "0123456789abcdef0123456789abcdef"
HEADERS = {"Authorization": f"Bearer {KEY}"}
CLIENTS = 16

# The Python of a test is root's own, where a system unit sees none, so root runs the unit, without any
# capability, and owns its folder; the test's folder is in /tmp.
_OF_A_CHECKOUT = """\
[Service]
User=root
Group=root
ProtectHome=read-only
PrivateTmp=no
StandardOutput=file:{log}
StandardError=file:{log}
"""


# In place of the server: ready at once, then it ends as told, or gives signs of work for a while and no more.
_STAND_IN = """
import os, socket, sys, time
manager = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
manager.connect(os.environ["NOTIFY_SOCKET"])
manager.send(b"READY=1")
if sys.argv[1].isdigit():
    sys.exit(int(sys.argv[1]))
manager.send(b"WATCHDOG=1")
time.sleep(600)
"""


def install(
    root: Path,
    log: Path,
    *,
    model: Path = Path("/srv/model"),
    port: int = 8000,
    more: str = "",
    replicas: bool = False,
) -> None:
    keys = root / "api-keys"
    keys.write_text(f"{KEY}\n")
    service = Service(
        kind="systemd",
        recipe="cpu",
        arguments=(str(model), "--max-model-len=2048", "--drain-timeout=20", "--restart=on-failure"),
        host="127.0.0.1",
        port=port,
        drain_s=20,
        startup_timeout_s=600,
        restart="on-failure",
        max_restarts=3,
        api_key_file=keys,
        replicas=replicas,
    )
    files = systemd_files(service, config=Path("/unused"), state=Path("/unused"))
    for file in files:
        text = file.text.replace("decideploy decideploy", "root root")
        write_files([replace(file, path=root / file.path.relative_to("/"), text=text)])
    changes = root / "etc/systemd/system/decideploy.service.d/checkout.conf"
    changes.parent.mkdir()
    changes.write_text(_OF_A_CHECKOUT.format(log=log) + more)


def stand_in(root: Path, behaviour: str) -> str:
    script = root / "stand_in.py"
    script.write_text(_STAND_IN)
    command = f"{sys.executable} -I -S {script} {behaviour}"
    return f"ExecStart=\nExecStart={command}\nWatchdogSec=2\nRestartSec=100ms\n"


def decide(url: str, number: int) -> int:
    question = {"kind": "noul", "state": f"Box {number} was torn. " * 120, "question": "Was the box whole?"}
    return httpx.post(f"{url}/v1/decide", json=question, headers=HEADERS, timeout=PATIENCE_S).status_code


def in_flight(url: str) -> float:
    text = httpx.get(f"{url}/metrics", headers=HEADERS, timeout=PATIENCE_S).text
    return float(re.search(r"^decideploy_inflight (\S+)$", text, re.MULTILINE)[1])


def test_the_unit_lives_and_ends_as_it_should(tmp_path: Path, demo_model: Path) -> None:
    port, log = free_port(), tmp_path / "service.log"
    copy_of_etc(tmp_path)
    install(tmp_path, log, model=demo_model, port=port)
    url = f"http://127.0.0.1:{port}"
    with booted(tmp_path, log) as machine:
        machine.wait_for("activating")
        machine.wait_for("active", 600)
        assert httpx.get(f"{url}/ready").json()["ready"], "active must mean ready"
        assert machine.properties("StatusText") == {"StatusText": f"ready at {url}"}
        assert httpx.get(f"{url}/v1/models").status_code == 401

        first = machine.properties("WatchdogTimestampMonotonic")
        until(lambda: machine.properties("WatchdogTimestampMonotonic") != first)
        with ThreadPoolExecutor(CLIENTS) as pool:
            flying = [pool.submit(decide, url, number) for number in range(CLIENTS)]
            until(lambda: in_flight(url) > 0)
            machine.systemctl("stop", "--no-block", "decideploy.service")
            assert not all(future.done() for future in flying), "they ended before the signal: ask more"
            assert [future.result() for future in flying] == [200] * CLIENTS
        machine.wait_for("inactive")
        ended = machine.properties("Result", "ExecMainStatus", "NRestarts")
        assert ended == {"Result": "success", "ExecMainStatus": "0", "NRestarts": "0"}
        assert not machine.properties("ControlGroup").get("ControlGroup"), "a process is left"


def test_a_unit_of_replicas_is_renewed_by_a_reload(tmp_path: Path) -> None:
    """With fake engines: what is tried is HAProxy in the unit's sandbox, and the way to the server."""
    port, log = free_ports(4), tmp_path / "service.log"
    copy_of_etc(tmp_path)
    script = f"{sys.executable} {REPLICAS}"
    serve = f"{script} serve old --replicas=2 --port={port}"
    reload = f"{script} rolling-restart --port={port}"
    commands = f"ExecStart=\nExecStart={serve}\nExecReload=\nExecReload={reload}\n"
    install(tmp_path, log, port=port, more=commands, replicas=True)
    url = f"http://127.0.0.1:{port}"
    with booted(tmp_path, log) as machine:
        machine.wait_for("active")
        assert machine.properties("StatusText") == {"StatusText": f"ready at {url}: 2 replicas"}
        with load(url) as told:
            machine.systemctl("reload", "decideploy.service")
        for index in range(2):
            assert f"replica {index}: ready, and serving again" in log.read_text("utf-8")
        assert (told.faults, set(told.statuses)) == ([], {200})
        machine.systemctl("stop", "decideploy.service")
        machine.wait_for("inactive")
        ended = machine.properties("Result", "ExecMainStatus", "NRestarts")
        assert ended == {"Result": "success", "ExecMainStatus": "0", "NRestarts": "0"}
        assert not machine.properties("ControlGroup").get("ControlGroup"), "a process is left"


@pytest.mark.parametrize(
    ("behaviour", "result"),
    [
        # A fault of the settings is there at the next start too.
        ("2", {"Result": "exit-code", "ExecMainStatus": "2", "NRestarts": "0"}),
        # The death of an engine is not; four starts are all that a unit gets.
        ("8", {"Result": "exit-code", "ExecMainStatus": "8", "NRestarts": "4"}),
        ("hangs", {"Result": "watchdog", "ExecMainStatus": "6", "NRestarts": "4"}),
    ],
)
def test_what_ends_is_started_again_unless_it_would_end_the_same_way(
    behaviour: str, result: dict[str, str], tmp_path: Path
) -> None:
    log = tmp_path / "service.log"
    copy_of_etc(tmp_path)
    install(tmp_path, log, more=stand_in(tmp_path, behaviour))
    with booted(tmp_path, log) as machine:
        machine.wait_for("failed")
        assert machine.properties(*result) == result
