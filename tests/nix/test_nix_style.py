"""The Nix files keep one style, and the lock pins what the flake asks for. Needs no nix."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FILES = [ROOT / "flake.nix", *sorted((ROOT / "nix").rglob("*.nix"))]


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_layout(path: Path) -> None:
    text = path.read_text()
    assert text.endswith("\n")
    assert not text.endswith("\n\n")
    for number, line in enumerate(text.splitlines(), start=1):
        assert line == line.rstrip(), f"{path.name}:{number} ends in blanks"
        assert "\t" not in line, f"{path.name}:{number} has a tab"
        assert len(line) <= 120, f"{path.name}:{number} is too long"
        assert (len(line) - len(line.lstrip())) % 2 == 0, f"{path.name}:{number} is indented by an odd number"


def test_every_file_says_what_it_is_for() -> None:
    headless = [path.name for path in FILES[1:] if not path.read_text().startswith("# ")]
    assert headless == []


def test_every_file_is_used() -> None:
    imported = re.compile(r"\./([a-z-]+\.nix)")
    used = {name for path in FILES for name in imported.findall(path.read_text())}
    assert {path.name for path in FILES} - used == {"flake.nix", "default.nix"}


def test_lock_pins_the_input_that_the_flake_names() -> None:
    node = json.loads((ROOT / "flake.lock").read_text())["nodes"]["nixpkgs"]
    original = node["original"]
    asked = f"{original['type']}:{original['owner']}/{original['repo']}/{original['ref']}"
    assert f'inputs.nixpkgs.url = "{asked}"' in (ROOT / "flake.nix").read_text()
    assert re.fullmatch(r"[0-9a-f]{40}", node["locked"]["rev"])
    assert re.fullmatch(r"sha256-[A-Za-z0-9+/]{43}=", node["locked"]["narHash"])
