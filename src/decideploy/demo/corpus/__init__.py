"""What the trained demo model learnt from: decisions with known answers, made from templates and words."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator

from decideploy.demo.corpus import dates, numbers, reviews, shapes, tickets
from decideploy.demo.corpus.drawing import Decision, Draw, Part
from decideploy.demo.corpus.exercises import EXERCISES

__all__ = ["QUESTIONS", "Decision", "Draw", "Part", "decisions", "exercises"]

QUESTIONS: tuple[Callable[[Draw], Decision], ...] = (
    *tickets.QUESTIONS,
    *reviews.QUESTIONS,
    *numbers.QUESTIONS,
    *dates.QUESTIONS,
    *shapes.QUESTIONS,
)


def decisions(seed: int, *, phrases: Part, words: Part) -> Iterator[Decision]:
    """Decisions without end, the same for the same ``seed``, every sort of question as often as any other.

    ``phrases`` and ``words`` say which templates and which words of the tables may be drawn.
    """
    draw = _draw(seed, phrases, words)
    while True:
        for question in draw.random.sample(QUESTIONS, len(QUESTIONS)):
            yield question(draw)


def exercises(seed: int) -> Iterator[tuple[str, str]]:
    """Texts and the look-ups in them, without end, of the words of training."""
    draw = _draw(seed, Part.TRAIN, Part.TRAIN)
    while True:
        yield draw.random.choice(EXERCISES)(draw)


def _draw(seed: int, phrases: Part, words: Part) -> Draw:
    return Draw(random=random.Random(f"{seed} {phrases} {words}"), phrases=phrases, words=words)
