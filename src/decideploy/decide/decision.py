"""The value of one decision, the same for every dialect that asked for it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Self

from decideploy.decide.slots import Kind


@dataclass(frozen=True, kw_only=True, slots=True)
class TokenCounts:
    """Tokens over every pass of a decision; cached ones are among the prompt's, reasoning among the rest."""

    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int = 0
    reasoning_tokens: int = 0

    def __add__(self, other: TokenCounts) -> TokenCounts:
        return TokenCounts(
            prompt_tokens=self.prompt_tokens + other.prompt_tokens,
            completion_tokens=self.completion_tokens + other.completion_tokens,
            cached_tokens=self.cached_tokens + other.cached_tokens,
            reasoning_tokens=self.reasoning_tokens + other.reasoning_tokens,
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class Distribution:
    """Probabilities of the options in their order, and what it cost to read them."""

    probabilities: tuple[float, ...]
    usage: TokenCounts
    passes: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Thought:
    """What System 2 did: ``seconds`` of wall time for ``tokens`` of reasoning.

    ``finished`` is False when the budget ended the thought; ``distribution`` is what the model read after it.
    """

    tokens: int
    seconds: float
    finished: bool
    reasoning: str
    distribution: Distribution

    def among(self, system1: Sequence[float], shown: Sequence[int]) -> Thought:
        """The thought over all options: those ``shown`` divide their probability anew."""
        pool = math.fsum(system1[index] for index in shown)
        anew = {
            index: probability * pool
            for index, probability in zip(shown, self.distribution.probabilities, strict=True)
        }
        probabilities = tuple(anew.get(index, before) for index, before in enumerate(system1))
        return replace(self, distribution=replace(self.distribution, probabilities=probabilities))


@dataclass(frozen=True, kw_only=True, slots=True)
class Decision:
    """``probabilities[i]`` is that of ``options[i]``; they sum to 1.

    ``system1`` is the adapter's distribution; with a ``thought`` the answer is the mean of both systems.
    """

    kind: Kind
    options: tuple[str, ...]
    probabilities: tuple[float, ...]
    usage: TokenCounts
    passes: int
    system1: tuple[float, ...]
    thought: Thought | None = None

    @classmethod
    def read(cls, kind: Kind, options: tuple[str, ...], distribution: Distribution) -> Self:
        """System 1's decision."""
        return cls(
            kind=kind,
            options=options,
            probabilities=distribution.probabilities,
            usage=distribution.usage,
            passes=distribution.passes,
            system1=distribution.probabilities,
        )

    def after(self, thought: Thought) -> Decision:
        """The mean of this decision and of System 2's: p = p1/2 + p2/2."""
        read = thought.distribution
        return replace(
            self,
            probabilities=mean((self.system1, read.probabilities)),
            usage=self.usage + read.usage,
            passes=self.passes + read.passes,
            thought=thought,
        )

    @property
    def choice_index(self) -> int:
        """The likeliest option; of equally probable ones the first."""
        return self.probabilities.index(max(self.probabilities))

    @property
    def choice(self) -> str:
        """The likeliest option's text."""
        return self.options[self.choice_index]


def mean(distributions: Sequence[Sequence[float]]) -> tuple[float, ...]:
    """The option-wise mean of distributions over the same options."""
    return tuple(sum(column) / len(distributions) for column in zip(*distributions, strict=True))
