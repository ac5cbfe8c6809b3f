"""The trained demo model: weights that scripts/train_demo_model.py made, unpacked from the package's data.

The data holds the vocabulary rows that stand for a token, and one row that stands for every unused one;
what training never touches (the vision tower) is the random model's.
"""

from __future__ import annotations

import functools
import json
import lzma
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import load, save

from decideploy.artifacts.safetensors_file import bf16_bits, to_float32
from decideploy.demo import architecture as arch
from decideploy.demo import tokenizer
from decideploy.demo.content import Content
from decideploy.demo.weights import TEXT_PREFIX, Array

_FOLDER = Path(__file__).parent
WEIGHTS = _FOLDER / "trained.safetensors.xz"
FACTS = _FOLDER / "trained.json"
"""What was measured after training: temperatures, and the largest activation before each projection."""
_WORDS = _FOLDER / "trained_words.txt"

EMBEDDING = f"{TEXT_PREFIX}.embed_tokens.weight"
USED, UNUSED = "embed_tokens.used", "embed_tokens.unused"
TEXT, EXPERTS, ADAPTER, HEAD = "text/", "experts/", "adapter/", "head/"

# Wider than the random model's: the state, the question and all options lie within it.
TEXT_CONFIG: Mapping[str, Any] = {"sliding_window": 256}
ADAPTER_RANK = 16
ADAPTER_ALPHA = 32


def words() -> list[str]:
    """Words with a token of their own: the random model's, and those of the corpus."""
    return tokenizer.merged_words(_WORDS.read_text("utf-8").split())


def content() -> Content:
    """All of the trained model that differs from the random one."""
    facts = json.loads(FACTS.read_text("utf-8"))
    return Content(
        words=words(),
        text_config=TEXT_CONFIG,
        text=_text_tensors(),
        experts=_part(EXPERTS),
        adapter=_part(ADAPTER),
        adapter_rank=ADAPTER_RANK,
        adapter_alpha=ADAPTER_ALPHA,
        head=_part(HEAD),
        activation_amax=facts["activation_amax"],
        calibration=facts["calibration"],
        calibration_gold=facts["calibration_gold"],
        golden=None,
    )


def pack(tensors: Mapping[str, Array], *, exact: frozenset[str]) -> bytes:
    """``tensors`` as the package's data: those of ``exact`` in float32, the others rounded to bfloat16."""
    stored = {
        name: values.astype(np.float32) if name in exact else bf16_bits(values)
        for name, values in sorted(tensors.items())
    }
    return lzma.compress(save(stored), preset=9 | lzma.PRESET_EXTREME)


@functools.cache
def _tensors() -> dict[str, Array]:
    stored: dict[str, NDArray[Any]] = load(lzma.decompress(WEIGHTS.read_bytes()))
    return {
        name: to_float32(values, "BF16" if values.dtype == np.uint16 else "F32")
        for name, values in stored.items()
    }


def _part(prefix: str) -> dict[str, Array]:
    return {
        name.removeprefix(prefix): values for name, values in _tensors().items() if name.startswith(prefix)
    }


def _text_tensors() -> dict[str, Array]:
    table = np.broadcast_to(_tensors()[UNUSED], (arch.VOCAB_SIZE, arch.HIDDEN_SIZE)).copy()
    table[tokenizer.used_ids(words())] = _tensors()[USED]
    return {EMBEDDING: table} | _part(TEXT)
