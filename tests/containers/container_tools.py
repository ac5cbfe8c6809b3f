"""buildah and podman over a storage of their own, with the settings that work inside another container."""

from __future__ import annotations

import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from decideploy.containers import ImageContext, build_command

ROOT = Path(__file__).resolve().parents[2]
BASE = "localhost/decideploy-base:bookworm"
TOOLS = {
    "buildah": "buildah",
    "mmdebstrap": "mmdebstrap",
    "podman": "podman",
    "runc": "runc",
    "unshare": "util-linux",
}
# Without systemd, and where limits cannot be raised.
NESTED = (
    *("--network", "host", "--ulimit", "nofile=1024:4096", "--ulimit", "nproc=4096:4096"),
    *("--read-only", "--read-only-tmpfs=false", "--shm-size", "1g", "--rm"),
)


def missing() -> str:
    """Why images cannot be built here; empty if they can."""
    packages = sorted({package for tool, package in TOOLS.items() if shutil.which(tool) is None})
    if packages:
        return f"install {', '.join(packages)}: images are built and run for real"
    return "run as root: images are built without a daemon and without a network" if os.geteuid() else ""


@dataclass(frozen=True, kw_only=True)
class Containers:
    """``folder`` holds the storage; everything in it goes when :meth:`remove` is called."""

    folder: Path

    def run(self, *command: str | Path) -> subprocess.CompletedProcess[str]:
        """Run a program over the storage; it must succeed."""
        done = self.attempt(*command)
        assert done.returncode == 0, f"{command}\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}"
        return done

    def attempt(self, *command: str | Path, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
        self.folder.mkdir(exist_ok=True)
        settings = self.folder / "storage.conf"
        folders = f'graphroot = "{self.folder}/graph"\nrunroot = "{self.folder}/run"\n'
        settings.write_text(f'[storage]\ndriver = "overlay"\n{folders}')
        environment = os.environ | {
            "CONTAINERS_STORAGE_CONF": str(settings),
            "BUILDAH_ISOLATION": "chroot",
            "TMPDIR": str(self.folder),
        }
        return subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, check=False)

    def build(self, context: ImageContext, tag: str) -> None:
        """Build without a network."""
        command, folder = build_command(context, "buildah", tag=tag, hermetic=True)
        done = self.attempt(*command, cwd=folder)
        assert done.returncode == 0, f"{done.stdout[-2000:]}\n{done.stderr[-4000:]}"

    def stored(self, tag: str) -> Path:
        """Write an image to a folder and return that."""
        out = self.folder / tag.replace(":", "-")
        self.run("buildah", "push", "--quiet", "--disable-compression", tag, f"dir:{out}")
        return out

    def podman(
        self, tag: str, *command: str, volume: Path, mounts: tuple[str, ...] = ()
    ) -> subprocess.CompletedProcess[str]:
        """Run an image as its own user, its root read-only, with ``volume`` for all that it writes."""
        volume.mkdir(exist_ok=True)
        os.chown(volume, 10001, 10001)
        volumes = [
            word for mount in (f"{volume}:/var/lib/decideploy", *mounts) for word in ("--volume", mount)
        ]
        podman = ("podman", "--runtime", "runc", "--cgroup-manager", "cgroupfs", "run", *NESTED, *volumes)
        return self.attempt(*podman, f"localhost/{tag}", *command)

    def remove(self) -> None:
        # The storage mounts its folder over itself and leaves that to the end of the machine.
        if (self.folder / "graph" / "overlay").is_mount():
            self.run("umount", "--recursive", self.folder / "graph" / "overlay")
        shutil.rmtree(self.folder)
