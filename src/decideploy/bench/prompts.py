"""Requests of a known length that begin differently each time, so that no prefix cache has seen them."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from decideploy.bench.target import Target
from decideploy.decide.client import PATH
from decideploy.decide.schema import DecideRequest
from decideploy.decide.slots import CANONICAL_OPTIONS, CHOICE_LETTERS, Kind
from decideploy.decide.template import render
from decideploy.errors import ConfigError

# Shuffled in front of every state: 479,001,600 orders, all in the first block of the prefix cache.
FRESH_WORDS: Final = (
    *("parcel", "box", "lamp", "order", "week", "letter"),
    *("price", "road", "door", "house", "table", "paper"),
)
FILLING: Final = (
    *("the", "customer", "writes", "that", "the", "lamp", "which", "came"),
    *("on", "Monday", "does", "not", "switch", "on", "and", "asks"),
)
OPTIONS: Final = ("send a replacement", "refund the price", "ask for a photo", "close the case")
QUESTION: Final = "Is this right?"


@dataclass(frozen=True, kw_only=True, slots=True)
class Prompts:
    """Requests with states of ``words`` words; ``tokens`` is how long the prompt is then."""

    words: int
    tokens: int
    generator: random.Random = field(repr=False)

    def state(self) -> str:
        """A state that begins like none before."""
        return " ".join((*self.generator.sample(FRESH_WORDS, len(FRESH_WORDS)), *filling(self.words)))

    def body(
        self, kind: Kind, *, question: str = QUESTION, options: Sequence[str] = OPTIONS
    ) -> dict[str, Any]:
        """The body of a request of ``kind`` over a fresh state; ``options`` are those of a choice."""
        return decide_body(kind, self.state(), question=question, options=options)


def filling(words: int) -> tuple[str, ...]:
    """The ``words`` words that follow those that vary."""
    whole, rest = divmod(words, len(FILLING))
    return FILLING * whole + FILLING[:rest]


def decide_body(
    kind: Kind, state: str, *, question: str = QUESTION, options: Sequence[str] = OPTIONS
) -> dict[str, Any]:
    """A body of ``/v1/decide``."""
    body: dict[str, Any] = {"kind": kind, "state": state, "question": question}
    return {**body, "options": list(options)} if kind == "choice" else body


async def prompts_of_length(target: Target, kind: Kind, tokens: int, generator: random.Random) -> Prompts:
    """Prompts of about ``tokens`` tokens, found by asking the server how long it finds them.

    ConfigError when the shortest prompt is longer already.
    """
    # Whole repetitions of the filling, so that the length grows in equal steps.
    step = len(FILLING)
    shortest, longer = [await length(target, kind, words, generator) for words in (0, step)]
    if tokens < shortest:
        raise ConfigError(
            f"no prompt has {tokens} tokens: the shortest has {shortest}",
            where="--prompt-tokens",
            next_step=f"give {shortest} or more",
        )
    words = round((tokens - shortest) * step / (longer - shortest))
    return Prompts(words=words, tokens=await length(target, kind, words, generator), generator=generator)


async def length(target: Target, kind: Kind, words: int, generator: random.Random) -> int:
    """How many tokens the server counts in a prompt with ``words`` words of filling."""
    body = Prompts(words=words, tokens=0, generator=generator).body(kind)
    return int((await target.ask(PATH, body))["usage"]["prompt_tokens"])


@dataclass(frozen=True, kw_only=True, slots=True)
class TokenPrompts:
    """The same reads for ``/v1/completions``: token ids, of which ``fresh`` are shuffled each time."""

    model: str
    before: tuple[int, ...]
    fresh: tuple[int, ...]
    after: tuple[int, ...]
    slots: tuple[int, ...]
    generator: random.Random = field(repr=False)

    def body(self) -> dict[str, Any]:
        """The body of a completion that reads the slots' log-probabilities."""
        shuffled = self.generator.sample(self.fresh, len(self.fresh))
        return {
            "model": self.model,
            "prompt": [*self.before, *shuffled, *self.after],
            "max_tokens": 1,
            "temperature": 1.0,
            "top_k": 0,
            "top_p": 1.0,
            "allowed_token_ids": list(self.slots),
            "logprobs": len(self.slots),
            "return_tokens_as_token_ids": True,
        }


async def token_prompts(target: Target, kind: Kind, prompts: Prompts, model: str) -> TokenPrompts:
    """The token ids that the server's tokenizer makes of ``prompts``, split where the states differ."""
    states = [" ".join((*order, *filling(prompts.words))) for order in (FRESH_WORDS, FRESH_WORDS[::-1])]
    one, other = [await tokens_of(target, rendered(kind, state)) for state in states]
    first = shared(one, other)
    last = shared(one[first:][::-1], other[first:][::-1])
    labels = CHOICE_LETTERS[: len(OPTIONS)] if kind == "choice" else CANONICAL_OPTIONS[kind]
    slots = [await tokens_of(target, label, special=False) for label in labels]
    return TokenPrompts(
        model=model,
        before=tuple(one[:first]),
        fresh=tuple(one[first : len(one) - last]),
        after=tuple(one[len(one) - last :]),
        slots=tuple(ids[0] for ids in slots),
        generator=prompts.generator,
    )


def rendered(kind: Kind, state: str) -> str:
    """The text of the prompt that ``/v1/decide`` makes over ``state``."""
    return render(DecideRequest.model_validate(decide_body(kind, state)))


async def tokens_of(target: Target, text: str, *, special: bool = True) -> list[int]:
    """``text`` as the server's tokenizer reads it, BOS first when ``special``."""
    answer = await target.ask("/tokenize", {"prompt": text, "add_special_tokens": special})
    return [int(token) for token in answer["tokens"]]


def shared(one: Sequence[int], other: Sequence[int]) -> int:
    """How many tokens two prompts have in common from their beginning."""
    pairs = zip(one, other, strict=False)
    return next((index for index, (a, b) in enumerate(pairs) if a != b), min(len(one), len(other)))
