"""build/Containerfile and its companions: pins, what both builders understand, and what images promise."""

from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path

import pytest

from decideploy.containers import TARGETS, load_images
from decideploy.pins import load_recipe

BUILD = Path(__file__).resolve().parents[2] / "build"
CONTAINERFILE = (BUILD / "Containerfile").read_text("utf-8")
SOURCE = (BUILD / "source.Containerfile").read_text("utf-8")
BAKE = (BUILD / "docker-bake.hcl").read_text("utf-8")
BASES = load_images(BUILD.parent).bases


def stage(name: str) -> str:
    """The instructions of one stage."""
    match = re.search(rf"^FROM \S+ AS {name}\n(.*?)(?=^FROM |\Z)", CONTAINERFILE, re.MULTILINE | re.DOTALL)
    assert match is not None, name
    return match[1]


@pytest.mark.parametrize("flavour", BASES)
def test_defaults_of_the_bases_are_the_pins(flavour: str) -> None:
    assert f"ARG {flavour.upper()}_BASE={BASES[flavour].image}\n" in CONTAINERFILE


def test_source_build_and_modal_stand_on_the_pinned_cuda_base() -> None:
    modal = tomllib.loads((BUILD.parent / "deploy" / "modal.toml").read_text("utf-8"))
    assert modal["base_image"] == BASES["cuda"].image
    assert f"ARG CUDA_BASE={BASES['cuda'].image}\n" in SOURCE


@pytest.mark.parametrize("flavour", BASES)
def test_recipe_locks_requirements_for_the_python_of_the_base(flavour: str) -> None:
    assert BASES[flavour].python in load_recipe(flavour).requirements.pythons


@pytest.mark.parametrize("text", [CONTAINERFILE, SOURCE])
def test_nothing_that_one_builder_lacks_is_used(text: str) -> None:
    assert not re.findall(r"<<-?['\"]?[A-Z]|--link\b|^#\s*syntax\s*=", text, re.MULTILINE)


@pytest.mark.parametrize("target", TARGETS)
def test_every_target_is_a_stage_and_is_baked(target: str) -> None:
    assert f" AS {target}\n" in CONTAINERFILE
    matrix = re.search(r"matrix += \{ tgt = (\[.*\]) \}", BAKE)
    assert matrix is not None
    assert target in json.loads(matrix[1])


def test_every_baked_argument_is_a_variable_and_is_asked_for() -> None:
    baked = re.findall(r"^    ([A-Z0-9_]+) += ([A-Z0-9_]+)$", BAKE, re.MULTILINE)
    assert {argument for argument, _ in baked} >= {
        "FLAVOUR",
        "CPU_BASE",
        "CUDA_BASE",
        "REVISION",
        "SOURCE_DATE_EPOCH",
    }
    for argument, variable in baked:
        assert argument == variable
        assert f'variable "{variable}"' in BAKE
        # BuildKit reads this one by itself.
        assert argument == "SOURCE_DATE_EPOCH" or re.search(
            rf"^ARG {argument}\b", CONTAINERFILE, re.MULTILINE
        )


def test_packages_are_installed_by_hash_from_the_staged_folder_alone() -> None:
    install = re.search(r'^ARG INSTALL="(.*)"$', CONTAINERFILE, re.MULTILINE)
    assert install is not None
    for option in (
        "--require-hashes",
        "--no-index",
        "--no-compile",
        "--no-deps",
        "--find-links /run/staged/wheels",
    ):
        assert option in install[1]
    assert not re.findall(r"^RUN .*pip (install|download)", CONTAINERFILE, re.MULTILINE)


@pytest.mark.parametrize("name", ["verify", "engine"])
def test_image_runs_as_a_number_writes_to_one_volume_and_says_what_it_is(name: str) -> None:
    text = stage(name)
    assert re.findall(r"^USER (.*)$", text, re.MULTILINE) == ["10001:10001"]
    assert re.findall(r"^VOLUME (.*)$", text, re.MULTILINE) == ["/var/lib/decideploy"]
    for label in ("source", "revision", "version"):
        assert f"org.opencontainers.image.{label}=" in text
    for label in ("lock", "series"):
        assert f"decideploy.{label}.sha256=" in text


def test_every_folder_that_is_written_lies_in_the_volume() -> None:
    roots = re.findall(r"([A-Z_]*(?:HOME|TMPDIR|PREFIX))=(\S+)", CONTAINERFILE)
    assert {name for name, _ in roots} >= {"HOME", "DECIDEPLOY_HOME", "HF_HOME", "XDG_CACHE_HOME", "TMPDIR"}
    assert all(path.startswith("/var/lib/decideploy") for _, path in roots)


def test_health_is_readiness() -> None:
    health = stage("engine").partition("HEALTHCHECK")[2]
    assert "/ready" in health.partition("\nARG")[0]
