"""Run one command so that nothing of it outlives the caller.

    reaper.py LIFELINE_FD COMMAND…

LIFELINE_FD is the read end of a pipe whose only write end is held by the caller. It closes when the caller
stops or dies, even by SIGKILL; then every descendant is killed. SIGTERM and SIGINT are passed on to the
command as SIGTERM, SIGUSR1 as itself: it may drain. Ends with the command's status (128 + signal when it was
killed).

A file of its own with the standard library only: it is run by path, so that it starts in milliseconds and
imports nothing of the package.
"""

import contextlib
import ctypes
import os
import select
import signal
import sys
import time

_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36
_POLL_S = 0.1
_SWEEP_POLL_S = 0.02
_SWEEP_S = 10.0
# multiprocessing's tracker unlinks the shared memory of those that were killed, then ends by itself.
_TRACKER, _TRACKER_S = b"resource_tracker", 2.0


def main(argv: list[str]) -> int:
    """Run ``argv[1:]`` until it ends or the lifeline ``argv[0]`` closes; returns its exit status."""
    lifeline = int(argv[0])
    os.set_inheritable(lifeline, False)
    # Grandchildren whose parent dies become ours instead of init's, so that they can be found and killed.
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)
    child = _spawn(argv[1:])
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda _number, _frame: _kill(child, signal.SIGTERM))
    signal.signal(signal.SIGUSR1, lambda _number, _frame: _kill(child, signal.SIGUSR1))
    status = _wait(child, lifeline)
    _sweep()
    return status


def _prctl(option: int, value: int) -> None:
    ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0)


def _spawn(command: list[str]) -> int:
    child = os.fork()
    if child:
        return child
    try:
        _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        os.setpgid(0, 0)
        os.execvp(command[0], command)
    except OSError as error:
        sys.stderr.write(f"cannot run {command[0]}: {error}\n")
    os._exit(127)


def _wait(child: int, lifeline: int) -> int:
    """The child's exit status; when the lifeline closes first, after killing it."""
    while True:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            return _exit_status(status)
        readable, _, _ = select.select([lifeline], [], [], _POLL_S)
        if readable:
            # Not its whole group: the tracker is in it.
            _kill(child, signal.SIGKILL)
            return _exit_status(os.waitpid(child, 0)[1])


def _exit_status(status: int) -> int:
    code = os.waitstatus_to_exitcode(status)
    return code if code >= 0 else 128 - code


def _sweep() -> None:
    """Kill descendants until none is left: each that dies hands its own children to us."""
    begin = time.monotonic()
    while time.monotonic() < begin + _SWEEP_S:
        patient = time.monotonic() < begin + _TRACKER_S
        for pid in _children():
            if not (patient and _is_tracker(pid)):
                _kill(pid, signal.SIGKILL)
        try:
            ended, _ = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if not ended:
            time.sleep(_SWEEP_POLL_S)


def _is_tracker(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            return _TRACKER in file.read()
    except OSError:
        return False


def _children() -> list[int]:
    with open(f"/proc/self/task/{os.getpid()}/children", encoding="ascii") as file:
        return [int(pid) for pid in file.read().split()]


def _kill(pid: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
