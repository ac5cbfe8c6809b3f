"""A copy of this checkout that can be deployed in a second: a small wheel, and a stand-in for ``serve``."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from control_plane import TOKEN_ID, TOKEN_SECRET, ControlPlane

ROOT = Path(__file__).parents[2]
REVISION = "0123456789abcdef0123456789abcdef01234567"
WHEEL_BYTES = b"a wheel of the right digest"
_COPIED = ("src", "build", "patches", "pyproject.toml", "README.md", "LICENSE", "NOTICE", "modal_app.py")


@dataclass(frozen=True)
class Checkout:
    """``folder`` stands for the repository's root."""

    folder: Path

    def configure(self, **settings: object) -> None:
        """Write deploy/modal.toml: the shipped one with a revision, and ``settings`` over it."""
        lines = (ROOT / "deploy" / "modal.toml").read_text("utf-8").splitlines()
        settings = {"revision": REVISION, **settings}
        kept = [line for line in lines if line.partition(" =")[0] not in settings]
        # JSON's strings, numbers, booleans and lists of them are TOML's.
        written = [f"{key} = {json.dumps(value)}" for key, value in settings.items()]
        path = self.folder / "deploy" / "modal.toml"
        path.parent.mkdir(exist_ok=True)
        path.write_text("\n".join([*kept, *written]) + "\n", "utf-8")

    def environment(self, plane_url: str, **more: str) -> dict[str, str]:
        """Variables for a process that runs this checkout against the control plane at ``plane_url``."""
        inherited = {name: value for name, value in os.environ.items() if not _disturbs(name)}
        return {
            **inherited,
            "PYTHONPATH": os.pathsep.join(
                filter(None, [str(self.folder / "src"), os.environ.get("PYTHONPATH")])
            ),
            "PYTHONWARNINGS": "default",
            "MODAL_SERVER_URL": plane_url,
            "MODAL_TOKEN_ID": TOKEN_ID,
            "MODAL_TOKEN_SECRET": TOKEN_SECRET,
            "MODAL_CONFIG_PATH": "/nonexistent",
            "MODAL_AUTOMOUNT": "1",
            "COLUMNS": "200",
            **more,
        }

    def deploy(self, plane: ControlPlane | str, **env: str) -> subprocess.CompletedProcess[str]:
        """Run ``modal deploy modal_app.py``."""
        url = plane if isinstance(plane, str) else plane.url
        return subprocess.run(
            [sys.executable, "-m", "modal", "deploy", "modal_app.py"],
            cwd=self.folder,
            env=self.environment(url, **env),
            capture_output=True,
            text=True,
            timeout=600,
            check=False,
        )


def _disturbs(name: str) -> bool:
    """Whether a variable leads past the control plane, or makes every process compile its imports."""
    return "proxy" in name.lower() or name == "PYTHONDONTWRITEBYTECODE" or name.startswith("MODAL_")


def make_checkout(folder: Path) -> Checkout:
    """Copy the checkout into ``folder``, configured and with the wheel that its lock names staged."""
    for name in _COPIED:
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, folder / name)
        else:
            shutil.copy(source, folder / name)
    _stage_small_wheel(folder)
    checkout = Checkout(folder)
    checkout.configure()
    return checkout


def _stage_small_wheel(folder: Path) -> None:
    path = folder / "build" / "locks" / "cuda.json"
    lock = json.loads(path.read_bytes())
    lock["wheel"] |= {"size_bytes": len(WHEEL_BYTES), "sha256": hashlib.sha256(WHEEL_BYTES).hexdigest()}
    path.write_text(json.dumps(lock))
    wheel = folder / ".cache" / "dist" / lock["wheel"]["filename"]
    wheel.parent.mkdir(parents=True)
    wheel.write_bytes(WHEEL_BYTES)
