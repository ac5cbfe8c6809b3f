import math

import numpy as np
import pytest
from decide_fakes import FIRST_LABEL_ID, make_head
from hypothesis import given
from hypothesis import strategies as st

from decideploy.decide import allowed_token_ids, read_out
from decideploy.errors import EngineError

HEAD = make_head()
LOGPROB = st.floats(min_value=-60.0, max_value=0.0)


def by_token(values: list[float], kind: str = "choice") -> dict[int, float]:
    first = {"noul": 0, "score": 2, "choice": 8}[kind]
    return {FIRST_LABEL_ID + first + index: value for index, value in enumerate(values)}


def test_allowed_ids_are_those_of_the_active_slots() -> None:
    assert allowed_token_ids(HEAD, "noul", 2) == (300, 301)
    assert allowed_token_ids(HEAD, "score", 6) == (302, 303, 304, 305, 306, 307)
    assert allowed_token_ids(HEAD, "choice", 3) == (308, 309, 310)


@pytest.mark.parametrize(("kind", "first", "count"), [("noul", 0, 2), ("score", 2, 6), ("choice", 8, 11)])
def test_equals_an_independent_computation(kind: str, first: int, count: int) -> None:
    values = np.linspace(-9.0, -0.01, count)
    scores = (values + np.asarray(HEAD.bias)[first : first + count]) / 1.7
    expected = np.exp(scores) / np.exp(scores).sum()
    actual = read_out(by_token(values.tolist(), kind), kind, count, HEAD, 1.7)  # type: ignore[arg-type]
    np.testing.assert_allclose(actual, expected, rtol=1e-12)


def test_by_hand() -> None:
    head = make_head(bias=[0.0, math.log(3.0)] + [0.0] * 22)
    assert read_out({300: -1.0, 301: -1.0}, "noul", 2, head, 1.0) == pytest.approx((0.25, 0.75))


@given(values=st.lists(LOGPROB, min_size=2, max_size=16), temperature=st.floats(0.05, 20.0))
def test_probabilities_sum_to_one(values: list[float], temperature: float) -> None:
    probabilities = read_out(by_token(values), "choice", len(values), HEAD, temperature)
    assert math.fsum(probabilities) == pytest.approx(1.0, abs=1e-12)
    assert all(0.0 <= probability <= 1.0 for probability in probabilities)


@given(values=st.lists(LOGPROB, min_size=2, max_size=16), data=st.data())
def test_permuted_slots_give_permuted_probabilities(values: list[float], data: st.DataObject) -> None:
    order = data.draw(st.permutations(range(len(values))))
    head = make_head(bias=[0.0] * 24)
    plain = read_out(by_token(values), "choice", len(values), head, 1.3)
    permuted = read_out(by_token([values[i] for i in order]), "choice", len(values), head, 1.3)
    assert permuted == pytest.approx([plain[i] for i in order], rel=1e-12)


@given(values=st.lists(LOGPROB, min_size=2, max_size=16), shift=st.floats(-20.0, 20.0))
def test_normalisation_of_the_engine_does_not_matter(values: list[float], shift: float) -> None:
    plain = read_out(by_token(values), "choice", len(values), HEAD, 1.0)
    shifted = read_out(by_token([value + shift for value in values]), "choice", len(values), HEAD, 1.0)
    assert shifted == pytest.approx(plain, abs=1e-9)


@pytest.mark.parametrize("value", [None, math.nan, math.inf, -math.inf, -9999.0, -10000.0])
def test_a_slot_without_a_number_is_an_error(value: float | None) -> None:
    logprobs = {308: -0.1, 309: -2.0} | ({} if value is None else {310: value})
    with pytest.raises(EngineError, match=r"C is (missing|nan|inf|-inf|-\d+)") as caught:
        read_out(logprobs, "choice", 3, HEAD, 1.0)
    assert caught.value.status == 502


def test_every_unusable_slot_is_named() -> None:
    with pytest.raises(EngineError, match=r"A is missing, C is nan"):
        read_out({309: -2.0, 310: math.nan}, "choice", 3, HEAD, 1.0)


@pytest.mark.parametrize(
    ("bias", "temperature"), [([0.0] * 24, 1e-320), ([1e307] * 24, 0.01), ([1e308, -1e308] * 12, 0.01)]
)
def test_a_read_out_that_is_not_finite_is_an_error(bias: list[float], temperature: float) -> None:
    with pytest.raises(EngineError, match="not finite") as caught:
        read_out({300: -1.0, 301: -2.0}, "noul", 2, make_head(bias=bias), temperature)
    assert caught.value.status == 502


def test_foreign_tokens_are_ignored() -> None:
    assert read_out({300: -1.0, 301: -1.0, 7: 0.0}, "noul", 2, make_head(bias=[0.0] * 24), 1.0) == (0.5, 0.5)
