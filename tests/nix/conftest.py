"""A flake to build, and a copy of it to spoil."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from nix_offline import Flake, copy_checkout

from decideploy.pins import cache_folder, fetch, load_recipe


def missing() -> str:
    """Why the flake cannot be built here; empty if it can."""
    if shutil.which("nix") is None:
        return "nix is not installed (Debian: nix-bin)"
    return "nix without a daemon sets up its sandbox as root" if os.geteuid() else ""


@pytest.fixture(scope="session")
def flake(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Flake]:
    """The checkout as it is."""
    if reason := missing():
        # CI installs nix-bin, so there a skip would hide a fault.
        (pytest.fail if os.environ.get("CI") else pytest.skip)(reason)
    wheelhouse = cache_folder()
    for recipe in ("cpu", "cuda"):
        fetch(load_recipe(recipe).wheel_artifact, wheelhouse)
    folder = tmp_path_factory.mktemp("nix")
    yield Flake(
        checkout=copy_checkout(folder / "checkout"), store=folder / "store", wheelhouse=wheelhouse.resolve()
    )
    # Three sessions' stores, which pytest would keep, are gigabytes.
    shutil.rmtree(folder)


@pytest.fixture
def spoiled(flake: Flake, tmp_path: Path) -> Flake:
    """A copy to edit, built into the same store."""
    return replace(flake, checkout=copy_checkout(tmp_path / "checkout"))
