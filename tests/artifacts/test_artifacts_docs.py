from __future__ import annotations

import json
import runpy
import shutil
import subprocess
import sys
from pathlib import Path

from decideploy.artifacts.verification import rule_codes

ROOT = Path(__file__).parents[2]


def test_documentation_is_what_the_rules_give() -> None:
    command = [sys.executable, str(ROOT / "scripts" / "write_verification_docs.py"), "--check"]
    assert subprocess.run(command, check=False).returncode == 0


def test_outdated_documentation_is_noticed(tmp_path: Path) -> None:
    for name in ("scripts/write_verification_docs.py", "docs/verification-engine.json"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    (tmp_path / "docs" / "verification.md").write_text("old")
    command = [sys.executable, str(tmp_path / "scripts" / "write_verification_docs.py"), "--check"]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    assert done.returncode == 1
    assert "not current" in done.stderr


def test_every_code_is_documented() -> None:
    text = (ROOT / "docs" / "verification.md").read_text()
    assert [code for code in rule_codes() if f"| `{code}`" not in text] == []


def test_a_dozen_faults_were_tried_on_the_engine() -> None:
    seen = json.loads((ROOT / "docs" / "verification-engine.json").read_text())
    assert len(seen) >= 12
    assert {entry["fault"].partition(":")[0] for entry in seen} <= set(rule_codes())
    assert any(entry["engine"] == "answers" and entry["shift_nats"] for entry in seen)


def test_the_hook_runs_an_installed_command() -> None:
    text = (ROOT / ".pre-commit-hooks.yaml").read_text()
    assert "entry: decideploy verify" in text
    assert "decideploy" in (ROOT / "pyproject.toml").read_text()
    assert callable(runpy.run_path(str(ROOT / "scripts" / "verify_artifacts.py"))["main"])
