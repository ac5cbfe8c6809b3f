"""The served engine against transformers + PEFT with the float32 head, and against itself."""

from concurrent.futures import ThreadPoolExecutor

import httpx
import numpy as np
import pytest
from decisions import bare_prompt, random_decisions

from decideploy.decide import DecideRequest, PromptEncoder, render

pytestmark = pytest.mark.integration

COUNT = 300
CONCURRENCY = 64
MEAN_BOUND, LARGEST_BOUND, MARGIN = 0.015, 0.08, 0.05


def body(decision):
    fields = {"kind": decision.kind, "state": decision.state, "question": decision.question}
    return fields | ({"options": list(decision.options)} if decision.kind == "choice" else {})


@pytest.fixture(scope="module")
def decisions():
    return random_decisions(COUNT, seed=20260930)


@pytest.fixture(scope="module")
def prompts(decisions, demo_model):
    encoder = PromptEncoder.from_model(demo_model)
    return [encoder.encode(bare_prompt(decision)) for decision in decisions]


@pytest.fixture(scope="module")
def expected(decisions, prompts, demo_model):
    from reference import Reference

    kinds = [decision.kind for decision in decisions]
    return Reference(demo_model).probabilities(prompts, kinds, [len(d.options) for d in decisions])


def ask_all(url, decisions, workers):
    with httpx.Client(base_url=url, timeout=600) as client, ThreadPoolExecutor(workers) as pool:
        replies = list(pool.map(lambda decision: client.post("/v1/decide", json=body(decision)), decisions))
    assert {reply.status_code for reply in replies} == {200}
    return [np.array(reply.json()["probabilities"]) for reply in replies]


@pytest.fixture(scope="module")
def alone(server, decisions):
    return ask_all(server.url, decisions, 1)


@pytest.fixture(scope="module")
def batched(server, decisions):
    return ask_all(server.url, decisions, CONCURRENCY)


def check_agreement(found, wanted, figure, title):
    largest = np.array([np.abs(a - b).max() for a, b in zip(found, wanted, strict=True)])
    flips = [
        place
        for place, (a, b) in enumerate(zip(found, wanted, strict=True))
        if np.diff(np.sort(b)[-2:])[0] > MARGIN and a.argmax() != b.argmax()
    ]
    figure(
        f"{title}: {len(largest)} decisions, largest probability difference: "
        f"mean {largest.mean():.4f}, p99 {np.quantile(largest, 0.99):.4f}, max {largest.max():.4f}; "
        f"argmax differs beyond a margin of {MARGIN} in {len(flips)}"
    )
    assert largest.mean() <= MEAN_BOUND
    assert largest.max() <= LARGEST_BOUND
    assert not flips


def test_template_is_the_published_one(decisions):
    for decision in decisions:
        assert render(DecideRequest.model_validate(body(decision))) == bare_prompt(decision)


def test_server_agrees_with_the_reference(alone, expected, figure):
    check_agreement(alone, expected, figure, "server, one at a time, vs reference")


def test_full_batch_agrees_with_the_reference(batched, expected, figure):
    check_agreement(batched, expected, figure, f"server, {CONCURRENCY} at once, vs reference")


def test_full_batch_agrees_with_alone(batched, alone, figure):
    check_agreement(batched, alone, figure, f"server, {CONCURRENCY} at once, vs one at a time")


def test_answers_are_informative(alone, figure):
    leading = np.array([answer.max() for answer in alone])
    lower, upper = np.quantile(leading, [0.25, 0.75])
    figure(f"leading probability: lower quartile {lower:.3f}, upper quartile {upper:.3f}")
    assert lower < 0.6
    assert upper > 0.85
