"""Two images that differ on purpose, and what is told of it."""

from __future__ import annotations

import json
import subprocess
import sys
import tarfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from small_images import layer, write_directory, write_layout

from decideploy.containers import ImageDifference, compare_images

ROOT = Path(__file__).resolve().parents[2]
FILES = {"etc/passwd": b"root", "opt/file": b"text"}


def compare(tmp_path: Path, left: Sequence[bytes], right: Sequence[bytes], **changed: Any) -> ImageDifference:
    env = ["A=1", "B=2"]
    first = write_directory(tmp_path / "left", left, Env=env)
    return compare_images(first, write_directory(tmp_path / "right", right, **{"Env": env, **changed}))


def test_the_same_image_has_no_difference(tmp_path: Path) -> None:
    found = compare(tmp_path, [layer(FILES)], [layer(FILES)])
    assert found.same
    assert (found.config, found.layers) == ((), ())


def test_configuration_is_compared_key_by_key(tmp_path: Path) -> None:
    found = compare(tmp_path, [layer(FILES)], [layer(FILES)], Env=["A=1", "B=3"], User="0")
    assert [(change.what, change.left, change.right) for change in found.config] == [
        ("config.Env[1]", "B=2", "B=3"),
        ("config.User", None, "0"),
    ]
    assert not found.layers


def test_files_added_and_removed_are_told(tmp_path: Path) -> None:
    other = {"etc/passwd": b"root", "opt/other": b"text"}
    (found,) = compare(tmp_path, [layer(FILES)], [layer(other)]).layers
    assert (found.added, found.removed, found.changed, found.order) == (
        ("/opt/other",),
        ("/opt/file",),
        {},
        "",
    )


@pytest.mark.parametrize(
    ("fields", "what", "values"),
    [
        ({"mode": 0o600}, "mode", ("0644", "0600")),
        ({"mtime": 5}, "mtime", (0, 5)),
        ({"uid": 7, "gid": 8}, "owner", ("0:0", "7:8")),
        ({"pax_headers": {"SCHILY.xattr.user.x": "y"}}, "attributes", ("", '{"SCHILY.xattr.user.x": "y"}')),
    ],
)
def test_each_property_of_a_file_is_told(
    fields: dict[str, Any], what: str, values: tuple[Any, Any], tmp_path: Path
) -> None:
    (found,) = compare(tmp_path, [layer(FILES)], [layer(FILES, **fields)]).layers
    assert found.changed is not None
    for path in ("/etc/passwd", "/opt/file"):
        assert [(change.what, (change.left, change.right)) for change in found.changed[path]] == [
            (what, values)
        ]


def test_content_and_type_are_told(tmp_path: Path) -> None:
    link = tarfile.TarInfo("opt/file")
    link.type, link.linkname = tarfile.SYMTYPE, "other"
    left, right = layer(FILES), layer({"etc/passwd": b"toor", "opt/file": link})
    (found,) = compare(tmp_path, [left], [right]).layers
    assert found.changed is not None
    assert [change.what for change in found.changed["/etc/passwd"]] == ["content"]
    assert [change.what for change in found.changed["/opt/file"]] == ["type", "size_bytes", "link", "content"]


def test_another_order_is_told(tmp_path: Path) -> None:
    turned = dict(reversed(FILES.items()))
    (found,) = compare(tmp_path, [layer(FILES)], [layer(turned)]).layers
    assert (found.added, found.removed, found.changed, found.order) == ((), (), {}, "/etc/passwd")


def test_layers_are_told_by_their_place(tmp_path: Path) -> None:
    bottom, more = layer({"etc/passwd": b"root"}), layer({"opt/file": b"text"})
    (found,) = compare(tmp_path, [bottom], [bottom, more]).layers
    assert (found.index, found.left) == (1, "")


def test_compression_alone_is_no_difference_of_files(tmp_path: Path) -> None:
    left = write_layout(tmp_path / "left", [layer(FILES)])
    found = compare_images(left, write_layout(tmp_path / "right", [layer(FILES)], compress=True))
    assert (found.same, found.config, found.layers) == (False, (), ())


def imagediff(*arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, ROOT / "scripts" / "imagediff", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_script_explains_and_ends_with_one(tmp_path: Path) -> None:
    left = write_directory(tmp_path / "left", [layer(FILES)])
    right = write_directory(tmp_path / "right", [layer({**FILES, "opt/more": b""}, mode=0o600)], User="0")
    done = imagediff(left, right)
    assert (done.returncode, done.stderr) == (1, "")
    assert done.stdout.splitlines()[2] == "configuration config.User: None -> '0'"
    assert done.stdout.splitlines()[4:] == [
        "  + /opt/more",
        "  ~ /etc/passwd  mode 0644 -> 0600",
        "  ~ /opt/file  mode 0644 -> 0600",
    ]
    document = json.loads(imagediff(left, right, "--json").stdout)
    assert (document["same"], document["layers"][0]["added"]) == (False, ["/opt/more"])


def test_script_ends_with_zero_for_one_image_and_two_for_none(tmp_path: Path) -> None:
    left = write_directory(tmp_path / "left", [layer(FILES)])
    same = imagediff(left, write_layout(tmp_path / "right", [layer(FILES)]))
    assert (same.returncode, same.stdout.partition(":")[0]) == (0, "the same image")
    assert imagediff(left, tmp_path / "nothing").returncode == 2
