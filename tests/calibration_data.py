"""Scores and labels drawn from a model whose right temperature is known."""

from __future__ import annotations

import numpy as np

from decideploy.calibrate import Scored, probabilities_at


def drawn(n: int, *, temperature: float, options: int = 4, seed: int = 0, spread: float = 2.0) -> Scored:
    """``n`` rows of scores whose labels follow softmax(scores / temperature)."""
    generator = np.random.default_rng(seed)
    scores = generator.normal(scale=spread, size=(n, options))
    cumulative = probabilities_at(scores, temperature).cumsum(axis=1)
    labels = (cumulative < generator.random((n, 1))).sum(axis=1)
    return Scored(scores=scores, labels=labels.clip(max=options - 1).astype(np.int64))
