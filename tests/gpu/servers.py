"""`decideploy serve` as a process of its own."""

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from started import read_started


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


def images() -> bool:
    """Whether servers take images; DECIDEPLOY_GPU_IMAGES=0 leaves the vision tower out."""
    return os.environ.get("DECIDEPLOY_GPU_IMAGES") != "0"


def eager() -> tuple[str, ...]:
    """DECIDEPLOY_GPU_EAGER=1 neither compiles nor captures: the same numbers, in half the time to start."""
    return ("--enforce-eager",) if os.environ.get("DECIDEPLOY_GPU_EAGER") == "1" else ()


@contextmanager
def serving(model: Path, results: Path, *, no_smoke_test: bool = False, **wishes: object) -> Iterator[Server]:
    """Serve ``model`` until the end, by SIGTERM; ``wishes`` are the workload's, the stages go to results."""
    # The demo model's blocks are so small that a whole card of them takes the engine half a minute to list.
    wishes = {"images": images(), "extra_args": eager(), "gpu_memory_utilization": 0.1} | wishes
    program = Path(__file__).with_name("serve_with.py")
    port = free_port()
    options = {"model": str(model), "port": port, "no_smoke_test": no_smoke_test}
    command = [sys.executable, "-P", str(program), json.dumps(options), json.dumps(wishes)]
    stages = results / f"stages-{model.parent.name}-{port}.txt"
    with (
        stages.open("w") as errors,
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True) as process,
    ):
        try:
            started = read_started(process, stages)
            yield Server(url=started["base_url"], model=model, started=started)
        finally:
            process.send_signal(signal.SIGTERM)
            status = process.wait(120)
        assert status == 0, stages.read_text()
