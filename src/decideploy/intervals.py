"""Figures with bootstrap intervals, and their form in JSON, which has no NaN."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import ArrayLike

RESAMPLES: Final = 1000
PERCENTILES: Final = (2.5, 97.5)


@dataclass(frozen=True, kw_only=True, slots=True)
class Interval:
    """A figure and the 95 % percentile interval of its bootstrap."""

    value: float
    low: float
    high: float

    @classmethod
    def of(cls, value: float, resampled: ArrayLike) -> Interval:
        """``value`` with the percentiles of what it is in the resamples."""
        low, high = np.percentile(np.asarray(resampled, dtype=np.float64), PERCENTILES)
        return cls(value=float(value), low=float(low), high=float(high))


def without_nan(value: Any) -> Any:
    """``value``, made of dicts, lists and scalars, with None for every NaN."""
    if isinstance(value, dict):
        return {key: without_nan(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [without_nan(inner) for inner in value]
    return None if isinstance(value, float) and math.isnan(value) else value
