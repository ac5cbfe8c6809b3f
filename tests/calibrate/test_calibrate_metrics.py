"""The figures against scikit-learn's and scipy's own."""

import numpy as np
import pytest
from calibration_data import drawn
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import accuracy_score, brier_score_loss, log_loss

from decideploy.calibrate import expected_calibration_error, measure, probabilities_at
from decideploy.calibrate.metrics import mean_and_resamples, reliability


@pytest.fixture(scope="module", params=[(2, 300), (6, 1000), (16, 500)], ids=str)
def answers(request: pytest.FixtureRequest):
    options, n = request.param
    scored = drawn(n, temperature=1.6, options=options, seed=options)
    return probabilities_at(scored.scores, 1.0), scored.labels


def test_figures_agree_with_scikit_learn(answers) -> None:
    probabilities, labels = answers
    options = range(probabilities.shape[1])
    figures = measure(probabilities, labels, seed=0)
    assert figures.accuracy.value == pytest.approx(accuracy_score(labels, probabilities.argmax(axis=1)))
    assert figures.nll.value == pytest.approx(log_loss(labels, probabilities, labels=list(options)))
    brier = brier_score_loss(labels, probabilities, labels=list(options), scale_by_half=False)
    assert figures.brier.value == pytest.approx(brier)


def test_the_interval_is_that_of_scipys_bootstrap(answers) -> None:
    from scipy.stats import bootstrap

    probabilities, labels = answers
    losses = -np.log(probabilities[np.arange(len(labels)), labels])
    oracle = bootstrap((losses,), np.mean, n_resamples=1000, method="percentile", rng=1).confidence_interval
    figure = measure(probabilities, labels, seed=0).nll
    width = oracle.high - oracle.low
    assert figure.low == pytest.approx(oracle.low, abs=0.15 * width)
    assert figure.high == pytest.approx(oracle.high, abs=0.15 * width)


def test_certainty_falls_into_the_last_bin() -> None:
    probabilities, labels = np.array([[1.0, 0.0], [0.0, 1.0]]), np.array([0, 0])
    bins = reliability(probabilities, labels, 10)
    assert [bin_.count for bin_ in bins] == [0] * 9 + [2]
    assert bins[-1].accuracy == 0.5
    assert np.isnan(bins[0].accuracy)
    assert expected_calibration_error(probabilities, labels, 10) == pytest.approx(0.5)


@settings(max_examples=40, deadline=None)
@given(
    rows=st.lists(
        st.tuples(st.lists(st.floats(-30, 30), min_size=3, max_size=3), st.integers(0, 2)),
        min_size=1,
        max_size=25,
    )
)
def test_figures_stay_in_their_ranges(rows: list[tuple[list[float], int]]) -> None:
    probabilities = probabilities_at(np.array([scores for scores, _ in rows]), 1.0)
    labels = np.array([label for _, label in rows])
    figures = measure(probabilities, labels, seed=0)
    assert 0 <= figures.accuracy.low <= figures.accuracy.high <= 1
    assert 0 <= figures.ece_10.value <= 1
    assert 0 <= figures.brier.value <= 2
    assert figures.nll.value >= 0
    for count in (10, 15):
        bins = reliability(probabilities, labels, count)
        assert sum(bin_.count for bin_ in bins) == len(rows)
        total = sum(bin_.count * abs(bin_.accuracy - bin_.confidence) for bin_ in bins if bin_.count)
        ece = expected_calibration_error(probabilities, labels, count)
        assert ece == pytest.approx(total / len(rows), abs=1e-12)


def test_means_of_resamples_scatter_like_a_standard_error() -> None:
    column = np.random.default_rng(0).normal(size=(400, 1))
    mean, *means = mean_and_resamples(column, seed=0)[:, 0]
    assert mean == pytest.approx(column.mean())
    assert len(means) == 1000
    assert np.std(means) == pytest.approx(column.std() / 20, rel=0.1)
