"""A real systemd as the first process of its own namespaces, with one unit and copies of /etc and /run."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import psutil
from waiting import PATIENCE_S, until

SYSTEMD = "/lib/systemd/systemd"

# Without these targets systemd refuses to boot; none starts anything else.
_TARGETS = ("basic", "sysinit", "shutdown", "network-online")

_BOOT = """
set -eu
# As on a booted machine: systemd mounts credentials from another namespace.
mount --make-rshared /
mount -t tmpfs tmpfs /run
mount --bind "$1/etc" /etc
mount -t tmpfs tmpfs /var/lib
umount -R /sys/fs/cgroup
mount -t cgroup2 none /sys/fs/cgroup
systemd-sysusers decideploy-user.conf
systemd-tmpfiles --create decideploy.conf
exec env -i PATH="$PATH" container=test SYSTEMD_UNIT_PATH=/etc/systemd/system \\
  "$2" --system --unit=decideploy.service --log-target=console --show-status=no
"""


class Machine:
    """The booted systemd, seen from outside."""

    def __init__(self, process: subprocess.Popen[bytes], log: Path) -> None:
        self._process, self._log = process, log

    def systemctl(self, *arguments: str) -> str:
        """Run ``systemctl`` inside; its output."""
        first = psutil.Process(self._process.pid).children()
        if not first:
            return ""
        command = ["nsenter", "--target", str(first[0].pid), "--all", "systemctl", *arguments]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        return done.stdout + done.stderr

    def properties(self, *names: str) -> dict[str, str]:
        """Properties of the unit."""
        told = self.systemctl("show", "decideploy.service", f"--property={','.join(names)}")
        return dict(line.split("=", 1) for line in told.splitlines() if "=" in line)

    def wait_for(self, state: str, timeout_s: float = PATIENCE_S) -> None:
        """Until the unit is in ``state``; AssertionError with the log when it failed or took longer."""
        ended = {"failed", state}
        until(
            lambda: self.properties("ActiveState").get("ActiveState") in ended,
            timeout_s,
            pause_s=0.5,
            told=lambda: self._log.read_text("utf-8") if self._log.exists() else "the unit wrote nothing",
        )
        found = self.properties("ActiveState", "Result", "ExecMainStatus")
        assert found["ActiveState"] == state, f"{found}\n{self._log.read_text('utf-8')}"


@contextmanager
def booted(root: Path, service_log: Path) -> Iterator[Machine]:
    """Boot with ``root``'s ``etc`` as /etc, the rest of this machine beneath; everything ends at the end."""
    units = root / "etc" / "systemd" / "system"
    for name in _TARGETS:
        (units / f"{name}.target").write_text(f"[Unit]\nDescription={name}\n")
    namespaces = ["--fork", "--pid", "--kill-child", "--mount", "--mount-proc", "--cgroup", "--uts", "--ipc"]
    command = ["unshare", *namespaces, "sh", "-c", _BOOT, "boot", str(root), SYSTEMD]
    with (root / "boot.log").open("wb") as log, _killed(command, log.fileno()) as process:
        yield Machine(process, service_log)


@contextmanager
def _killed(command: Sequence[str], log: int) -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
    try:
        yield process
    finally:
        # The first process of a namespace does not end by SIGTERM; with it goes all that it holds.
        process.kill()
        process.wait()


def copy_of_etc(root: Path) -> None:
    """A copy of /etc below ``root``, where files may be installed without touching this machine."""
    assert os.geteuid() == 0, "systemd boots in namespaces as root only"
    shutil.copytree("/etc", root / "etc", symlinks=True)
    shutil.rmtree(root / "etc" / "systemd" / "system")
    (root / "etc" / "systemd" / "system").mkdir()
