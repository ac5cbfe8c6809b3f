"""Apply a series exactly or not at all."""

from __future__ import annotations

import os
import re
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

from decideploy.build.series import Patch
from decideploy.errors import ConfigError, PatchError

# `git apply -v` tells in these words that a hunk landed somewhere else or on less context.
_INEXACT = re.compile(r"^(Hunk #\d+ succeeded at .*offset.*|Context reduced to .*)$", re.MULTILINE)
_SKIPPED = re.compile(r"^Skipped patch .*$", re.MULTILINE)


def apply_series(series: Sequence[Patch], read: Callable[[str], bytes]) -> dict[str, bytes]:
    """Apply ``series`` in order and return the new content of every file it changes.

    ``read`` returns the content of a file of the tree by its path and raises KeyError or
    FileNotFoundError for a path that the tree does not have. The tree itself is not touched.

    Raises:
        PatchError: a patch names a file that is not there, does not apply exactly (an offset counts as
            failure), or changes other files than it names.
        ConfigError: git is not installed or cannot be run.
    """
    with tempfile.TemporaryDirectory(prefix="decideploy-apply-") as folder:
        tree = Path(folder).resolve()
        for patch in series:
            _lay_out(patch, tree, read)
        for patch in series:
            _apply_one(patch, tree)
        return {path: (tree / path).read_bytes() for path in _paths(tree)}


def apply_to_tree(series: Sequence[Patch], tree: Path) -> tuple[str, ...]:
    """Apply ``series`` to an unpacked source tree in place; return the changed paths, sorted.

    Nothing is written unless the whole series applies exactly.

    Raises:
        PatchError: as :func:`apply_series`.
    """
    changed = apply_series(series, lambda path: (tree / path).read_bytes())
    for path, content in changed.items():
        (tree / path).write_bytes(content)
    return tuple(sorted(changed))


def _lay_out(patch: Patch, tree: Path, read: Callable[[str], bytes]) -> None:
    for path in patch.paths:
        target = tree / path
        if target.exists():
            continue
        try:
            content = read(path)
        except (KeyError, FileNotFoundError) as error:
            raise PatchError(
                f"{patch.name} names {path}, which the upstream release does not ship",
                where=f"patches/{patch.name}: {path}",
                next_step="move the patch to the pinned release, or drop it from the series",
            ) from error
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(content)


def _paths(tree: Path) -> list[str]:
    return sorted(path.relative_to(tree).as_posix() for path in tree.rglob("*") if path.is_file())


def _apply_one(patch: Patch, tree: Path) -> None:
    before = {path: (tree / path).read_bytes() for path in _paths(tree)}
    report = _git_apply(patch, tree)
    if inexact := _INEXACT.findall(report):
        raise _refused(patch, "applies only inexactly: " + "; ".join(inexact))
    if skipped := _SKIPPED.findall(report):
        raise _refused(patch, "was skipped by git: " + "; ".join(skipped))
    after = {path: (tree / path).read_bytes() for path in _paths(tree)}
    changed = {path for path in before.keys() | after.keys() if before.get(path) != after.get(path)}
    if changed != set(patch.paths):
        difference = ", ".join(sorted(changed ^ set(patch.paths)))
        raise _refused(patch, f"changed other files than it names: {difference}")


def _git_apply(patch: Patch, tree: Path) -> str:
    command = ["git", "apply", "--verbose", "--whitespace=nowarn", "-p1", "-"]
    environment = _git_environment(tree)
    try:
        done = subprocess.run(
            command, cwd=tree, env=environment, input=patch.content, capture_output=True, check=False
        )
    except FileNotFoundError as error:
        raise ConfigError(
            "git is not installed", where="git apply", next_step="install git: patches are applied with it"
        ) from error
    except PermissionError as error:
        raise ConfigError(
            f"git cannot be run: {error.strerror}",
            where=f"git apply, on PATH {os.environ.get('PATH', '')}",
            next_step="make git executable, or install it again: patches are applied with it",
        ) from error
    report = done.stderr.decode(errors="replace")
    if done.returncode != 0:
        raise _refused(patch, "does not apply: " + "; ".join(report.strip().splitlines()[-4:]))
    return report


def _git_environment(tree: Path) -> dict[str, str]:
    # Inside another repository, or in a hook that sets GIT_DIR, git would take the paths to be that
    # repository's and skip every hunk with exit status 0; a user's settings could rewrite white space.
    kept = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    return kept | {
        "GIT_CEILING_DIRECTORIES": str(tree.parent),
        "GIT_CONFIG_NOSYSTEM": "1",
        "GIT_CONFIG_GLOBAL": os.devnull,
        "LC_ALL": "C",
        "LANGUAGE": "C",
    }


def _refused(patch: Patch, why: str) -> PatchError:
    return PatchError(
        f"{patch.name} {why}",
        where=f"patches/{patch.name}",
        next_step="write the patch again against the pinned release, with exact line numbers",
    )
