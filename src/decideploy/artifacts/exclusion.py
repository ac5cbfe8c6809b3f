"""Which modules a ModelOpt exclusion list keeps out of quantisation, by the engine's own matching.

Source: vLLM 0.30, ``model_executor/layers/quantization/modelopt.py`` and ``models/gemma4_mm.py``. Patterns
are first rewritten (``path*`` becomes ``path`` and ``path.*``) and mapped to the engine's module names; a
module is excluded by an exact match, else when a pattern is a **substring** of its name, else by a glob.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from fnmatch import fnmatchcase

_PREFIXES = (
    ("model.vision_tower", "vision_tower"),
    ("model.embed_vision", "embed_vision"),
    ("model.audio_tower.", "audio_tower."),
    ("model.embed_audio.", "embed_audio."),
    ("model.language_model.", "language_model.model."),
    ("lm_head.", "language_model.lm_head."),
    ("model", "language_model.model"),
)
_EXPERTS = re.compile(r"(?<!\.moe)\.experts$")
_FUSED = {"qkv_proj": ("q_proj", "k_proj", "v_proj"), "gate_up_proj": ("gate_proj", "up_proj")}


def engine_name(name: str) -> str:
    """A checkpoint's module name or pattern as the engine names it."""
    name = _EXPERTS.sub(".moe.experts", name)
    for old, new in _PREFIXES:
        if name.startswith(old):
            name = name.replace(old, new, 1)
    return name


def engine_patterns(patterns: Sequence[str]) -> tuple[str, ...]:
    """An exclusion list as the engine holds it after loading."""
    expanded: list[str] = []
    for pattern in patterns:
        whole_tree = len(pattern) >= 2 and pattern[-1] == "*" and pattern[-2] != "."
        expanded += [pattern[:-1], f"{pattern[:-1]}.*"] if whole_tree else [pattern]
    return tuple(engine_name(pattern) for pattern in expanded)


def is_excluded(module: str, patterns: Sequence[str]) -> bool:
    """Whether the engine leaves ``module`` (engine name) unquantised, given ``engine_patterns``."""
    return (
        _exact(module, patterns)
        or any(_substring(module, pattern) for pattern in patterns if pattern != module)
        or any(fnmatchcase(module, pattern) for pattern in patterns)
    )


def _exact(module: str, patterns: Sequence[str]) -> bool:
    path, _, name = module.rpartition(".")
    if module in patterns:
        return True
    if name in _FUSED:
        return all(f"{path}.{part}" in patterns for part in _FUSED[name])
    return "experts" in module and any(module in pattern for pattern in patterns if "experts" in pattern)


def _substring(module: str, pattern: str) -> bool:
    return pattern in module or (
        module.startswith("language_model.") and pattern in module.removeprefix("language_model.")
    )
