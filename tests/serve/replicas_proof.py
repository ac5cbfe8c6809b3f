"""Two real engines behind HAProxy on one machine, measured and put through what operations do to them.

python tests/serve/replicas_proof.py [--port 8000] [--seconds 20] [--operations]

Needs HAProxy, two cores and 10 GiB. Prints one JSON document. Measures one engine on one core and on all of
them, and two replicas behind HAProxy; with ``--operations`` it kills a replica, renews all by ``decideploy
rolling-restart``, updates the model and offers one that its self-test refuses, each under load.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import psutil

QUESTION = {"kind": "noul", "question": "Was the box whole?"}
CLIENTS = 8
PATIENCE_S = 900


@contextmanager
def serving(log: Path, *arguments: str, cores: str = "") -> Iterator[subprocess.Popen[str]]:
    """``decideploy serve``, ready; stopped by SIGTERM."""
    env = dict(os.environ)
    if cores:
        env["VLLM_CPU_OMP_THREADS_BIND"] = cores
    command = [sys.executable, "-m", "decideploy", "serve", "--json", *arguments]
    with (
        log.open("ab") as stages,
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=stages, text=True, env=env) as process,
    ):
        line = process.stdout.readline()
        assert line.startswith('{"schema_version"'), line + log.read_text("utf-8")[-3000:]
        try:
            yield process
        finally:
            process.terminate()
            process.wait(PATIENCE_S)


class Load:
    """Clients that ask one decision after the other; every state is another one."""

    def __init__(self, url: str, clients: int = CLIENTS) -> None:
        self.url, self.statuses, self.seconds = url, Counter[str](), list[float]()
        self.without_advice = 0
        self._ended, self._lock, self._number = threading.Event(), threading.Lock(), 0
        self._pool = ThreadPoolExecutor(clients)
        self._clients = [self._pool.submit(self._ask) for _ in range(clients)]

    def _ask(self) -> None:
        with httpx.Client(timeout=PATIENCE_S, trust_env=False) as client:
            while not self._ended.is_set():
                with self._lock:
                    self._number += 1
                    state = f"Box {self._number} arrived on Monday and its lid was torn. " * 12
                begin = time.monotonic()
                try:
                    reply = client.post(f"{self.url}/v1/decide", json={**QUESTION, "state": state})
                    status = str(reply.status_code)
                    self.without_advice += status != "200" and "retry-after" not in reply.headers
                except httpx.HTTPError as error:
                    status = type(error).__name__
                with self._lock:
                    self.statuses[status] += 1
                    self.seconds.append(time.monotonic() - begin)

    def end(self) -> dict[str, Any]:
        self._ended.set()
        self._pool.shutdown()
        for client in self._clients:
            client.result()
        return {"statuses": dict(self.statuses), "without_retry_after": self.without_advice}


def measure(url: str, seconds: float) -> dict[str, float]:
    """Decisions a second and the median, after a warm-up of a quarter of the time."""
    warm = Load(url)
    time.sleep(seconds / 4)
    warm.end()
    begin, load = time.monotonic(), Load(url)
    time.sleep(seconds)
    told = load.end()
    assert set(told["statuses"]) == {"200"}, told
    passed = time.monotonic() - begin
    return {
        "decisions_a_second": round(len(load.seconds) / passed, 2),
        "p50_ms": round(1000 * statistics.median(load.seconds), 1),
    }


def ready(url: str) -> int:
    document = httpx.get(f"{url}/ready", timeout=PATIENCE_S, trust_env=False).json()
    return int(document["replicas"]["ready"])


def until(condition: Any) -> float:
    begin = time.monotonic()
    while not condition():
        assert time.monotonic() - begin < PATIENCE_S
        time.sleep(0.2)
    return round(time.monotonic() - begin, 1)


def engine_of(process: subprocess.Popen[str], port: int) -> psutil.Process:
    for child in psutil.Process(process.pid).children(recursive=True):
        line = child.cmdline()
        if (
            "--port" in line
            and line[line.index("--port") + 1] == str(port)
            and "reaper.py" not in " ".join(line)
        ):
            return child
    raise AssertionError(port)


def rolling_restart(port: int, *model: str) -> dict[str, Any]:
    command = [sys.executable, "-m", "decideploy", "rolling-restart", "--json", "--port", str(port), *model]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return {"exit": done.returncode, "told": done.stderr.splitlines(), "document": json.loads(done.stdout)}


def proof(port: int, seconds: float, *, operated: bool, folder: Path) -> dict[str, Any]:
    """Everything that was measured and seen; ``left`` are the processes that no server took with it."""
    url, log = f"http://127.0.0.1:{port}", folder / "stages.log"
    found: dict[str, Any] = {}
    arguments = ("--port", str(port), "--max-model-len", "2048")
    cores = sorted(os.sched_getaffinity(0))
    with serving(log, *arguments, cores=str(cores[0])):
        found["one engine, one core"] = measure(url, seconds)
    with serving(log, *arguments, cores=",".join(map(str, cores))):
        found["one engine, all cores"] = measure(url, seconds)
    begin = time.monotonic()
    with serving(log, *arguments, "--replicas", "2") as process:
        found["start of two replicas, s"] = round(time.monotonic() - begin, 1)
        found["two replicas"] = measure(url, seconds)
        if operated:
            found.update(operations(process, port, folder))
    found["left"] = [child.pid for child in psutil.Process().children(recursive=True)]
    return found


def operations(process: subprocess.Popen[str], port: int, folder: Path) -> dict[str, Any]:
    url = f"http://127.0.0.1:{port}"
    found: dict[str, Any] = {}
    load = Load(url)
    until(lambda: load.statuses.total() > 4 * CLIENTS)
    engine_of(process, port + 2).send_signal(signal.SIGKILL)
    until(lambda: ready(url) == 1)
    back_s = until(lambda: ready(url) == 2)
    found["killed replica"] = {**load.end(), "back after s": back_s}
    load = Load(url)
    found["rolling restart"] = rolling_restart(port)
    found["rolling restart"].update(load.end())
    copies = model_copies(folder)
    for name, model in copies.items():
        load = Load(url)
        found[name] = rolling_restart(port, str(model))
        found[name].update(load.end())
        info = httpx.get(f"{url}/replicas/1/v1/decide/info", trust_env=False).json()
        found[name]["then serves"] = info["model"]
    return found


def model_copies(folder: Path) -> dict[str, Path]:
    """The demo model by another name, and once more with golden decisions that are others."""
    from decideploy.serve.stages import demo_model, state_folder

    source = demo_model(state_folder(None))
    good, bad = folder / "second-model", folder / "refused-model"
    for copy in (good, bad):
        shutil.copytree(source, copy)
    document = json.loads((bad / "golden.json").read_text("utf-8"))
    for decision in document["decisions"]:
        decision["probabilities"] = list(reversed(decision["probabilities"]))
    (bad / "golden.json").write_text(json.dumps(document))
    return {"model update": good, "refused update": bad}


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, default=8000)
    parser.add_argument("--seconds", type=float, default=20)
    parser.add_argument("--operations", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as made:
        found = proof(options.port, options.seconds, operated=options.operations, folder=Path(made))
    print(json.dumps(found, indent=1))
