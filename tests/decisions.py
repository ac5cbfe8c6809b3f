"""Random decisions for parity checks: varied in kind, words, length and number of options."""

from __future__ import annotations

import random
from dataclasses import dataclass

NOUNS = [
    "customer",
    "refund",
    "parcel",
    "doctor",
    "report",
    "server",
    "garden",
    "flight",
    "ticket",
    "invoice",
    "school",
    "bridge",
    "weather",
    "market",
    "driver",
    "patient",
    "kitchen",
    "battery",
    "contract",
    "password",
    "engineer",
    "river",
    "painting",
    "library",
    "lawyer",
    "concert",
]
VERBS = [
    "asked",
    "found",
    "lost",
    "broke",
    "changed",
    "wanted",
    "returned",
    "checked",
    "refused",
    "delivered",
    "bought",
    "missed",
    "repaired",
]
ADJECTIVES = [
    "late",
    "new",
    "broken",
    "cheap",
    "urgent",
    "quiet",
    "strange",
    "perfect",
    "wrong",
    "early",
    "heavy",
    "clean",
    "dark",
    "honest",
]
PLACES = [
    "in the office",
    "at home",
    "near the station",
    "on the road",
    "after the storm",
    "before noon",
    "in Oslo",
]
QUESTIONS = (
    "Is the {noun} {adjective}?",
    "Should the {noun} be replaced?",
    "How {adjective} is the {noun}?",
    "What should happen with the {noun} next?",
    "Which answer describes the {adjective} {noun} best?",
    "Who has to pay for the {noun}?",
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Decision:
    """One decision as a client would ask it; ``options`` are the client's only for choice."""

    kind: str
    state: str
    question: str
    options: tuple[str, ...]


CANONICAL_OPTIONS = {"noul": ("false", "true"), "score": tuple("012345")}


def random_decisions(count: int, *, seed: int) -> tuple[Decision, ...]:
    """``count`` decisions, the three kinds in turn."""
    rng = random.Random(seed)
    return tuple(_decision(rng, ("noul", "score", "choice")[number % 3]) for number in range(count))


def _decision(rng: random.Random, kind: str) -> Decision:
    sentences = [_sentence(rng) for _ in range(rng.choice((1, 1, 2, 3, 5)))]
    question = rng.choice(QUESTIONS).format(noun=rng.choice(NOUNS), adjective=rng.choice(ADJECTIVES))
    options = CANONICAL_OPTIONS.get(kind) or tuple(_options(rng, rng.randint(2, 16)))
    return Decision(kind=kind, state=" ".join(sentences), question=question, options=options)


def _sentence(rng: random.Random) -> str:
    subject = f"The {rng.choice(ADJECTIVES)} {rng.choice(NOUNS)}"
    event = f"{rng.choice(VERBS)} the {rng.choice(NOUNS)} {rng.choice(PLACES)}"
    return f"{subject} {event}, {rng.randint(2, 99)} times."


def _options(rng: random.Random, count: int) -> list[str]:
    return rng.sample([f"{adjective} {noun}" for adjective in ADJECTIVES for noun in NOUNS], count)


def bare_prompt(decision: Decision) -> str:
    """The bare-v1 prompt after BOS, spelled out again: a witness for the product's template."""
    lines = decision.options
    if decision.kind == "choice":
        lines = tuple(f"{'ABCDEFGHIJKLMNOP'[place]}) {text}" for place, text in enumerate(decision.options))
    return "\n".join(
        (
            f"[kind] {decision.kind}",
            f"[state] {decision.state}",
            f"[question] {decision.question}",
            "[options]",
            *lines,
            "[decision]:",
        )
    )
