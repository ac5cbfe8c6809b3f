"""Expert kernels by numbers: a small layer through the installed vLLM against dequantised arithmetic.

Each kernel runs in a process of its own (``smoke_program``), whose numbers are judged here.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeAlias

from decideploy.errors import Diagnostic
from decideploy.hardware.kernels import backends
from decideploy.hardware.report import Gpu, HardwareReport, KernelTrial, Reading, SmokeTest, unknown

if TYPE_CHECKING:
    from decideploy.hardware.smoke_layer import Values

# A kernel may be compiled first; FlashInfer's takes minutes on few cores.
LIMIT_S: Final = 600.0
_PROGRAM: Final = "decideploy.hardware.smoke_program"
_SOURCE: Final = "a small expert layer through the installed vLLM"
_SHOWN: Final = 300
_RANK: Final = re.compile(r"^\[rank\d+\]:")
_FAULT: Final = re.compile(r"[\w.]+(Error|Exception|Interrupt)\b")


@dataclass(frozen=True, kw_only=True, slots=True)
class Ended:
    """How a process ended: ``status`` is None when it ran past its limit and was killed."""

    status: int | None
    stderr: str


Run: TypeAlias = Callable[[Sequence[str], Mapping[str, str]], Ended]


def try_kernels(
    report: HardwareReport,
    gpu: Gpu,
    order: Sequence[str],
    *,
    dtype: str | None = None,
    env: Mapping[str, str] | None = None,
    known: Mapping[str, KernelTrial] | None = None,
    run: Run | None = None,
) -> HardwareReport:
    """``report`` with the kernels of ``order`` tried on ``gpu`` until one is right; others become conditions.

    ``dtype`` is that of the activations where the card cannot run the model's bfloat16; ``env`` the
    environment of the processes, which must show them ``gpu`` first; ``known`` are trials that need not be
    repeated; ``run`` runs a command.
    """
    trials: list[KernelTrial] = []
    for backend in order:
        trial = (known or {}).get(backend) or _try(
            backend, dtype or "bfloat16", env or os.environ, run or run_command
        )
        trials.append(trial)
        if trial.verdict == "right":
            break
    test = SmokeTest(gpu_index=gpu.index, trials=tuple(trials))
    return replace(
        report,
        smoke_test=Reading(value=test, source=_SOURCE),
        conditions=(*report.conditions, *_conditions(test)),
    )


def not_tested(report: HardwareReport, why: str) -> HardwareReport:
    """``report`` with the reason why no kernel was tried."""
    return replace(report, smoke_test=unknown(f"not run: {why}"))


def run_command(command: Sequence[str], env: Mapping[str, str], *, limit_s: float = LIMIT_S) -> Ended:
    """Run ``command`` to its end, at most ``limit_s``; nothing that it started outlives it."""
    with tempfile.TemporaryFile("w+", errors="replace") as errors:
        process = subprocess.Popen(
            command, env=env, stdout=subprocess.DEVNULL, stderr=errors, start_new_session=True
        )
        status: int | None = None
        try:
            status = process.wait(limit_s)
        except subprocess.TimeoutExpired:
            pass
        finally:
            _kill_session(process)
        errors.seek(0)
        return Ended(status=status, stderr=errors.read())


def _kill_session(process: subprocess.Popen[bytes]) -> None:
    """What a kernel's compiler left behind goes too; its group has the process's number while one is left."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        return
    finally:
        process.wait()


def _try(backend: str, dtype: str, env: Mapping[str, str], run: Run) -> KernelTrial:
    begin = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="decideploy-kernel-") as folder:
        out = Path(folder) / "out.npz"
        # With -P, so that no module of the working folder is taken for one of ours or the engine's.
        ended = run((sys.executable, "-P", "-m", _PROGRAM, backend, dtype, str(out)), env)
        return _judge(backend, ended, out, seconds=round(time.monotonic() - begin, 1))


def _judge(backend: str, ended: Ended, out: Path, *, seconds: float) -> KernelTrial:
    from decideploy.hardware.smoke_layer import BOUNDS, make_layer, reference, relative_error  # noqa: PLC0415

    row = backends()[backend]
    trial = KernelTrial(
        backend=backend,
        verdict="failed",
        relative_error=None,
        bound=BOUNDS[row.activation],
        seconds=seconds,
    )
    if fault := _fault(ended, out):
        return replace(trial, why=fault)
    output, kernel = _read(out)
    trial = replace(trial, kernel=kernel)
    if kernel != row.log:
        return replace(trial, why=f"could not be tried: the engine took {kernel}")
    found = relative_error(output, reference(make_layer()))
    if found is None:
        return replace(trial, verdict="wrong", why="gives values that are not finite")
    trial = replace(trial, relative_error=found)
    if found > trial.bound:
        return replace(
            trial,
            verdict="wrong",
            why=f"gives wrong numbers: relative error {found:.3f}, at most {trial.bound} is right",
        )
    return replace(trial, verdict="right")


def _fault(ended: Ended, out: Path) -> str:
    """Why there are no numbers, empty where there are."""
    if ended.status is None:
        return f"gave no numbers within {LIMIT_S:.0f} s"
    if ended.status == 0 and out.exists():
        return ""
    how = f"was killed by signal {-ended.status}" if ended.status < 0 else f"ended with status {ended.status}"
    lines = [_RANK.sub("", line).strip() for line in ended.stderr.splitlines() if line.strip()]
    # Behind the fault, libraries may still complain of how the process ends.
    told = [line for line in lines if _FAULT.match(line)] or lines
    return f"{how}: {told[-1][:_SHOWN]}" if told else how


def _read(out: Path) -> tuple[Values, str]:
    import numpy as np  # noqa: PLC0415

    with np.load(out) as found:
        return found["output"], str(found["kernel"])


def _conditions(test: SmokeTest) -> tuple[Diagnostic, ...]:
    if not test.ran:
        remedy = "no kernel gave numbers, so the first is used untested: see docs/probe.md"
    elif test.kernel:
        remedy = f"{test.kernel} is used in its place"
    else:
        remedy = "no kernel is left: see docs/probe.md"
    return tuple(
        Diagnostic(
            code=f"kernel-{trial.verdict}",
            what=f"{trial.backend} {trial.why}",
            where=f"GPU {test.gpu_index}: {_SOURCE}",
            next_step=f"{remedy}; `decideploy probe` tests again",
        )
        for trial in test.trials
        if trial.verdict != "right"
    )
