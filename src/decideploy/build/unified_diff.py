"""A strict reader for unified diffs: it accepts changes to existing text files and nothing else."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

_HUNK = re.compile(r"^@@ -(\d+)(?:,(\d+))? \+(\d+)(?:,(\d+))? @@")
_REFUSED = (
    "rename ",
    "copy ",
    "new file mode",
    "deleted file mode",
    "old mode",
    "GIT binary patch",
    "Binary files",
)


class DiffError(ValueError):
    """The text is no unified diff of the kind that a series may hold."""


@dataclass(frozen=True, kw_only=True, slots=True)
class FileDiff:
    """The change of one file; ``hunks`` counts its hunks."""

    path: str
    hunks: int


def parse_diff(text: str) -> tuple[FileDiff, ...]:
    """Parse all file changes of a patch, header lines before them aside.

    Raises:
        DiffError: counts that do not add up, a hunk without context, a file that is created, deleted,
            renamed or binary, a path outside the tree, or no change at all.
    """
    lines = text.splitlines()
    files = tuple(_files(lines))
    if not files:
        raise DiffError("it changes no file")
    if not text.endswith("\n"):
        raise DiffError("its last line has no newline")
    return files


def _files(lines: list[str]) -> Iterator[FileDiff]:
    index = 0
    while index < len(lines):
        line = lines[index]
        if line.startswith(_REFUSED):
            raise DiffError(f"line {index + 1}: only changes to existing text files are allowed: {line!r}")
        if line.startswith("@@"):
            raise DiffError(f"line {index + 1}: a hunk that belongs to no file")
        if not line.startswith("--- "):
            index += 1
            continue
        path = _path(lines, index)
        index, hunks = _hunks(lines, index + 2)
        yield FileDiff(path=path, hunks=hunks)


def _path(lines: list[str], index: int) -> str:
    old, new = (line.split("\t")[0] for line in (*lines[index : index + 2], "", "")[:2])
    if not (old.startswith("--- a/") and new.startswith("+++ b/") and old[6:] == new[6:]):
        raise DiffError(f"line {index + 1}: not `--- a/PATH` and `+++ b/PATH` of one file")
    path = old[6:]
    if path.startswith("/") or ".." in path.split("/"):
        raise DiffError(f"line {index + 1}: {path!r} leads out of the tree")
    return path


def _hunks(lines: list[str], index: int) -> tuple[int, int]:
    count = 0
    while index < len(lines) and (match := _HUNK.match(lines[index])):
        index = _hunk(lines, index, _length(match[2]), _length(match[4]))
        count += 1
    if not count:
        raise DiffError(f"line {index}: a file without a hunk")
    return index, count


def _length(group: str | None) -> int:
    return 1 if group is None else int(group)


def _hunk(lines: list[str], start: int, old: int, new: int) -> int:
    index, context = start + 1, 0
    while old > 0 or new > 0:
        kind = lines[index][:1] if index < len(lines) else "end"
        if kind not in (" ", "-", "+", "\\", ""):
            raise DiffError(f"line {start + 1}: the hunk is shorter than its header says")
        old -= kind in (" ", "-", "")
        new -= kind in (" ", "+", "")
        context += kind in (" ", "")
        index += 1
    if old < 0 or new < 0:
        raise DiffError(f"line {start + 1}: the hunk does not match the counts in its header")
    following = lines[index] if index < len(lines) else ""
    # A hunk longer than its header would be read as text between files and be skipped in silence;
    # "-- " is how git format-patch begins its signature.
    if following.startswith((" ", "+", "-")) and not following.startswith(("--- ", "-- ")):
        raise DiffError(f"line {start + 1}: the hunk is longer than its header says")
    if not context:
        raise DiffError(f"line {start + 1}: a hunk without context could land anywhere")
    return index + following.startswith("\\")
