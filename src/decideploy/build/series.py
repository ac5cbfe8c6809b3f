"""The patch series: its order, each patch's header, and the files that each patch names."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from decideploy.build.unified_diff import DiffError, parse_diff
from decideploy.errors import Diagnostic, PatchError
from decideploy.pins.lock import series_names

_NAME = re.compile(r"^(?P<number>\d{4})-[a-z0-9]+(-[a-z0-9]+)*\.patch$")
_BODY = re.compile(r"^(---( |$)|diff --git |Index: )", re.MULTILINE)
_DATE = re.compile(r"^\d{4}-\d{2}-\d{2}$")


@dataclass(frozen=True, kw_only=True, slots=True)
class Patch:
    """One patch of the series.

    ``header`` holds its DEP-3 fields, ``paths`` the files it changes, relative to the tree's root,
    and ``content`` the whole file.
    """

    name: str
    sha256: str
    header: Mapping[str, str]
    paths: tuple[str, ...]
    content: bytes

    @property
    def description(self) -> str:
        """First line of the Description field."""
        return (self.header.get("Description") or self.header["Subject"]).splitlines()[0]


def read_series(root: Path) -> tuple[Patch, ...]:
    """Read ``patches/series`` under ``root`` (see :func:`decideploy.pins.data_root`) and its patches.

    Raises:
        PatchError: the series or one of its patches is malformed; every fault is told.
    """
    faults = lint_series(root)
    if faults:
        raise PatchError(
            "\n".join(str(fault) for fault in faults),
            where="patches/series",
            next_step="correct the patches named above",
        )
    return tuple(_read_patch(root, name) for name in series_names(root))


def _read_patch(root: Path, name: str) -> Patch:
    content = (root / "patches" / name).read_bytes()
    text = content.decode()
    return Patch(
        name=name,
        sha256=hashlib.sha256(content).hexdigest(),
        header=parse_header(text),
        paths=tuple(file.path for file in parse_diff(text)),
        content=content,
    )


def parse_header(text: str) -> dict[str, str]:
    """Parse the DEP-3 fields that stand before the diff; a continuation line starts with a blank."""
    fields: dict[str, str] = {}
    name = ""
    body = _BODY.search(text)
    for line in text[: body.start() if body else None].splitlines():
        if line[:1] in (" ", "\t") and name:
            fields[name] += "\n" + line.strip()
        elif ":" in line:
            name, _, value = line.partition(":")
            fields[name] = value.strip()
    return fields


def lint_series(root: Path, record_paths: Collection[str] | None = None) -> list[Diagnostic]:
    """Return every fault of the series under ``root``; an empty list if there is none.

    With ``record_paths``, the paths of the upstream wheel's RECORD, a patch that names another file
    is a fault too.
    """
    try:
        names = series_names(root)
    except PatchError as error:
        return list(error.diagnostics())
    faults = list(_lint_names(root, names))
    for name in dict.fromkeys(names):
        path = root / "patches" / name
        if path.is_file():
            faults += _lint_patch(path, record_paths)
    return faults


def _lint_names(root: Path, names: tuple[str, ...]) -> Iterator[Diagnostic]:
    present = {path.name for path in (root / "patches").glob("*.patch")}
    for name in sorted(present - set(names)):
        yield Diagnostic(
            what=f"{name} is not in the series",
            where=f"patches/{name}",
            next_step="list it in patches/series or delete it",
        )
    for position, name in enumerate(names, start=1):
        where = f"patches/series: {name}"
        if name in names[: position - 1]:
            yield Diagnostic(what=f"{name} is listed twice", where=where, next_step="list it once")
        elif name not in present:
            yield Diagnostic(what=f"{name} does not exist", where=where, next_step="add it or unlist it")
        match = _NAME.match(name)
        if match is None or int(match["number"]) != position:
            yield Diagnostic(
                what=f"{name} is not named {position:04d}-slug.patch",
                where=where,
                next_step="number the patches in series order, from 0001 and without gaps",
            )


def _lint_patch(path: Path, record_paths: Collection[str] | None) -> Iterator[Diagnostic]:
    where = f"patches/{path.name}"
    try:
        text = path.read_bytes().decode()
        paths = [file.path for file in parse_diff(text)]
    except (UnicodeDecodeError, DiffError) as error:
        yield Diagnostic(
            what=f"cannot be parsed: {error}", where=where, next_step="write it again with git diff"
        )
        return
    yield from _lint_header(parse_header(text), where)
    yield from _lint_paths(paths, where, record_paths)


def _lint_header(header: Mapping[str, str], where: str) -> Iterator[Diagnostic]:
    # DEP-3 lets Subject stand for Description and From for Author.
    required = (("Description", "Subject"), ("Origin", "Author", "From"), ("Forwarded",), ("Last-Update",))
    for names in required:
        if not any(header.get(name) for name in names):
            yield Diagnostic(
                what=f"the header lacks {' or '.join(names)}",
                where=where,
                next_step="add the DEP-3 field above the diff",
            )
    date = header.get("Last-Update", "")
    if date and not _DATE.match(date):
        yield Diagnostic(what=f"Last-Update {date!r} is no date", where=where, next_step="write YYYY-MM-DD")


def _lint_paths(paths: list[str], where: str, record_paths: Collection[str] | None) -> Iterator[Diagnostic]:
    for path in sorted({path for path in paths if paths.count(path) > 1}):
        yield Diagnostic(what=f"{path} is changed twice", where=where, next_step="join the two parts")
    for path in paths:
        if record_paths is not None and path not in record_paths:
            yield Diagnostic(
                what=f"{path} is not in the upstream wheel's RECORD",
                where=where,
                next_step="patch a file that the wheel ships; a wheel has no csrc/ and no tests/",
            )
