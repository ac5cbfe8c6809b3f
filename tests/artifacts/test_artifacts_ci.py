"""What docs/verification.md gives other repositories: the hook, and the steps of a pipeline."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from decideploy.build.project import export_checkout

pytestmark = pytest.mark.integration

ROOT = Path(__file__).parents[2]
PROGRAMS = Path(sys.executable).parent


def run(*command: str, cwd: Path, home: Path) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {
        "PATH": f"{PROGRAMS}{os.pathsep}{os.environ['PATH']}",
        "PRE_COMMIT_HOME": str(home / "pre-commit"),
        "GIT_CONFIG_GLOBAL": os.devnull,
        **{f"GIT_{who}_{what}": "nobody" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")},
    }
    return subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, check=False)


def commit(folder: Path, home: Path) -> str:
    """The commit that holds all of ``folder``."""
    for command in (("init", "-q"), ("add", "-A"), ("commit", "-qm", "one")):
        done = run("git", *command, cwd=folder, home=home)
        assert done.returncode == 0, done.stderr
    return run("git", "rev-parse", "HEAD", cwd=folder, home=home).stdout.strip()


@pytest.fixture
def repository(demo_model: Path, tmp_path: Path) -> Path:
    """A repository that holds a model, and the hook of this checkout."""
    export_checkout(ROOT, tmp_path / "decideploy")
    revision = commit(tmp_path / "decideploy", tmp_path)
    folder = tmp_path / "models"
    shutil.copytree(demo_model, folder / "model")
    hook = {"id": "decideploy-verify", "args": ["model"]}
    repos = [{"repo": str(tmp_path / "decideploy"), "rev": revision, "hooks": [hook]}]
    # JSON is YAML.
    (folder / ".pre-commit-config.yaml").write_text(json.dumps({"repos": repos}))
    commit(folder, tmp_path)
    return folder


def test_the_hook_of_another_repository(repository: Path) -> None:
    whole = run("pre-commit", "run", "--all-files", cwd=repository, home=repository.parent)
    assert whole.returncode == 0, whole.stdout + whole.stderr
    assert "Passed" in whole.stdout
    (repository / "model" / "calibration.json").unlink()
    broken = run("pre-commit", "run", "--all-files", cwd=repository, home=repository.parent)
    assert broken.returncode == 1
    assert "exit code: 5" in broken.stdout
    assert "calibration.json" in broken.stdout


def test_the_steps_of_a_pipeline(demo_model: Path, tmp_path: Path) -> None:
    model, manifest = tmp_path / "model", tmp_path / "m.json"
    shutil.copytree(demo_model, model)
    locked = run("decideploy", "lock-model", str(model), "--out", str(manifest), cwd=tmp_path, home=tmp_path)
    assert locked.returncode == 0, locked.stderr
    (model / "calibration.json").unlink()
    annotate = ("decideploy", "verify", str(model), "--manifest", str(manifest), "--format", "github")
    annotated = run(*annotate, cwd=tmp_path, home=tmp_path)
    assert annotated.returncode == 5
    assert any(line.startswith("::error ") for line in annotated.stdout.splitlines())
    scanned = run("decideploy", "verify", str(model), "--format", "sarif", cwd=tmp_path, home=tmp_path)
    assert scanned.returncode == 5
    (results,) = [found["results"] for found in json.loads(scanned.stdout)["runs"]]
    assert "calibration.json" in json.dumps(results)
