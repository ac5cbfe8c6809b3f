"""Python modules run as forks of one process, which has imported what takes most of their start.

python forks.py MODULE…    imports the modules, then takes orders: lines of JSON on its standard input
"""

from __future__ import annotations

import importlib
import json
import os
import signal
import subprocess
import sys
import traceback
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn, Self

from waiting import PATIENCE_S, alive, until


@dataclass(frozen=True)
class Fork:
    """One run of a module; ``output`` has what it printed, by whatever code."""

    forks: Forks
    pid: int
    output: Path

    def signal(self, number: signal.Signals) -> None:
        os.kill(self.pid, number)

    def exit_status(self, within_s: float = PATIENCE_S) -> int:
        """Its exit status once it has ended, negative when a signal ended it."""
        until(lambda: not alive(self.pid), within_s, told=lambda: self.output.read_text()[-4000:])
        return self.forks.order(wait=self.pid)


class Forks:
    """The process that forks; leaving it as a context kills what still runs.

    ``modules`` are imported before the first fork and ``env`` is set before that. A module is run by its
    ``main()``.
    """

    def __init__(self, modules: Sequence[str], *, env: Mapping[str, str], log: Path) -> None:
        self.log = log
        with log.open("wb") as errors:
            self._process = subprocess.Popen(
                [sys.executable, __file__, *modules],
                env=env,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
            )

    def start(self, module: str, *arguments: str, output: Path, env: Mapping[str, str] | None = None) -> Fork:
        """Run ``module`` with ``arguments`` as its command line and ``env`` over the environment."""
        order = {"module": module, "arguments": arguments, "output": str(output), "env": dict(env or {})}
        return Fork(self, self.order(**order), output)

    def order(self, **order: Any) -> int:
        print(json.dumps(order), file=self._process.stdin, flush=True)
        answer = self._process.stdout.readline()
        assert answer, self.log.read_text()[-4000:]
        return int(answer)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        with self._process:
            self._process.stdin.close()


def serve(modules: Sequence[str]) -> None:
    # Whatever is imported prints to standard output.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    for module in modules:
        importlib.import_module(module)
    running: set[int] = set()
    for line in sys.stdin:
        order = json.loads(line)
        if pid := order.get("wait"):
            running.discard(pid)
            answer = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        elif answer := os.fork():
            running.add(answer)
        else:
            run(**order)
        print(answer, file=answers, flush=True)
    for pid in running:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def run(module: str, arguments: Sequence[str], output: str, env: Mapping[str, str]) -> NoReturn:
    written = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    nothing = os.open(os.devnull, os.O_RDONLY)
    for source, target in ((nothing, 0), (written, 1), (written, 2)):
        os.dup2(source, target)
    os.environ.update(env)
    sys.argv = [module, *arguments]
    status = 1
    try:
        importlib.import_module(module).main()
        status = 0
    except SystemExit as ended:
        status = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    except BaseException:
        traceback.print_exc()
    sys.stdout.flush()
    sys.stderr.flush()
    # Not through what the parent has registered for its own end.
    os._exit(status)


if __name__ == "__main__":
    serve(sys.argv[1:])
