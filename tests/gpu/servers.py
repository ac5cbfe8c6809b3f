"""`decideploy serve` as a process of its own."""

import json
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Server:
    """A server that has passed its self-test; ``started`` is the document that ``serve --json`` printed."""

    url: str
    model: Path
    started: dict


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


@contextmanager
def serving(model: Path, results: Path, *arguments: str) -> Iterator[Server]:
    """``decideploy serve MODEL``, stopped by SIGTERM; its stages stay in the results."""
    command = [sys.executable, "-P", "-m", "decideploy", "serve", str(model), "--port", str(free_port())]
    stages = results / f"stages-{model.name}.txt"
    with (
        stages.open("w") as errors,
        subprocess.Popen(
            [*command, "--json", *arguments], stdout=subprocess.PIPE, stderr=errors, text=True
        ) as process,
    ):
        try:
            line = process.stdout.readline()
            assert line.startswith("{"), stages.read_text() + line
            started = json.loads(line)
            yield Server(url=started["base_url"], model=model, started=started)
        finally:
            process.send_signal(signal.SIGTERM)
            status = process.wait(120)
        assert status == 0, stages.read_text()
