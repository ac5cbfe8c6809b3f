"""The flake, built in nix's sandbox with the stub of nixpkgs: what it gives, and what it refuses."""

from __future__ import annotations

import json
import re
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from nix_offline import ROOT, Flake, edit_lock

from decideploy.build import build
from decideploy.pins import load_lock
from decideploy.pins.lock import digest_series, file_sha256

pytestmark = pytest.mark.integration

SYSTEMS = {"x86_64-linux", "aarch64-linux"}
FIRST_PATCH = Path("patches/0001-gemma4-lm-head-lora.patch")


def named_checks(outputs: dict) -> set[str]:
    """The check that each output of one system must have."""
    packages = set(outputs["packages"]["x86_64-linux"]) - {"default"}
    apps = {f"app-{name}" for name in outputs["apps"]["x86_64-linux"]}
    return packages | apps | {"dev-shell", "formatter"}


def test_every_check_passes(flake: Flake) -> None:
    done = flake.run("flake", "check", "path:.")
    assert done.returncode == 0, done.stderr


def test_every_output_has_a_check_and_every_system_the_same_outputs(flake: Flake) -> None:
    outputs = flake.outputs()
    assert named_checks(outputs) <= set(outputs["checks"]["x86_64-linux"])
    assert set(outputs) == {"apps", "checks", "devShells", "formatter", "packages"}
    for systems in outputs.values():
        assert set(systems) == SYSTEMS
    for kind in ("apps", "checks", "devShells", "packages"):
        assert set(outputs[kind]["x86_64-linux"]) == set(outputs[kind]["aarch64-linux"])


def test_documentation_lists_every_output(flake: Flake) -> None:
    outputs = flake.outputs()
    expected = {
        f"{kind}.{name}"
        for kind in ("apps", "checks", "devShells", "packages")
        for name in outputs[kind]["x86_64-linux"]
    }
    table = re.findall(r"^\| `([a-zA-Z]+\.[a-z-]+|formatter)` \|", (ROOT / "docs/nix.md").read_text(), re.M)
    assert sorted(table) == sorted(expected | {"formatter"})


@pytest.mark.parametrize("recipe", ["cpu", "cuda"])
def test_wheel_is_the_locks_and_builds_twice_alike(flake: Flake, recipe: str) -> None:
    lock = load_lock(recipe)
    wheel = flake.build(f"vllm-wheel-{recipe}") / lock.wheel.filename
    assert file_sha256(wheel) == lock.wheel.sha256
    # Nix builds it again and compares all bytes of the folder, provenance included.
    flake.build(f"vllm-wheel-{recipe}", "--rebuild")


def test_sandbox_and_command_line_give_the_same_files(flake: Flake, tmp_path: Path) -> None:
    outside = build("cpu", tmp_path, wheelhouses=[flake.wheelhouse])
    inside = flake.build("vllm-wheel-cpu")
    assert file_sha256(inside / outside.wheel.name) == outside.sha256
    assert (inside / outside.provenance.name).read_bytes() == outside.provenance.read_bytes()


def test_sandbox_hides_the_checkout_and_the_network(flake: Flake) -> None:
    script = f"/bin/ls {flake.checkout}; /bin/cat /proc/net/dev; /usr/bin/touch $out"
    arguments = f'[ "-c" "{script.replace("$", chr(92) + "$")}" ]'
    expression = (
        f'derivation {{ name = "seen"; system = "x86_64-linux"; builder = "/bin/sh"; args = {arguments}; }}'
    )
    done = flake.run("build", "--no-link", "--print-build-logs", "--expr", expression)
    assert done.returncode == 0, done.stderr
    assert "No such file or directory" in done.stderr
    assert re.findall(r"seen> +([a-z]+[0-9]*):", done.stderr) == ["lo"]


def test_development_shell_runs_the_command(flake: Flake) -> None:
    done = flake.run("develop", "path:.", "-c", "decideploy", "--version")
    assert done.returncode == 0, done.stderr
    assert re.fullmatch(r"decideploy \d+\.\d+\.\d+\n", done.stdout)


def test_app_passes_arguments_and_exit_status_on(flake: Flake, tmp_path: Path) -> None:
    done = flake.run("run", "path:.#verify", "--", str(tmp_path / "no model here"), "--json")
    assert done.returncode == 2
    assert json.loads(done.stdout)["error"] == "ConfigError"


def test_wrong_upstream_hash_is_refused(spoiled: Flake) -> None:
    wrong = "0" * 64
    edit_lock(spoiled.checkout, {"upstream.wheel.sha256": wrong})
    assert "hash mismatch in fixed-output derivation" in spoiled.refusal("vllm-wheel-cpu")


def test_tampered_upstream_wheel_is_refused(flake: Flake, tmp_path: Path) -> None:
    filename = load_lock("cpu").upstream.wheel.filename
    wheel = tmp_path / "wheelhouse" / filename
    wheel.parent.mkdir()
    shutil.copyfile(flake.wheelhouse / filename, wheel)
    with wheel.open("r+b") as file:
        file.seek(wheel.stat().st_size // 2)
        byte = file.read(1)[0]
        file.seek(-1, 1)
        file.write(bytes([byte ^ 1]))
    # A store that has the right wheel would not fetch it again.
    fresh = replace(flake, wheelhouse=wheel.parent, store=tmp_path / "store")
    assert "hash mismatch in fixed-output derivation" in fresh.refusal("vllm-wheel-cpu")
    shutil.rmtree(fresh.store)


def test_stale_patch_is_refused(spoiled: Flake) -> None:
    patch = spoiled.checkout / FIRST_PATCH
    text, edits = re.subn(r"^-(\s+\S.*)$", r"-\1  # since changed", patch.read_text(), count=1, flags=re.M)
    assert edits == 1
    patch.write_text(text)
    # A lock that agrees with it, so that the patch itself is what fails.
    edit_lock(spoiled.checkout, {"series": digest_series(spoiled.checkout).model_dump(mode="json")})
    assert f"{FIRST_PATCH.name} does not apply" in spoiled.refusal("vllm-wheel-cpu")


def test_stale_lock_is_refused(spoiled: Flake) -> None:
    patch = spoiled.checkout / FIRST_PATCH
    patch.write_text(patch.read_text().replace("Description: ", "Description: now ", 1))
    told = spoiled.refusal("vllm-wheel-cpu")
    assert "the lock is stale" in told
    assert "build/locks/cpu.json: series.sha256" in told


def test_wheel_other_than_the_locks_is_refused(spoiled: Flake) -> None:
    edit_lock(spoiled.checkout, {"wheel.sha256": "0" * 64})
    assert "build/locks/cpu.json: wheel.sha256" in spoiled.refusal("vllm-wheel-cpu")
