"""Images in files, as three tools write them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from small_images import layer, sha256, write_archive, write_directory, write_layout

from decideploy.containers import open_image
from decideploy.errors import ConfigError, IntegrityError

BOTTOM, TOP = layer({"etc/passwd": b"root"}), layer({"opt/file": b"text"})


@pytest.mark.parametrize("compress", [False, True])
@pytest.mark.parametrize("write", [write_directory, write_layout, write_archive])
def test_every_form_holds_the_same_image(write: Callable[..., Path], compress: bool, tmp_path: Path) -> None:
    path = write(tmp_path / "image", [BOTTOM, TOP], compress=compress, Cmd=["serve"])
    with open_image(path) as image:
        assert image.config["config"] == {"Cmd": ["serve"]}
        assert list(image.diff_ids) == [sha256(BOTTOM), sha256(TOP)]
        with image.layer(0) as low, image.layer(1) as high:
            assert (low.read(), high.read()) == (BOTTOM, TOP)


def test_manifest_digest_is_that_of_its_bytes(tmp_path: Path) -> None:
    path = write_directory(tmp_path / "image", [BOTTOM])
    with open_image(path) as image:
        assert image.manifest_digest == sha256((path / "manifest.json").read_bytes())


def test_damaged_layer_is_told(tmp_path: Path) -> None:
    path = write_directory(tmp_path / "image", [BOTTOM])
    (path / sha256(BOTTOM)).write_bytes(TOP)
    with (
        open_image(path) as image,
        pytest.raises(IntegrityError, match="not what the image names"),
        image.layer(0),
    ):
        pass


def test_layer_in_zstd_is_told(tmp_path: Path) -> None:
    path = write_directory(tmp_path / "image", [BOTTOM])
    (path / sha256(BOTTOM)).write_bytes(b"\x28\xb5\x2f\xfd and more")
    with open_image(path) as image, pytest.raises(ConfigError, match="zstd"), image.layer(0):
        pass


def test_what_is_no_image_is_told(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("no archive")
    (tmp_path / "empty").mkdir()
    two = write_layout(tmp_path / "two", [BOTTOM], copies=2)
    told = {tmp_path / "text": "", tmp_path / "empty": "", tmp_path / "nothing": "", two: "it holds 2 images"}
    for path, why in told.items():
        with pytest.raises(ConfigError, match=f"no image that can be read: .*{why}"), open_image(path):
            pass
