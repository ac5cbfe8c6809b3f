#!/usr/bin/env python3
"""Tell for each release of vLLM and each patch whether it applies, and whether it is still needed.

    scripts/upgrade_matrix.py [--since 0.19] [--write]

Of each release's x86-64 wheel on the package index only the files that patches name are read, by ranges: two
megabytes in place of 250 to 430. Nothing is kept. "Applies" is the strict applier of the build: no offset and
no fuzz. "Needed" follows from scripts/upgrade_checks.toml, which says how each fault looks in the source.
Without --write the table is printed, with it docs/upgrading.md gets it too.
"""

from __future__ import annotations

import argparse
import io
import re
import sys
import tomllib
import zipfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "src"))

from packaging.utils import parse_wheel_filename  # noqa: E402
from packaging.version import Version  # noqa: E402
from pydantic import BaseModel, ConfigDict  # noqa: E402

from decideploy.build import Patch, apply_series, read_series  # noqa: E402
from decideploy.errors import ConfigError, PatchError  # noqa: E402
from decideploy.pins.sources import read_pip_sources  # noqa: E402

CHECKS = ROOT / "scripts" / "upgrade_checks.toml"
DOCUMENT = ROOT / "docs" / "upgrading.md"
BEGIN, END = "<!-- written by scripts/upgrade_matrix.py -->", "<!-- end of what it writes -->"
WHEEL = re.compile(r"^vllm-[^-]+(-\d+)?-cp38-abi3-manylinux[^-]*_x86_64\.whl$")
TIMEOUT_S = 60.0
BUFFER_BYTES = 1 << 18


class Check(BaseModel):
    """One sign of a fault: the file has ``faulty`` (a regular expression), or has not ``cured``.

    A file without ``code``, where that is given, has not yet what the fault is in.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    file: str
    code: str = ""
    faulty: str = ""
    cured: str = ""

    def concerns(self, text: str) -> bool:
        """Whether ``text`` has the code that the fault is in."""
        return re.search(self.code, text) is not None

    def is_faulty(self, text: str) -> bool:
        """Whether the fault shows in ``text``."""
        if self.cured and re.search(self.cured, text, re.MULTILINE | re.DOTALL):
            return False
        return not self.faulty or re.search(self.faulty, text, re.MULTILINE | re.DOTALL) is not None


@dataclass(frozen=True, kw_only=True, slots=True)
class Cell:
    """What one release makes of one patch."""

    applies: Literal["exactly", "moved", "no", "no file"]
    needed: Literal["needed", "in part", "upstreamed", "no such code"]

    def __str__(self) -> str:
        told = {"exactly": "applies", "moved": "moved", "no": "conflicts", "no file": "no file"}
        return f"{told[self.applies]}; {self.needed}"


@dataclass(kw_only=True)
class Wheel:
    """One release's wheel on the index; ``moved_bytes`` counts what was read of it."""

    filename: str
    url: str
    size_bytes: int
    moved_bytes: int = 0

    @property
    def version(self) -> Version:
        """The release."""
        return parse_wheel_filename(self.filename)[1]


class Ranges(io.RawIOBase):
    """A file on a server that answers ranges."""

    def __init__(self, session: Any, wheel: Wheel) -> None:
        self._session = session
        self._wheel = wheel
        self._position = 0

    def readable(self) -> bool:
        """Always."""
        return True

    def seekable(self) -> bool:
        """Always."""
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Move to a position, which is not read yet."""
        start = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._wheel.size_bytes}[whence]
        self._position = start + offset
        return self._position

    def tell(self) -> int:
        """The position."""
        return self._position

    def readinto(self, buffer: Any) -> int:
        """Read into ``buffer``; ConfigError when the server sends something else than the range."""
        end = min(self._position + len(buffer), self._wheel.size_bytes)
        if end <= self._position:
            return 0
        headers = {"Range": f"bytes={self._position}-{end - 1}", "Accept-Encoding": "identity"}
        answer = self._session.get(self._wheel.url, headers=headers, timeout=TIMEOUT_S)
        answer.raise_for_status()
        if answer.status_code != 206:
            raise ConfigError("the index answers no ranges", where=self._wheel.filename)
        content = answer.content
        buffer[: len(content)] = content
        self._position += len(content)
        self._wheel.moved_bytes += len(content)
        return len(content)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; return the exit status."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--since", type=Version, default=Version("0.19"), help="first release (default: 0.19)"
    )
    parser.add_argument("--write", action="store_true", help="write the table into docs/upgrading.md")
    options = parser.parse_args(argv)
    series = read_series(ROOT)
    table = make_table(series, read_releases(series, options.since))
    print(table)
    if options.write:
        write_table(table)
    return 0


def read_releases(series: Sequence[Patch], since: Version) -> Iterator[tuple[Wheel, dict[str, str]]]:
    """Yield each release's wheel and the files of it that the patches name."""
    from pypi_simple import PYPI_SIMPLE_ENDPOINT, PyPISimple  # noqa: PLC0415

    paths = {path for patch in series for path in patch.paths}
    sources = read_pip_sources()
    with PyPISimple(sources.index_url or PYPI_SIMPLE_ENDPOINT) as client:
        if sources.certificate:
            client.s.verify = sources.certificate
        page = client.get_project_page("vllm", timeout=TIMEOUT_S)
        found = [(package.filename, package.url, package.size or 0) for package in page.packages]
        for wheel in select_wheels(found, since):
            yield wheel, read_members(io.BufferedReader(Ranges(client.s, wheel), BUFFER_BYTES), paths)
            print(f"{wheel.version}: {wheel.moved_bytes / 1e6:.1f} MB read", file=sys.stderr)


