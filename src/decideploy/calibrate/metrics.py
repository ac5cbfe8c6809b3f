"""How good probabilities are, each figure with a bootstrap interval.

Definitions: accuracy of the likeliest option; Brier score as Brier had it, over all options (0 to 2);
negative log-likelihood in nats; expected calibration error over equal-width bins [low, high) of the likeliest
option's probability, the last one closed.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np

from decideploy.calibrate.fit import Floats, Labels
from decideploy.intervals import RESAMPLES, Interval

# So many counts are drawn at once: 32 MB of them.
BLOCK: Final = 4_000_000


@dataclass(frozen=True, kw_only=True, slots=True)
class Bin:
    """One bin of a reliability diagram; ``confidence`` and ``accuracy`` are means, NaN in an empty one."""

    low: float
    high: float
    count: int
    confidence: float
    accuracy: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Metrics:
    """The figures of one set of probabilities."""

    accuracy: Interval
    ece_10: Interval
    ece_15: Interval
    brier: Interval
    nll: Interval


def measure(probabilities: Floats, labels: Labels, *, seed: int) -> Metrics:
    """Figures of ``probabilities`` (n, k) against ``labels`` (n,); the same ``seed``, the same resamples."""
    return metrics_of(mean_and_resamples(example_figures(probabilities, labels), seed=seed))


def example_figures(probabilities: Floats, labels: Labels) -> Floats:
    """What each example adds to the figures, so that all of them are sums of means: (n, 28)."""
    return np.column_stack(
        [
            correct(probabilities, labels),
            brier_scores(probabilities, labels),
            losses(probabilities, labels),
            gaps(probabilities, labels, 10),
            gaps(probabilities, labels, 15),
        ]
    )


def metrics_of(means: Floats) -> Metrics:
    """The figures from the means of :func:`example_figures`: (1 + resamples, 28), the sample's own first."""
    return Metrics(
        accuracy=interval(means[:, 0]),
        brier=interval(means[:, 1]),
        nll=interval(means[:, 2]),
        ece_10=interval(np.abs(means[:, 3:13]).sum(axis=1)),
        ece_15=interval(np.abs(means[:, 13:28]).sum(axis=1)),
    )


def interval(values: Floats) -> Interval:
    """The first of ``values`` with the percentiles of the others, its resamples."""
    return Interval.of(values[0], values[1:])


def correct(probabilities: Floats, labels: Labels) -> Floats:
    """1.0 for each row whose likeliest option is the label, else 0.0; of equal ones the first counts."""
    return np.asarray((probabilities.argmax(axis=1) == labels).astype(np.float64))


def brier_scores(probabilities: Floats, labels: Labels) -> Floats:
    """Squared distance of each row from certainty of its label: (n,)."""
    distances = probabilities.copy()
    distances[np.arange(len(labels)), labels] -= 1.0
    return np.asarray((distances**2).sum(axis=1))


def losses(probabilities: Floats, labels: Labels) -> Floats:
    """Minus ln of the label's probability: (n,); of a probability of 0 that of the smallest float."""
    chosen = probabilities[np.arange(len(labels)), labels]
    return np.asarray(-np.log(np.maximum(chosen, np.finfo(np.float64).tiny)))


def bin_numbers(probabilities: Floats, bins: int) -> Labels:
    """The bin of each row by its largest probability: (n,)."""
    edges = np.linspace(0.0, 1.0, bins + 1)
    found = np.searchsorted(edges, probabilities.max(axis=1), side="right") - 1
    return np.asarray(np.clip(found, 0, bins - 1), dtype=np.int64)


def gaps(probabilities: Floats, labels: Labels, bins: int) -> Floats:
    """Correct minus confidence of each row, in the column of its bin: (n, bins)."""
    table = np.zeros((len(labels), bins))
    gap = correct(probabilities, labels) - probabilities.max(axis=1)
    table[np.arange(len(labels)), bin_numbers(probabilities, bins)] = gap
    return table


def expected_calibration_error(probabilities: Floats, labels: Labels, bins: int) -> float:
    """Mean over the examples of their bin's distance between accuracy and confidence."""
    return float(np.abs(gaps(probabilities, labels, bins).mean(axis=0)).sum())


def reliability(probabilities: Floats, labels: Labels, bins: int) -> tuple[Bin, ...]:
    """The bins of a reliability diagram, empty ones too."""
    numbers, hits, confidence = (
        bin_numbers(probabilities, bins),
        correct(probabilities, labels),
        probabilities.max(axis=1),
    )
    return tuple(
        Bin(
            low=number / bins,
            high=(number + 1) / bins,
            count=int(inside.sum()),
            confidence=float(confidence[inside].mean()) if inside.any() else float("nan"),
            accuracy=float(hits[inside].mean()) if inside.any() else float("nan"),
        )
        for number in range(bins)
        for inside in [numbers == number]
    )


def mean_and_resamples(columns: Floats, *, seed: int) -> Floats:
    """Means of ``columns`` (n, m), first of the sample, then of its resamples: (1 + resamples, m)."""
    n = len(columns)
    sums = [counts @ columns for counts in resample_counts(n, seed=seed)]
    return np.vstack([columns.sum(axis=0), *sums]) / n


def resample_counts(n: int, *, seed: int, resamples: int = RESAMPLES) -> Iterator[Floats]:
    """How often each of ``n`` rows is in each resample, in blocks of resamples: (block, n)."""
    generator = np.random.default_rng(seed)
    block = max(1, BLOCK // n)
    for first in range(0, resamples, block):
        drawn = generator.integers(n, size=(min(block, resamples - first), n))
        yield np.vstack([np.bincount(row, minlength=n) for row in drawn]).astype(np.float64)
