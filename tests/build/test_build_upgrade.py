from __future__ import annotations

import importlib.util
import io
import sys
import zipfile
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest
from build_fixtures import LAYER, patch_text, write_series
from packaging.version import Version

from decideploy.build import read_series
from decideploy.errors import ConfigError
from decideploy.pins import data_root, load_recipe


@pytest.fixture
def tool(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    path = data_root() / "scripts" / "upgrade_matrix.py"
    spec = importlib.util.spec_from_file_location("upgrade_matrix", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    # Dataclasses look their module up by name.
    monkeypatch.setitem(sys.modules, "upgrade_matrix", module)
    monkeypatch.setattr(sys, "path", list(sys.path))
    spec.loader.exec_module(module)
    return module


class Server:
    """Answers ranges of one file, or the whole of it."""

    def __init__(self, content: bytes, *, ranges: bool = True) -> None:
        self.content, self.ranges = content, ranges

    def get(self, _url: str, *, headers: dict[str, str], timeout: float) -> SimpleNamespace:
        assert timeout > 0
        first, last = headers["Range"].removeprefix("bytes=").split("-")
        piece = self.content[int(first) : int(last) + 1] if self.ranges else self.content
        status = 206 if self.ranges else 200
        return SimpleNamespace(content=piece, status_code=status, raise_for_status=lambda: None)


def archive(**files: str) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as written:
        written.writestr("filler", b"\0" * 3_000_000)
        for name, text in files.items():
            written.writestr(name, text)
    return buffer.getvalue()


def open_wheel(tool: ModuleType, content: bytes, server: Server) -> tuple[object, io.BufferedReader]:
    wheel = tool.Wheel(
        filename="vllm-1.0-cp38-abi3-manylinux_2_28_x86_64.whl", url="u", size_bytes=len(content)
    )
    return wheel, io.BufferedReader(tool.Ranges(server, wheel), tool.BUFFER_BYTES)


def test_only_the_files_asked_for_are_read(tool: ModuleType):
    content = archive(one="text", two="more")
    wheel, file = open_wheel(tool, content, Server(content))
    assert tool.read_members(file, ["two", "absent"]) == {"two": "more"}
    assert 0 < wheel.moved_bytes < len(content) / 4


def test_server_that_ignores_ranges_is_told(tool: ModuleType):
    content = archive(one="text")
    _, file = open_wheel(tool, content, Server(content, ranges=False))
    with pytest.raises(ConfigError, match="no ranges"):
        tool.read_members(file, ["one"])


def test_newest_build_of_each_final_release_is_taken(tool: ModuleType):
    tail = "cp38-abi3-manylinux_2_28_x86_64.whl"
    names = [
        f"vllm-0.23.0-{tail}",
        f"vllm-0.23.0-2-{tail}",
        f"vllm-0.9.0-{tail}",
        f"vllm-0.24.0rc1-{tail}",
        f"vllm-0.22.0-{tail}",
        "vllm-0.22.0-cp38-abi3-manylinux_2_28_aarch64.whl",
        "vllm-0.22.0.tar.gz",
    ]
    found = tool.select_wheels([(name, "u", 1) for name in names], Version("0.19"))
    assert [wheel.filename for wheel in found] == [names[4], names[1]]


@pytest.mark.parametrize(
    ("layer", "applies"),
    [
        (LAYER, "exactly"),
        ("an added line\n" + LAYER, "moved"),
        (LAYER.replace("line 12\n", "line XII\n"), "no"),
        (None, "no file"),
    ],
)
def test_patch_is_tried_with_the_strict_applier(
    tool: ModuleType, tmp_path: Path, layer: str | None, applies: str
):
    (patch,) = read_series(write_series(tmp_path, {"0001-say-less.patch": patch_text()}))
    assert tool.try_patch(patch, {} if layer is None else {"vllm/layer.py": layer}) == applies


@pytest.mark.parametrize(
    ("files", "needed"),
    [
        ({"a.py": "limit > 5", "b.py": ""}, "needed"),
        ({"a.py": "limit > 9", "b.py": ""}, "in part"),
        ({"a.py": "limit > 9", "b.py": "once(x)"}, "upstreamed"),
        ({"a.py": "limit > 9", "b.py": "once(x)", "c.py": "ranges = cut(it)"}, "in part"),
        ({"c.py": "nothing of it"}, "no such code"),
        ({}, "no such code"),
    ],
)
def test_need_follows_from_the_source(tool: ModuleType, files: dict[str, str], needed: str):
    checks = [tool.Check(file="a.py", faulty=r"limit > [0-5]"), tool.Check(file="b.py", cured=r"once\(")]
    checks += [tool.Check(file="c.py", code="ranges", faulty=r"cut\(")]
    assert tool.see_need(checks, files) == needed


def test_each_patch_has_checks_of_files_that_it_changes(tool: ModuleType):
    checks = tool.read_checks()
    series = {patch.name: set(patch.paths) for patch in read_series(data_root())}
    assert checks.keys() == series.keys()
    for name, found in checks.items():
        assert {check.file for check in found} == series[name]


def test_checks_see_what_each_patch_mends(tool: ModuleType):
    """Before a hunk the fault is there, after it it is not: red and green from the patch alone."""
    for patch in read_series(data_root()):
        before, after = ({}, {})
        text = patch.content.decode()
        for block in text.split("diff --git ")[1:]:
            path = block.split(" b/")[1].splitlines()[0]
            lines = block.partition("\n@@")[2].splitlines()
            # A hunk's head names the class that it lies in.
            lines = ["@@" + lines[0].partition("@@ ")[2], *lines[1:]]
            before[path] = "\n".join(
                line[1:] if line[0] in " -" else line for line in lines if line and line[0] != "+"
            )
            after[path] = "\n".join(
                line[1:] if line[0] in " +" else line for line in lines if line and line[0] != "-"
            )
        for check in tool.read_checks()[patch.name]:
            if "wrapped_by_id" in check.cured:
                continue
            assert check.is_faulty(before[check.file].replace("@@", "")), (patch.name, check)
            assert not check.is_faulty(after[check.file].replace("@@", "")), (patch.name, check)


def test_document_has_the_table_of_the_pinned_release(tool: ModuleType):
    text = (data_root() / "docs" / "upgrading.md").read_text("utf-8")
    table = text.partition(tool.BEGIN)[2].partition(tool.END)[0]
    numbers = [patch.name[:4] for patch in read_series(data_root())]
    assert f"| vLLM | {' | '.join(numbers)} |" in table
    (row,) = (
        line for line in table.splitlines() if line.startswith(f"| {load_recipe('cuda').upstream.version} ")
    )
    assert row.count("applies;") == len(numbers)
