import math

import numpy as np
import pytest
from calibration_data import drawn
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize_scalar

from decideploy.calibrate import Scored, fit_kind, fit_temperature, measure, probabilities_at
from decideploy.calibrate.kinds import held_out_probabilities, slope_curves, zero_crossing
from decideploy.calibrate.metrics import losses, mean_and_resamples, resample_counts
from decideploy.calibrate.run import recovered_scores
from decideploy.decide.readout import softmax

FINITE = st.floats(-20, 20)


@pytest.mark.parametrize(
    ("temperature", "n"), [(0.6, 500), pytest.param(1.7, 5000, marks=pytest.mark.integration), (3.0, 500)]
)
def test_a_known_temperature_is_recovered(temperature: float, n: int) -> None:
    report = fit_kind(
        "choice", drawn(n, temperature=temperature), served=1.0, folds=5, min_examples=100, seed=0
    )
    assert report.kept == ""
    assert report.interval is not None
    assert report.interval.low <= temperature <= report.interval.high
    assert report.interval.high / report.interval.low < 1 + 16 / n**0.5
    assert report.temperature == pytest.approx(temperature, rel=0.25)


@pytest.mark.parametrize("options", [2, 6, 16])
def test_the_fit_is_the_optimum_that_scipy_finds(options: int) -> None:
    scored = drawn(500, temperature=1.4, options=options, seed=options)

    def loss(log_temperature: float) -> float:
        return float(losses(probabilities_at(scored.scores, math.exp(log_temperature)), scored.labels).mean())

    oracle = minimize_scalar(
        loss, bounds=(math.log(0.01), math.log(100)), method="bounded", options={"xatol": 1e-10}
    )
    assert fit_temperature(scored.scores, scored.labels).temperature == pytest.approx(
        math.exp(oracle.x), rel=1e-6
    )


def test_the_bootstrap_refits_each_resample() -> None:
    scored = drawn(400, temperature=1.7, options=3)
    curves = mean_and_resamples(slope_curves(scored), seed=3)[1:]
    counts = next(resample_counts(400, seed=3))
    for row in range(3):
        rows = np.repeat(np.arange(400), counts[row].astype(int))
        refit = fit_temperature(scored.scores[rows], scored.labels[rows]).temperature
        assert zero_crossing(curves[row]) == pytest.approx(refit, rel=1e-3)


@given(
    scores=st.lists(FINITE, min_size=2, max_size=16),
    temperature=st.floats(0.1, 100),
)
def test_scores_come_back_up_to_one_constant(scores: list[float], temperature: float) -> None:
    probabilities = softmax([score / temperature for score in scores])
    recovered = recovered_scores(probabilities, temperature)
    assert recovered is not None
    constants = [back - score for back, score in zip(recovered, scores, strict=True)]
    assert max(constants) - min(constants) < 1e-12 * max(1.0, temperature) * 64


def test_a_score_that_underflowed_is_known_to_be_lost() -> None:
    assert recovered_scores([1.0, 0.0], 1.0) is None
    assert recovered_scores([1.0, 5e-324], 1.0) is None
    assert recovered_scores([1.0, 1e-300], 1.0) is not None


@settings(max_examples=40, deadline=None)
@given(
    data=st.lists(
        st.tuples(st.lists(FINITE, min_size=3, max_size=3), st.integers(0, 2)), min_size=1, max_size=30
    ),
    constant=FINITE,
)
def test_the_fit_stays_in_range_and_ignores_constants(
    data: list[tuple[list[float], int]], constant: float
) -> None:
    scores, labels = np.array([row for row, _ in data]), np.array([label for _, label in data])
    fit = fit_temperature(scores, labels)
    assert 0.01 <= fit.temperature <= 100
    shifted = fit_temperature(scores + constant, labels)
    if fit.bound is None and shifted.bound is None:
        assert shifted.temperature == pytest.approx(fit.temperature, rel=1e-6)


def test_scaled_scores_scale_the_temperature() -> None:
    scored = drawn(300, temperature=1.0)
    fit, tripled = (fit_temperature(scored.scores * factor, scored.labels) for factor in (1, 3))
    assert tripled.temperature == pytest.approx(3 * fit.temperature, rel=1e-9)


def test_a_fit_never_makes_the_likelihood_worse_and_keeps_every_choice() -> None:
    scored = drawn(200, temperature=2.5, options=5)
    report = fit_kind("choice", scored, served=1.0, folds=0, min_examples=100, seed=0)
    assert report.before is not None
    assert report.after is not None
    assert report.gain is not None
    assert report.held_out is None
    assert report.after.nll.value < report.before.nll.value
    assert report.after.accuracy == report.before.accuracy
    assert report.gain.value == pytest.approx(report.before.nll.value - report.after.nll.value)
    assert report.after.ece_10.value < report.before.ece_10.value


@pytest.mark.parametrize(
    ("scored", "words"),
    [
        (drawn(99, temperature=1.0), "99 examples, fewer than 100"),
        (Scored(scores=np.empty((0, 16)), labels=np.empty(0, dtype=np.int64)), "0 examples"),
        (
            Scored(scores=drawn(200, temperature=1.0).scores, labels=np.full(200, 2)),
            "every label is option 2",
        ),
        (Scored(scores=np.tile([1.0, 1.0], (200, 1)), labels=np.arange(200) % 2), "no better than chance"),
        (Scored(scores=np.eye(2)[np.arange(200) % 2], labels=np.arange(200) % 2), "no finite one is best"),
        (
            Scored(scores=np.eye(2)[np.arange(200) % 2], labels=1 - np.arange(200) % 2),
            "no better than chance",
        ),
    ],
)
def test_what_cannot_be_fitted_keeps_the_served_temperature(scored: Scored, words: str) -> None:
    report = fit_kind("choice", scored, served=1.25, folds=5, min_examples=100, seed=0)
    assert words in report.kept
    assert report.temperature == 1.25
    assert report.interval is report.after is report.held_out is report.gain is None


def test_held_out_answers_never_saw_their_own_label() -> None:
    scored = drawn(60, temperature=1.0, seed=4)
    order = np.random.default_rng(7).permutation(60)
    part = np.array_split(order, 3)[0]
    changed = scored.labels.copy()
    changed[part] = (changed[part] + 1) % 4
    before = held_out_probabilities(scored, folds=3, seed=7)
    after = held_out_probabilities(Scored(scores=scored.scores, labels=changed), folds=3, seed=7)
    assert np.array_equal(before[part], after[part])
    assert not np.array_equal(before, after)
    assert np.allclose(before.sum(axis=1), 1)


def test_the_same_seed_gives_the_same_figures() -> None:
    scored = drawn(150, temperature=1.5)
    probabilities = probabilities_at(scored.scores, 1.0)
    assert measure(probabilities, scored.labels, seed=1) == measure(probabilities, scored.labels, seed=1)
    assert measure(probabilities, scored.labels, seed=1) != measure(probabilities, scored.labels, seed=2)
