from __future__ import annotations

import pytest

from decideploy.artifacts.exclusion import engine_name, engine_patterns, is_excluded

LAYER = "language_model.model.layers.1"


@pytest.mark.parametrize(
    ("checkpoint", "engine"),
    [
        ("model.language_model.layers.1.mlp", f"{LAYER}.mlp"),
        ("model.language_model.layers.1.experts", f"{LAYER}.moe.experts"),
        ("model.vision_tower.encoder", "vision_tower.encoder"),
        ("model.embed_vision", "embed_vision"),
        ("lm_head", "lm_head"),
    ],
)
def test_names_are_the_engines(checkpoint: str, engine: str) -> None:
    assert engine_name(checkpoint) == engine


def test_trailing_star_means_the_module_and_its_children() -> None:
    assert engine_patterns(["model.language_model.layers.1.mlp*"]) == (f"{LAYER}.mlp", f"{LAYER}.mlp.*")
    assert engine_patterns(["a.*"]) == ("a.*",)


@pytest.mark.parametrize(
    ("module", "patterns", "excluded"),
    [
        ("language_model.lm_head", ["lm_head"], True),
        (f"{LAYER}.self_attn.qkv_proj", [f"{LAYER}.self_attn.{n}_proj" for n in "qkv"], True),
        (f"{LAYER}.self_attn.qkv_proj", [f"{LAYER}.self_attn.q_proj"], False),
        (f"{LAYER}.mlp.down_proj", [f"{LAYER}.mlp.*"], True),
        (f"{LAYER}2.mlp.down_proj", [LAYER], True),
        (f"{LAYER}.moe.experts", [f"{LAYER}.moe.experts.0.gate_proj"], True),
        (f"{LAYER}.moe.experts", [f"{LAYER}.mlp"], False),
        (f"{LAYER}.mlp.down_proj", ["model.layers.1.mlp"], True),
        (f"{LAYER}.mlp.down_proj", [], False),
    ],
)
def test_matching(module: str, patterns: list[str], excluded: bool) -> None:
    assert is_excluded(module, patterns) is excluded
