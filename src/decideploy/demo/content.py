"""What one demo model is made of, beside the shape that all of them share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float32]


@dataclass(frozen=True, kw_only=True, slots=True)
class Content:
    """The tensors of one demo model by checkpoint name, and the figures that go with them.

    ``text`` is the language model but its routed experts, ``experts`` those, fused by layer; ``adapter`` has
    PEFT's names. ``activation_amax`` is the largest activation before each expert projection.
    ``golden`` are recorded decisions of the bf16 variant, where there are any.
    """

    words: Sequence[str]
    text_config: Mapping[str, Any]
    text: Mapping[str, Array]
    experts: Mapping[str, Array]
    adapter: Mapping[str, Array]
    adapter_rank: int
    adapter_alpha: int
    head: Mapping[str, Array]
    activation_amax: Mapping[str, float]
    calibration: Mapping[str, float]
    calibration_gold: Mapping[str, float]
    golden: Path | None
