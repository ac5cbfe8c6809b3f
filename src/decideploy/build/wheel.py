"""The patched wheel: upstream's bytes, the series applied, and a name and version of its own."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import parse_wheel_filename
from packaging.version import Version

from decideploy.build.apply import apply_series
from decideploy.build.record import (
    PACKAGE,
    RecordEntry,
    digest_record,
    entry_for,
    format_record,
    parse_record,
)
from decideploy.build.series import Patch
from decideploy.build.zip_archive import ZipReader, ZipWriter, open_zip
from decideploy.errors import IntegrityError, PatchError
from decideploy.pins import Recipe

_VERSION_FILE = f"{PACKAGE}_version.py"


@dataclass(frozen=True, kw_only=True, slots=True)
class PackedWheel:
    """A wheel that was written; ``files_sha256`` is the lock's value for what it installs."""

    path: Path
    sha256: str
    size_bytes: int
    files_sha256: str


def wheel_filename(recipe: Recipe) -> str:
    """Return the file name of the patched wheel: upstream's tags, the recipe's name and version."""
    tags = "-".join(recipe.upstream.wheel.filename.removesuffix(".whl").split("-")[-3:])
    return f"{recipe.output.distribution.replace('-', '_')}-{recipe.output.version}-{tags}.whl"


def repack(upstream: Path, target: Path, *, recipe: Recipe, series: Sequence[Patch]) -> PackedWheel:
    """Write the patched wheel to ``target`` and check it.

    The same inputs give the same bytes on every machine: members keep upstream's order, times, modes
    and compressed bytes, and those that change are stored.

    Raises:
        PatchError: the series does not apply exactly, or names a file that upstream's RECORD does not.
        IntegrityError: the upstream wheel is malformed, or the result is not valid.
    """
    with open_zip(upstream) as source, target.open("wb") as file:
        layout = _read_layout(source, recipe)
        replaced = _replacements(source, layout, recipe, series)
        writer = ZipWriter(file)
        for name, info in source.members.items():
            new_name = layout.renamed(name)
            if new_name in replaced:
                writer.add(new_name, info, replaced[new_name])
            else:
                writer.copy(new_name, info, source.compressed(name))
        writer.close()
    return PackedWheel(
        path=target,
        sha256=writer.sha256,
        size_bytes=writer.size_bytes,
        files_sha256=_validate(target, layout.new_dist_info, set(replaced)),
    )


def leave_out(wheel: Path, target: Path, patterns: Sequence[str]) -> PackedWheel:
    """Write ``wheel`` without the members that match shell-style ``patterns`` to ``target`` and check it.

    RECORD loses their lines; everything else keeps its bytes.

    Raises:
        IntegrityError: a pattern matches nothing, or the wheel is malformed.
    """
    with open_zip(wheel) as source, target.open("wb") as file:
        dist_info = _dist_info(source, wheel.name)
        dropped = _matching(source.members, patterns, wheel.name)
        record = parse_record(source.read(f"{dist_info}/RECORD").decode())
        kept = {path: entry for path, entry in record.items() if path not in dropped}
        writer = ZipWriter(file)
        for name, info in source.members.items():
            if name == f"{dist_info}/RECORD":
                writer.add(name, info, format_record(kept))
            elif name not in dropped:
                writer.copy(name, info, source.compressed(name))
        writer.close()
    return PackedWheel(
        path=target,
        sha256=writer.sha256,
        size_bytes=writer.size_bytes,
        files_sha256=_validate(target, dist_info, set()),
    )


def _matching(names: Iterable[str], patterns: Sequence[str], where: str) -> set[str]:
    found = {pattern: {name for name in names if fnmatchcase(name, pattern)} for pattern in patterns}
    if idle := [pattern for pattern, matched in found.items() if not matched]:
        raise IntegrityError(
            f"the wheel has nothing that matches {', '.join(idle)}",
            where=where,
            next_step="correct bundle.unused_files in the recipe",
        )
    return set().union(*found.values())


@dataclass(frozen=True, kw_only=True, slots=True)
class _Layout:
    dist_info: str
    new_dist_info: str
    record: dict[str, RecordEntry]

    def renamed(self, name: str) -> str:
        prefix = self.dist_info + "/"
        return f"{self.new_dist_info}/{name.removeprefix(prefix)}" if name.startswith(prefix) else name


def _dist_info(source: ZipReader, where: str) -> str:
    folders = {name.split("/")[0] for name in source.members if name.split("/")[0].endswith(".dist-info")}
    if len(folders) != 1:
        raise IntegrityError(f"the wheel has {len(folders)} dist-info folders, not one", where=where)
    return folders.pop()