def select_wheels(found: Iterable[tuple[str, str, int]], since: Version) -> list[Wheel]:
    """The newest build of each final release from ``since`` on, in order."""
    newest: dict[Version, Wheel] = {}
    for filename, url, size_bytes in found:
        if not WHEEL.match(filename):
            continue
        wheel = Wheel(filename=filename, url=url, size_bytes=size_bytes)
        held = newest.get(wheel.version)
        build_number = parse_wheel_filename(filename)[2]
        if wheel.version.is_prerelease or wheel.version < since:
            continue
        if held is None or parse_wheel_filename(held.filename)[2] < build_number:
            newest[wheel.version] = wheel
    return [newest[version] for version in sorted(newest)]


def read_members(file: io.BufferedReader, paths: Iterable[str]) -> dict[str, str]:
    """The text of those ``paths`` that the archive has."""
    with zipfile.ZipFile(file) as archive:
        present = set(archive.namelist())
        return {path: archive.read(path).decode() for path in sorted(set(paths) & present)}


def read_checks() -> dict[str, list[Check]]:
    """The checks of each patch by its name."""
    document = tomllib.loads(CHECKS.read_text("utf-8"))
    return {name: [Check.model_validate(one) for one in checks] for name, checks in document.items()}


def judge(patch: Patch, checks: Sequence[Check], files: Mapping[str, str]) -> Cell:
    """What the release that has ``files`` makes of ``patch``."""
    return Cell(applies=try_patch(patch, files), needed=see_need(checks, files))


def try_patch(patch: Patch, files: Mapping[str, str]) -> Literal["exactly", "moved", "no", "no file"]:
    """Whether the build's applier takes the patch as it is."""
    if not set(patch.paths) <= files.keys():
        return "no file"
    try:
        apply_series([patch], lambda path: files[path].encode())
    except PatchError as error:
        return "moved" if "only inexactly" in error.what else "no"
    return "exactly"


def see_need(
    checks: Sequence[Check], files: Mapping[str, str]
) -> Literal["needed", "in part", "upstreamed", "no such code"]:
    """Whether the fault is in the source; a release may have cured some of its places."""
    texts = [(check, files[check.file]) for check in checks if check.file in files]
    seen = [check.is_faulty(text) for check, text in texts if check.concerns(text)]
    if not seen:
        return "no such code"
    if all(seen):
        return "needed"
    return "in part" if any(seen) else "upstreamed"


def make_table(series: Sequence[Patch], releases: Iterable[tuple[Wheel, Mapping[str, str]]]) -> str:
    """The matrix in Markdown, a row for each release."""
    checks = read_checks()
    head = ["vLLM", *(patch.name[:4] for patch in series)]
    rows = [
        [str(wheel.version), *(str(judge(patch, checks[patch.name], files)) for patch in series)]
        for wheel, files in releases
    ]
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def write_table(table: str) -> None:
    """Replace the table in the document."""
    text = DOCUMENT.read_text("utf-8")
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    DOCUMENT.write_text(f"{before}{BEGIN}\n\n{table}\n\n{END}{after}", "utf-8")


if __name__ == "__main__":
    sys.exit(main())
