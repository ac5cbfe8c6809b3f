"""The served engine against transformers + PEFT with the float32 head, and against itself."""

import numpy as np
import pytest
from agreement import ask_all, body, check_agreement
from decisions import bare_prompt, random_decisions

from decideploy.decide import DecideRequest, PromptEncoder, render

pytestmark = pytest.mark.integration

COUNT = 300
CONCURRENCY = 64


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


@pytest.fixture(scope="module")
def alone(server, decisions):
    return ask_all(server.url, decisions, 1)


@pytest.fixture(scope="module")
def batched(server, decisions):
    return ask_all(server.url, decisions, CONCURRENCY)


@pytest.fixture
def record(figure):
    """A function that gives the place where a comparison's figures are told."""
    return lambda title: lambda told: figure(f"{title}: {told}")


def test_template_is_the_published_one(decisions):
    for decision in decisions:
        assert render(DecideRequest.model_validate(body(decision))) == bare_prompt(decision)


def test_server_agrees_with_the_reference(alone, expected, record):
    check_agreement(alone, expected, record("server, one at a time, vs reference"))


def test_full_batch_agrees_with_the_reference(batched, expected, record):
    check_agreement(batched, expected, record(f"server, {CONCURRENCY} at once, vs reference"))


def test_full_batch_agrees_with_alone(batched, alone, record):
    check_agreement(batched, alone, record(f"server, {CONCURRENCY} at once, vs one at a time"))


def test_answers_are_informative(alone, figure):
    leading = np.array([answer.max() for answer in alone])
    lower, upper = np.quantile(leading, [0.25, 0.75])
    figure(f"leading probability: lower quartile {lower:.3f}, upper quartile {upper:.3f}")
    assert lower < 0.6
    assert upper > 0.85
