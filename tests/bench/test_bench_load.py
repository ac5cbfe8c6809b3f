import asyncio
import math

import numpy as np
import pytest

from decideploy.bench import Sample, closed_loop, median_ratio, open_loop, summarize
from decideploy.bench.prompts import FRESH_WORDS, Prompts, filling, shared


def sample(latency_s: float, status: str = "200", late_s: float = 0.0) -> Sample:
    return Sample(due_s=0.0, latency_s=latency_s, late_s=late_s, status=status)


def test_a_closed_loop_keeps_as_many_under_way_as_it_has_clients() -> None:
    under_way, most = 0, 0

    async def call() -> str:
        nonlocal under_way, most
        under_way += 1
        most = max(most, under_way)
        await asyncio.sleep(0.005)
        under_way -= 1
        return "200"

    samples = asyncio.run(closed_loop(call, clients=3, duration_s=0.5))
    assert most == 3
    assert len(samples) > 3
    assert all(one.latency_s >= 0.004 for one in samples)
    assert under_way == 0


def test_an_open_loop_does_not_wait_for_answers() -> None:
    async def call() -> str:
        await asyncio.sleep(0.1)
        return "503"

    samples = asyncio.run(open_loop(call, rate_per_s=400, duration_s=0.1, seed=1))
    assert len(samples) > 20
    assert {one.status for one in samples} == {"503"}
    gaps = np.diff([0.0, *(one.due_s for one in samples)])
    assert gaps.mean() == pytest.approx(1 / 400, rel=0.6)
    assert gaps.std() > gaps.mean() / 3


def test_an_open_loop_counts_from_the_time_a_request_was_due() -> None:
    async def blocking() -> str:
        # Keeps the loop busy, so that the requests behind it are sent late.
        end = asyncio.get_running_loop().time() + 0.01
        while asyncio.get_running_loop().time() < end:
            pass
        return "200"

    samples = asyncio.run(open_loop(blocking, rate_per_s=1000, duration_s=0.02, seed=0))
    assert samples[-1].late_s > 0.02
    assert all(one.latency_s >= one.late_s + 0.01 for one in samples)


def test_a_row_counts_answers_and_errors_apart() -> None:
    samples = [sample(0.1), sample(0.2), sample(0.3), sample(9.0, "503"), sample(9.0, "timeout")]
    row = summarize(samples, scenario="s", arm="a", load="l", prompt_tokens=7, duration_s=2.0, cpu_s=0.005)
    assert (row.requests, row.errors) == (5, {"503": 1, "timeout": 1})
    assert row.rate_per_s == 1.5
    assert row.p50_s == pytest.approx(0.2)
    assert row.p99_s < 0.31
    assert row.client_cpu_ms == pytest.approx(1.0)


def test_a_row_without_answers_has_no_latency() -> None:
    row = summarize(
        [sample(1.0, "500")], scenario="s", arm="a", load="l", prompt_tokens=7, duration_s=2.0, cpu_s=0.0
    )
    assert math.isnan(row.p50_s)
    assert row.rate_per_s == 0


def test_the_ratio_of_medians_lies_in_its_interval() -> None:
    generator = np.random.default_rng(0)
    below = generator.lognormal(sigma=0.1, size=(20, 30))
    above = 1.08 * generator.lognormal(sigma=0.1, size=(20, 30))
    ratio = median_ratio(list(above), list(below), seed=0)
    assert ratio.low < 1.08 < ratio.high
    assert ratio.low < ratio.value < ratio.high
    assert ratio.high - ratio.low < 0.1


def test_drift_that_hits_both_arms_does_not_widen_the_interval() -> None:
    speed = np.linspace(1, 3, 20)[:, None] * np.ones((20, 5))
    ratio = median_ratio(list(1.5 * speed), list(speed), seed=0)
    assert (ratio.low, ratio.value, ratio.high) == pytest.approx((1.5, 1.5, 1.5))


def test_a_ratio_without_answers_is_no_number() -> None:
    assert math.isnan(median_ratio([[], []], [[1.0], [1.0]], seed=0).value)


def test_states_begin_differently_and_keep_their_length() -> None:
    import random

    prompts = Prompts(words=40, tokens=0, generator=random.Random(0))
    states = {prompts.state() for _ in range(50)}
    assert len(states) == 50
    assert {len(state.split()) for state in states} == {40 + len(FRESH_WORDS)}
    assert len({state.split()[0] for state in states}) > 5
    assert len(filling(0)) == 0


def test_shared_tokens_are_counted_from_the_beginning() -> None:
    assert shared([1, 2, 3], [1, 2, 4]) == 2
    assert shared([1, 2], [1, 2, 3]) == 2
    assert shared([], [1]) == 0
