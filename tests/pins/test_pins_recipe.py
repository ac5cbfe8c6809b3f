from __future__ import annotations

import re
from pathlib import Path

import pytest
from build_fixtures import make_wheel, recipe_text

from decideploy.errors import ConfigError, IntegrityError
from decideploy.pins import Artifact, data_root, load_recipe
from decideploy.pins.root import cache_folder


def load(root: Path, text: str):
    (root / "build" / "recipes").mkdir(parents=True)
    (root / "build" / "recipes" / "demo.toml").write_text(text)
    return load_recipe("demo", root=root)


def test_wheel_artifact_carries_the_pin(tmp_path: Path):
    wheel = make_wheel()
    artifact = load(tmp_path, recipe_text(wheel)).wheel_artifact
    assert isinstance(artifact, Artifact)
    assert (artifact.name, artifact.version, artifact.size_bytes) == ("demo-cpu", "1.0", len(wheel))


@pytest.mark.parametrize("key", ["sha256", "size_bytes"])
def test_missing_pin_stops_with_its_key(tmp_path: Path, key: str):
    text = re.sub(rf"^{key} = .*\n", "", recipe_text(make_wheel()), flags=re.MULTILINE)
    with pytest.raises(IntegrityError) as caught:
        load(tmp_path, text)
    assert caught.value.where == f"build/recipes/demo.toml: upstream.wheel.{key}"


def test_every_fault_is_told(tmp_path: Path):
    text = recipe_text(make_wheel()).replace("+cpu.decideploy.1", "").replace("platform =", "platfrom =")
    with pytest.raises(ConfigError) as caught:
        load(tmp_path, text)
    for key in ("output.version", "requirements.platform", "requirements.platfrom"):
        assert f"build/recipes/demo.toml: {key}" in caught.value.where


def test_text_that_is_not_toml_is_told(tmp_path: Path):
    with pytest.raises(ConfigError, match="not TOML"):
        load(tmp_path, "name =\n")


def test_text_in_another_encoding_is_told(tmp_path: Path):
    (tmp_path / "build" / "recipes").mkdir(parents=True)
    (tmp_path / "build" / "recipes" / "demo.toml").write_bytes(b'name = "d\xe9mo"\n')
    with pytest.raises(ConfigError, match="UTF-8") as caught:
        load_recipe("demo", root=tmp_path)
    assert caught.value.where == "build/recipes/demo.toml"
    assert caught.value.next_step


def test_torch_must_be_pinned_for_every_python(tmp_path: Path):
    text = (
        recipe_text(make_wheel()) + '[torch]\nversion = "2"\nrequires = []\n[torch.sha256]\n"3.12" = "{}"\n'
    )
    with pytest.raises((ConfigError, IntegrityError), match="exactly the versions"):
        load(tmp_path, text.format("0" * 64))


def test_exclusion_compares_normalised_names(tmp_path: Path):
    recipe = load(tmp_path, recipe_text(make_wheel()).replace('"torchvision"', '"Torch_Vision"'))
    assert recipe.requirements.excludes("torch-vision")
    assert not recipe.requirements.excludes("torch")


def test_recipe_must_be_named_as_its_file(tmp_path: Path):
    with pytest.raises(ConfigError, match="calls itself 'other'"):
        load(tmp_path, recipe_text(make_wheel()).replace('name = "demo"', 'name = "other"'))


def test_data_root_holds_recipes_and_patches():
    assert (data_root() / "patches" / "series").is_file()
    assert (data_root() / "build" / "recipes" / "cpu.toml").is_file()


def test_cache_follows_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("DECIDEPLOY_HOME", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_folder() == tmp_path / "decideploy" / "artifacts"