def _read_layout(source: ZipReader, recipe: Recipe) -> _Layout:
    where = recipe.upstream.wheel.filename
    dist_info = _dist_info(source, where)
    try:
        record = parse_record(source.read(f"{dist_info}/RECORD").decode())
    except (KeyError, ValueError) as error:
        raise IntegrityError(f"the wheel's RECORD cannot be read: {error}", where=where) from error
    unlisted = sorted(source.members.keys() ^ record.keys())
    if unlisted:
        raise IntegrityError(f"RECORD and archive disagree about {', '.join(unlisted[:5])}", where=where)
    output = recipe.output
    return _Layout(
        dist_info=dist_info,
        new_dist_info=f"{output.distribution.replace('-', '_')}-{output.version}.dist-info",
        record=record,
    )


def _replacements(
    source: ZipReader, layout: _Layout, recipe: Recipe, series: Sequence[Patch]
) -> dict[str, bytes]:
    old, new = layout.dist_info, layout.new_dist_info
    contents = apply_series(series, source.read)
    if _VERSION_FILE in contents:
        raise PatchError(
            f"the series changes {_VERSION_FILE}, which the build writes itself",
            where="patches/series",
            next_step="drop that hunk and set output.version in the recipe",
        )
    contents[_VERSION_FILE] = rewrite_version(source.read(_VERSION_FILE), recipe.output.version)
    contents[f"{new}/METADATA"] = rewrite_metadata(source.read(f"{old}/METADATA"), recipe)
    contents[f"{new}/WHEEL"] = rewrite_wheel_tags(source.read(f"{old}/WHEEL"), recipe.upstream.wheel.filename)
    record = {layout.renamed(path): entry for path, entry in layout.record.items()}
    record |= {path: entry_for(content) for path, content in contents.items()}
    contents[f"{new}/RECORD"] = format_record(record)
    return contents


def rewrite_version(content: bytes, version: str) -> bytes:
    """Return ``_version.py`` with ``version``; its commit line, which differs between wheels, stays.

    Raises:
        IntegrityError: the file does not have exactly one assignment of each kind.
    """
    parsed = Version(version)
    parts = repr((*parsed.release, parsed.local))
    text, first = _VERSION_LINE.subn(lambda match: f"{match[1]}{version!r}", content.decode())
    text, second = _TUPLE_LINE.subn(lambda match: f"{match[1]}{parts}", text)
    if (first, second) != (1, 1):
        raise IntegrityError(
            "the version file is not of the form that setuptools-scm writes", where=_VERSION_FILE
        )
    ast.parse(text)
    return text.encode()


_VERSION_LINE = re.compile(r"^(__version__ = version = ).*$", re.MULTILINE)
_TUPLE_LINE = re.compile(r"^(__version_tuple__ = version_tuple = ).*$", re.MULTILINE)


def rewrite_metadata(content: bytes, recipe: Recipe) -> bytes:
    """Return METADATA with the recipe's name and version and without the requirements it excludes."""
    head, blank, body = content.partition(b"\n\n")
    lines = [_metadata_line(line, recipe) for line in head.decode().splitlines()]
    return "\n".join(line for line in lines if line is not None).encode() + blank + body


def _metadata_line(line: str, recipe: Recipe) -> str | None:
    key, _, value = line.partition(": ")
    if key == "Name":
        return f"Name: {recipe.output.distribution}"
    if key == "Version":
        return f"Version: {recipe.output.version}"
    if key == "Requires-Dist" and recipe.requirements.excludes(Requirement(value).name):
        return None
    return line


def rewrite_wheel_tags(content: bytes, filename: str) -> bytes:
    """Return WHEEL with the tags of ``filename``: newer installers refuse a wheel whose two differ."""
    tags = sorted(str(tag) for tag in parse_wheel_filename(filename)[3])
    kept = [line for line in content.decode().splitlines() if line and not line.startswith("Tag:")]
    return "\n".join([*kept, *(f"Tag: {tag}" for tag in tags), ""]).encode()


def _validate(path: Path, dist_info: str, rewritten: set[str]) -> str:
    """Read the result back as an installer would; members copied from upstream keep its digests."""
    with open_zip(path) as wheel:
        record = parse_record(wheel.read(f"{dist_info}/RECORD").decode())
        wrong = sorted(wheel.members.keys() ^ record.keys())
        for name in sorted(rewritten - {f"{dist_info}/RECORD"}):
            if entry_for(wheel.read(name)) != record[name]:
                wrong.append(name)
        wrong += [name for name, info in wheel.members.items() if _size_differs(info.file_size, record[name])]
    if wrong:
        raise IntegrityError(
            f"the wheel that was written is not valid: {', '.join(wrong[:5])}", where=str(path)
        )
    return digest_record(record)


def _size_differs(size_bytes: int, entry: RecordEntry) -> bool:
    return entry.size_bytes is not None and entry.size_bytes != size_bytes
