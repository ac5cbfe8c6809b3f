"""Images, built without a network and run as they are meant to be: not as root, their own files read-only."""

from __future__ import annotations

import json
import re
import tarfile
from pathlib import Path

import pytest
from container_tools import BASE, ROOT, Containers

from decideploy.containers import compare_images, open_image, stage_context
from decideploy.demo import write_demo_model
from decideploy.pins import load_lock
from decideploy.pins.lock import file_sha256

pytestmark = [pytest.mark.integration, pytest.mark.system]

PACKAGE = re.compile(r"opt/decideploy/lib/python3\.11/site-packages/(\w+)$")


@pytest.fixture(scope="module")
def verify_image(containers: Containers, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The image as files; its tag is verify:first."""
    context = stage_context("verify", tmp_path_factory.mktemp("verify") / "context", root=ROOT, base=BASE)
    for tag in ("verify:first", "verify:second"):
        containers.build(context, tag)
    return containers.stored("verify:first")


def test_staged_folder_gives_the_same_image_twice(containers: Containers, verify_image: Path) -> None:
    difference = compare_images(verify_image, containers.stored("verify:second"))
    assert difference.same, difference


def test_verify_image_is_small_and_says_what_it_is(verify_image: Path) -> None:
    with open_image(verify_image) as image:
        config = image.config["config"]
        with image.layer(len(image.layers) - 1) as layer, tarfile.TarFile(fileobj=layer) as archive:
            packages = {match[1] for name in archive.getnames() if (match := PACKAGE.match(name))}
    assert "decideploy" in packages
    assert packages.isdisjoint({"torch", "vllm"})
    assert config["User"] == "10001:10001"
    labels = config["Labels"]
    assert labels["decideploy.lock.sha256"] == file_sha256(ROOT / "build" / "locks" / "cpu.json")
    assert labels["decideploy.series.sha256"] == load_lock("cpu").series.sha256
    assert re.fullmatch(r"[0-9a-f]{40}(\+changed)?", labels["org.opencontainers.image.revision"])


@pytest.mark.usefixtures("verify_image")
def test_verify_image_verifies_a_model_mounted_read_only(containers: Containers, tmp_path: Path) -> None:
    model, home = tmp_path / "model", tmp_path / "home"
    write_demo_model(model)
    good = containers.podman("verify:first", volume=home, mounts=(f"{model}:/model:ro",))
    assert good.returncode == 0, good.stdout + good.stderr
    assert "0 errors" in good.stdout
    (model / "head.safetensors").unlink()
    bad = containers.podman(
        *("verify:first", "verify", "/model", "--json"), volume=home, mounts=(f"{model}:/model:ro",)
    )
    assert bad.returncode == 5, bad.stderr
    assert json.loads(bad.stdout)["issues"]


def test_cpu_image_answers_a_decision_of_each_kind(containers: Containers, tmp_path: Path) -> None:
    context = stage_context("cpu", tmp_path / "context", root=ROOT, base=BASE)
    containers.build(context, "cpu:served")
    served = containers.podman("cpu:served", "serve", "--check", "--port", "8047", volume=tmp_path / "home")
    assert served.returncode == 0, served.stdout[-2000:] + served.stderr[-4000:]
    for kind in ("noul", "score", "choice"):
        assert kind in served.stdout
