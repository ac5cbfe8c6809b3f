"""nix/offline over a copy of the checkout that a test may edit, with a store of its own."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True, kw_only=True)
class Flake:
    """``checkout`` built with the upstream wheels of ``wheelhouse`` into ``store``."""

    checkout: Path
    store: Path
    wheelhouse: Path

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        environment = os.environ | {
            "DECIDEPLOY_VENV": sys.prefix,
            "DECIDEPLOY_WHEELHOUSE": str(self.wheelhouse),
            "DECIDEPLOY_NIX_STORE": str(self.store),
        }
        return subprocess.run(
            [self.checkout / "nix" / "offline", *arguments],
            cwd=self.checkout,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )

    def build(self, output: str, *options: str) -> Path:
        """Build an output and return where it lies on this machine."""
        done = self.run("build", f"path:.#{output}", "--no-link", "--json", *options)
        assert done.returncode == 0, done.stderr
        path = json.loads(done.stdout)[0]["outputs"]["out"]
        return Path(f"{self.store}{path}")

    def refusal(self, output: str) -> str:
        """Build an output that must fail and return what nix says, build log included."""
        done = self.run("build", f"path:.#{output}", "--no-link", "--print-build-logs")
        assert done.returncode != 0, f"{output} was built"
        return done.stderr

    def outputs(self) -> dict[str, Any]:
        done = self.run("flake", "show", "path:.", "--json")
        assert done.returncode == 0, done.stderr
        shown: dict[str, Any] = json.loads(done.stdout)
        return shown


def copy_checkout(target: Path) -> Path:
    """Copy what git tracks or would track, as it is now."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    for name in filter(None, listed.split("\0")):
        if (ROOT / name).is_file():
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, target / name)
    return target


def edit_lock(checkout: Path, changes: Mapping[str, Any], recipe: str = "cpu") -> None:
    """Set keys of a lock by their dotted path."""
    path = checkout / "build" / "locks" / f"{recipe}.json"
    document = json.loads(path.read_text())
    for key, value in changes.items():
        *parents, last = key.split(".")
        target = document
        for parent in parents:
            target = target[parent]
        target[last] = value
    path.write_text(json.dumps(document, indent=2))
