"""Rules on values of config.json that no tensor shows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from decideploy.artifacts import files as names
from decideploy.artifacts.files import ModelFiles
from decideploy.artifacts.issue import Finding, RuleSet

RULES = RuleSet()

DTYPE = "bfloat16"
# What the family's checkpoints with routed experts say, and what the engine takes where a key is absent.
_TEXT: Mapping[str, tuple[Any, Any]] = {
    "model_type": ("gemma4_text", "gemma4_text"),
    "hidden_activation": ("gelu_pytorch_tanh", "gelu_pytorch_tanh"),
    "rms_norm_eps": (1e-6, 1e-6),
    "attention_bias": (False, False),
    "use_bidirectional_attention": ("vision", None),
    "num_kv_shared_layers": (0, 0),
    "hidden_size_per_layer_input": (0, 256),
    "use_double_wide_mlp": (False, False),
}
_ROPE: Mapping[str, Mapping[str, Any]] = {
    "full_attention": {"rope_type": "proportional", "partial_rotary_factor": 0.25, "rope_theta": 1e6},
    "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
}


@RULES.rule(
    "config-constant",
    consequence="the engine computes another function with the same weights: every answer drifts, none fails",
    next_step="take config.json from the model's pinned revision",
)
def config_constant(files: ModelFiles) -> Iterator[Finding]:
    """Activation, epsilon, rotary embedding and attention masks are those of the family."""
    model_type = files.json(names.CONFIG).get("model_type")
    if model_type != "gemma4":
        yield _finding("model_type", model_type, "gemma4")
    for key, (expected, default) in _TEXT.items():
        told = files.text_config.get(key, default)
        if told != expected:
            yield _finding(f"text_config.{key}", told, expected)
    told = files.text_config.get("rope_parameters")
    # Absent, the engine's own defaults are the family's.
    for kind, expected in _ROPE.items() if told is not None else ():
        section = told.get(kind) if isinstance(told, dict) else None
        for key, value in expected.items():
            found = section.get(key) if isinstance(section, dict) else None
            if found != value:
                yield _finding(f"text_config.rope_parameters.{kind}.{key}", found, value)


@RULES.rule(
    "config-dtype",
    consequence="the engine computes in this dtype: float16 overflows, float32 doubles the memory",
    next_step="set dtype to bfloat16 in config.json, or take it from the pinned revision",
)
def config_dtype(files: ModelFiles) -> Iterator[Finding]:
    """Where config.json names a dtype, it is bfloat16."""
    sections = {"": files.json(names.CONFIG), "text_config.": files.text_config}
    for prefix, section in sections.items():
        for key in ("dtype", "torch_dtype"):
            if section.get(key, DTYPE) != DTYPE:
                yield _finding(prefix + key, section[key], DTYPE)


def _finding(key: str, told: object, expected: object) -> Finding:
    name = key.rpartition(".")[2]
    return Finding(what=f"{name} is {told!r}, not {expected!r}"[:300], where=names.CONFIG, key=key)
