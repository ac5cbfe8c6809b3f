"""Which module an adapter's tensor belongs to, by the engine's own reading of its name.

Source: vLLM 0.30, ``lora/utils.py`` (``parse_fine_tuned_lora_name``). PEFT's prefix may be there or not, and
names may be the checkpoint's or the engine's: the engine maps them all.
"""

from __future__ import annotations

from collections.abc import Iterable

from decideploy.artifacts.convert import PEFT_PREFIX
from decideploy.artifacts.exclusion import engine_name

SIDES = {"lora_A": "A", "lora_B": "B"}


def engine_module(key: str) -> tuple[str, str] | None:
    """Engine module and side, ``A`` or ``B``, of a LoRA matrix; None for a name that is no linear's.

    The engine also reads ``lora_embedding_A`` and ``_B``; no embedding of this model takes a LoRA.
    """
    name = key.replace(PEFT_PREFIX, "") if key.startswith(PEFT_PREFIX) else key
    *module, side, last = ["", *engine_name(name).split(".")]
    if last != "weight" or side not in SIDES:
        return None
    return ".".join(module[1:]), SIDES[side]


def engine_targets(modules: Iterable[str]) -> dict[str, str]:
    """Checkpoint module by the engine's name for it."""
    # The engine maps names of tensors, and one of its prefixes ends with a dot.
    return {engine_name(f"{module}.weight").removesuffix(".weight"): module for module in modules}
