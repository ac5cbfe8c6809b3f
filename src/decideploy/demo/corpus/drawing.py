"""Draw phrases and words of one part of the corpus, so that what is held out stays unseen.

Of every table the places 0, 1 and 2 of each five are for training, place 3 is for calibration and place 4
is held out. Nothing is drawn at random into a part: a table shows which of its lines the model has seen.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TypeVar

from decideploy.decide.schema import DecideRequest
from decideploy.decide.slots import CANONICAL_OPTIONS, MAX_READ_OPTIONS, Kind

T = TypeVar("T")

# How often a word that stands for any thing or person is one that nobody has ever seen.
MADE_UP = 0.12
_ONSETS = ("b", "d", "f", "g", "k", "l", "m", "n", "p", "r", "s", "t", "v", "w", "z", "br", "st", "tr")
_VOWELS = ("a", "e", "i", "o", "u", "ai", "ou")
_ENDS = ("", "", "l", "n", "r", "s", "t", "x")


class Part(StrEnum):
    """Which lines of a table may be drawn."""

    TRAIN = "train"
    CALIBRATION = "calibration"
    HELD_OUT = "held-out"


_PLACES = {Part.TRAIN: (0, 1, 2), Part.CALIBRATION: (3,), Part.HELD_OUT: (4,)}


def part_of(table: Sequence[T], part: Part) -> list[T]:
    """The lines of ``table`` that belong to ``part``."""
    return [line for place, line in enumerate(table) if place % 5 in _PLACES[part]]


@dataclass(frozen=True, kw_only=True, slots=True)
class Decision:
    """One decision whose right answer is known.

    ``label`` is the index of the right one of ``options``; ``evidence`` is the sentence of the state that
    decides, said in the plainest way: the thought of System 2.
    """

    topic: str
    kind: Kind
    state: str
    question: str
    options: tuple[str, ...]
    label: int
    evidence: str

    @property
    def answer(self) -> str:
        """The text of the right option."""
        return self.options[self.label]

    @property
    def request(self) -> DecideRequest:
        """The decision as a client asks it."""
        return DecideRequest(
            kind=self.kind,
            state=self.state,
            question=self.question,
            options=self.options if self.kind == "choice" else None,
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class Draw:
    """A random source that sees one part of the templates, ``phrases``, and one of the fillers, ``words``."""

    random: random.Random
    phrases: Part
    words: Part

    def phrase(self, table: Sequence[str]) -> str:
        """A template."""
        return self.random.choice(part_of(table, self.phrases))

    def word(self, table: Sequence[str], *, made_up: bool = False) -> str:
        """A word; ``made_up`` allows one that no table holds."""
        if made_up and self.random.random() < MADE_UP:
            return self._made_up(capital=table[0][0].isupper())
        return self.random.choice(part_of(table, self.words))

    def words_apart(self, table: Sequence[str], count: int, *, made_up: bool = False) -> list[str]:
        """``count`` different words."""
        found: dict[str, None] = {}
        while len(found) < count:
            found[self.word(table, made_up=made_up)] = None
        return list(found)

    def among(self, answer: str, others: Sequence[str]) -> tuple[str, ...]:
        """2 to 16 options in any order, ``answer`` one of them."""
        # Few options are asked about more often than many.
        room = min(MAX_READ_OPTIONS, len(others) + 1)
        count = self.random.randint(2, self.random.randint(2, room))
        options = [answer, *self.random.sample(list(others), count - 1)]
        self.random.shuffle(options)
        return tuple(options)

    def beside(self, word: str, table: Sequence[str]) -> list[str]:
        """Words that may stand beside ``word``: those of training, and of this part."""
        seen = dict.fromkeys(part_of(table, Part.TRAIN) + part_of(table, self.words))
        return without(seen, word)

    def either(self) -> bool:
        """One of two, as likely as the other."""
        return self.random.random() < 0.5

    def _made_up(self, *, capital: bool) -> str:
        syllables = (
            self.random.choice(_ONSETS) + self.random.choice(_VOWELS) + self.random.choice(_ENDS)
            for _ in range(2)
        )
        word = "".join(syllables)
        return word.capitalize() if capital else word


def a(word: str) -> str:
    """``word`` with its indefinite article."""
    return f"{'an' if word[0] in 'aeiou' else 'a'} {word}"


def sentence(text: str) -> str:
    """``text`` with a capital first letter."""
    return text[:1].upper() + text[1:]


def without(table: Iterable[str], word: str) -> list[str]:
    """``table`` less ``word``."""
    return [other for other in table if other != word]


def noul(topic: str, state: str, question: str, *, truth: bool, evidence: str) -> Decision:
    """A question that is false or true."""
    return _canonical(topic, "noul", state, question, label=int(truth), evidence=evidence)


def score(topic: str, state: str, question: str, *, level: int, evidence: str) -> Decision:
    """A question with a ``level`` from 0 to 5."""
    return _canonical(topic, "score", state, question, label=level, evidence=evidence)


def _canonical(topic: str, kind: Kind, state: str, question: str, *, label: int, evidence: str) -> Decision:
    return Decision(
        topic=topic,
        kind=kind,
        state=state,
        question=question,
        options=CANONICAL_OPTIONS[kind],
        label=label,
        evidence=evidence,
    )


def choice(
    topic: str, state: str, question: str, *, options: tuple[str, ...], answer: str, evidence: str
) -> Decision:
    """A question with options of its own."""
    return Decision(
        topic=topic,
        kind="choice",
        state=state,
        question=question,
        options=options,
        label=options.index(answer),
        evidence=evidence,
    )
