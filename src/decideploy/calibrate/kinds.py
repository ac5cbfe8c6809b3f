"""One kind of decision: its fit, or why there is none, and its figures before and after."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

import numpy as np

from decideploy.calibrate.fit import Fit, Floats, Labels, fit_temperature, probabilities_at, slopes
from decideploy.calibrate.metrics import (
    Bin,
    Metrics,
    example_figures,
    interval,
    losses,
    mean_and_resamples,
    measure,
    metrics_of,
    reliability,
)
from decideploy.decide.calibration import MAX_TEMPERATURE, MIN_TEMPERATURE
from decideploy.decide.slots import Kind
from decideploy.intervals import Interval

# Logarithms of the temperatures at which resamples know the slope; in between it is taken to be straight.
LOG_GRID: Final = np.linspace(math.log(MIN_TEMPERATURE), math.log(MAX_TEMPERATURE), 129)
DIAGRAM_BINS: Final = 10


@dataclass(frozen=True, kw_only=True, slots=True)
class Scored:
    """Scores (n, k) of one kind, each row known up to a constant, -inf beyond its options; labels (n,)."""

    scores: Floats
    labels: Labels


@dataclass(frozen=True, kw_only=True, slots=True)
class KindReport:
    """What became of one kind.

    ``temperature`` goes into the file: the fitted one, or ``served`` when ``kept`` says why there is no fit.
    ``interval`` is that of the fit. ``after`` is measured on the examples of the fit, ``held_out`` on
    examples that each fold's fit has not seen; ``gain`` is the negative log-likelihood that a held-out
    example loses (in-sample without folds). ``bins_*`` are the reliability diagram's, after by ``held_out``
    where there is one.
    """

    kind: Kind
    n: int
    served: float
    temperature: float
    kept: str
    interval: Interval | None
    before: Metrics | None
    after: Metrics | None
    held_out: Metrics | None
    gain: Interval | None
    bins_before: tuple[Bin, ...]
    bins_after: tuple[Bin, ...]


def fit_kind(
    kind: Kind, scored: Scored, *, served: float, folds: int, min_examples: int, seed: int
) -> KindReport:
    """Fit ``kind`` on ``scored``, with ``folds`` held-out parts (0: none)."""
    kept = why_no_fit(scored.labels, min_examples)
    fit = None if kept else fit_temperature(scored.scores, scored.labels)
    if fit is None or fit.bound is not None:
        kept = kept or why_at_bound(fit)
        return _kept(kind, scored, served=served, kept=kept, seed=seed)
    return _fitted(kind, scored, served=served, temperature=fit.temperature, folds=folds, seed=seed)


def _fitted(
    kind: Kind, scored: Scored, *, served: float, temperature: float, folds: int, seed: int
) -> KindReport:
    labels = scored.labels
    before = probabilities_at(scored.scores, served)
    after = probabilities_at(scored.scores, temperature)
    held_out = held_out_probabilities(scored, folds=folds, seed=seed) if folds else after
    gains = losses(before, labels) - losses(held_out, labels)
    stages = [example_figures(stage, labels) for stage in (before, after, held_out)]
    # One pass for all: the resamples are the same, which also makes their differences comparable.
    means = mean_and_resamples(np.hstack([*stages, gains[:, None], slope_curves(scored)]), seed=seed)
    width = stages[0].shape[1]
    figures = [metrics_of(means[:, first : first + width]) for first in (0, width, 2 * width)]
    temperatures = list(map(zero_crossing, means[1:, 3 * width + 1 :]))
    return KindReport(
        kind=kind,
        n=len(labels),
        served=served,
        temperature=temperature,
        kept="",
        interval=Interval.of(temperature, temperatures),
        before=figures[0],
        after=figures[1],
        held_out=figures[2] if folds else None,
        gain=interval(means[:, 3 * width]),
        bins_before=reliability(before, labels, DIAGRAM_BINS),
        bins_after=reliability(held_out, labels, DIAGRAM_BINS),
    )


def _kept(kind: Kind, scored: Scored, *, served: float, kept: str, seed: int) -> KindReport:
    n = len(scored.labels)
    before = probabilities_at(scored.scores, served) if n else None
    return KindReport(
        kind=kind,
        n=n,
        served=served,
        temperature=served,
        kept=kept,
        interval=None,
        before=None if before is None else measure(before, scored.labels, seed=seed),
        after=None,
        held_out=None,
        gain=None,
        bins_before=() if before is None else reliability(before, scored.labels, DIAGRAM_BINS),
        bins_after=(),
    )


def why_no_fit(labels: Labels, min_examples: int) -> str:
    """Why ``labels`` allow no fit; empty when they do."""
    if len(labels) < min_examples:
        return f"{len(labels)} examples, fewer than {min_examples}"
    if np.all(labels == labels[0]):
        return f"every label is option {labels[0]}: nothing tells right answers from a constant one"
    return ""


def why_at_bound(fit: Fit | None) -> str:
    """Why a fit that ran to the end of its range is none."""
    if fit is None or fit.bound is None:
        return ""
    if fit.bound == "lowest":
        return (
            "the answers are right so often that every lower temperature fits better: no finite one is best"
        )
    return "the answers agree with the labels no better than chance: every higher temperature fits better"


def held_out_probabilities(scored: Scored, *, folds: int, seed: int) -> Floats:
    """Probabilities (n, k) of each example at the temperature fitted on the other folds."""
    scores, labels = scored.scores, scored.labels
    order = np.random.default_rng(seed).permutation(len(labels))
    probabilities = np.empty_like(scores)
    for part in np.array_split(order, folds):
        rest = np.setdiff1d(order, part)
        temperature = fit_temperature(scores[rest], labels[rest]).temperature
        probabilities[part] = probabilities_at(scores[part], temperature)
    return probabilities


def slope_curves(scored: Scored) -> Floats:
    """Each example's slope at the temperatures of the grid: (n, grid)."""
    return np.column_stack([slopes(scored.scores, scored.labels, math.exp(log)) for log in LOG_GRID])


def zero_crossing(curve: Floats) -> float:
    """The temperature at which the mean slope, known on the grid, reaches zero: that of the best fit.

    The slope falls as the temperature rises; where it does not reach zero, the nearer end of the range.
    """
    # Both reversed: np.interp wants rising abscissae.
    return math.exp(float(np.interp(0.0, curve[::-1], LOG_GRID[::-1])))
