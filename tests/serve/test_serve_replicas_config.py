"""HAProxy's configuration, read by HAProxy; and what is said of a HAProxy that will not do."""

from __future__ import annotations

import json
import re
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
from replicas import haproxy

from decideploy.errors import ConfigError
from decideploy.gateway import refusals
from decideploy.serve.replicas import Front, front_config
from decideploy.serve.replicas import front as front_module
from decideploy.serve.replicas.front import FrontProcess, find_haproxy

FRONT = Front(
    host="127.0.0.1", port=8000, stats_port=8001, replicas=(("127.0.0.1", 8002), ("127.0.0.1", 8003))
)
PATHS = ("/v1/decide", "/v1/systemone", "/v1/messages")


@pytest.mark.parametrize("host", ["127.0.0.1", "0.0.0.0", "::", "::1", "localhost"])
def test_haproxy_accepts_it(host: str, tmp_path: Path) -> None:
    path = tmp_path / "haproxy.cfg"
    path.write_text(front_config(replace(FRONT, host=host)))
    done = subprocess.run([haproxy(), "-c", "-f", path], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("host", ["", "a b", "127.0.0.1:1 ssl", "h\n    stats uri /"])
def test_a_host_cannot_add_to_it(host: str) -> None:
    with pytest.raises(ConfigError, match="no address") as caught:
        front_config(replace(FRONT, host=host))
    assert caught.value.where == "--host"


def test_nothing_but_the_public_port_listens_beyond_this_machine() -> None:
    text = front_config(replace(FRONT, host="0.0.0.0"))
    binds = re.findall(r"^ +bind (\S+)$", text, re.MULTILINE)
    assert binds == ["0.0.0.0:8000", "127.0.0.1:8001"]
    assert re.findall(r"stats socket (.+)", text) == ["unix@admin.sock mode 600 level admin"]
    assert "stats admin" not in text


@pytest.mark.parametrize("path", PATHS)
def test_errors_have_the_forms_of_the_gateway(path: str) -> None:
    number = PATHS.index(path)
    texts = re.findall(
        r'set-var-fmt\(txn\.unserved\) "(.*?[^\\])"(?: if|$)', front_config(FRONT), re.MULTILINE
    )
    ours = json.loads(texts[number].replace('\\"', '"'))
    message = "no replica could answer; try again later"
    refusal = refusals.Refusal(status=503, outcome="", code="no_replica", message=message)
    assert ours == json.loads(refusals.body(refusal, path))


def test_limits_follow_those_of_the_replicas() -> None:
    text = front_config(replace(FRONT, request_timeout_s=20.5, body_timeout_s=7, requests=3000))
    for line in ("timeout server 30500ms", "timeout http-request 7000ms", "maxconn 12000"):
        assert f"    {line}\n" in text
    assert "    maxconn 20000\n" in front_config(replace(FRONT, requests=10**6))


def test_only_replicas_of_other_machines_are_given_up_for_their_silence() -> None:
    beyond = front_config(replace(FRONT, replicas=(("127.0.0.1", 8002), ("10.0.0.2", 8000))))
    # On a line of all servers HAProxy 2.6 accepts the limit and does not set it.
    servers = re.findall(r"^ +server \S+ \S+ tcp-ut 15s$", beyond, re.MULTILINE)
    assert len(servers) == 2
    assert "srvtcpka" in beyond
    assert not re.search("tcp-ut|srvtcpka", front_config(FRONT))


def program(folder: Path, text: str) -> dict[str, str]:
    """An environment in which ``haproxy`` is a script that runs ``text``."""
    folder.mkdir(exist_ok=True)
    path = folder / "haproxy"
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return {"PATH": str(folder)}


@pytest.fixture
def nothing_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(front_module, "_SYSTEM_FOLDERS", ())


@pytest.mark.usefixtures("nothing_installed")
def test_a_missing_haproxy_is_told(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="HAProxy is not installed") as caught:
        find_haproxy({"PATH": str(tmp_path)})
    assert "apt-get install haproxy" in caught.value.next_step


@pytest.mark.usefixtures("nothing_installed")
@pytest.mark.parametrize(
    ("told", "what"),
    [
        ("HA-Proxy version 1.8.27-1 2020/11/06", "1.8.27-1 is too old"),
        ("HAProxy version 2.4.22-0ubuntu0.22.04.3 2023/08/14", "is too old"),
        ("a shell", "tells no version"),
    ],
)
def test_a_haproxy_that_will_not_do_is_told(told: str, what: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=what) as caught:
        find_haproxy(program(tmp_path / "bin", f"echo '{told}'"))
    assert "2.6 or newer" in caught.value.next_step


@pytest.mark.usefixtures("nothing_installed")
@pytest.mark.parametrize("told", ["HAProxy version 2.6.0 2022/05/31", "HAProxy version 3.10-dev1 2026/01/01"])
def test_newer_ones_will_do(told: str, tmp_path: Path) -> None:
    assert find_haproxy(program(tmp_path / "bin", f"echo '{told}'")) == tmp_path / "bin" / "haproxy"


def test_a_configuration_that_haproxy_refuses_is_told_before_anything_starts(tmp_path: Path) -> None:
    program(tmp_path / "bin", "echo '[ALERT] (1) : parsing [haproxy.cfg:9] : unknown keyword' >&2; exit 1")
    front = FrontProcess(tmp_path / "bin" / "haproxy", FRONT, tmp_path / "run", tmp_path / "log")
    with pytest.raises(ConfigError, match=r"refuses its configuration.*unknown keyword") as caught:
        front.check()
    assert caught.value.where == str(tmp_path / "run" / "haproxy.cfg")
    assert (tmp_path / "run").stat().st_mode & 0o777 == 0o700
