"""Choices among more options than one reading has letters for.

``tournament`` is the model's published procedure. ``single`` and ``permute`` are names that it publishes
without their procedure; the ones here are ours.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Coroutine, Sequence
from itertools import pairwise
from typing import Any, TypeAlias

from decideploy.decide.concurrency import all_of
from decideploy.decide.decision import Distribution, TokenCounts, mean
from decideploy.decide.readout import softmax
from decideploy.decide.slots import MAX_READ_OPTIONS

# Reads the options with these indices, 2 to 16 of them, in this order.
Read: TypeAlias = Callable[[Sequence[int]], Coroutine[Any, Any, Distribution]]

ROTATIONS = 4


async def tournament(n_options: int, read: Read, *, order: Sequence[int] | None = None) -> Distribution:
    """Balanced contiguous groups read at once, then their best in a final: two rounds, every option read.

    ``order`` are the options' indices as they are seated, by default their own order.
    """
    order = range(n_options) if order is None else order
    seats = groups(order)
    rounds = await all_of(read(group) for group in seats)
    scores = {
        index: probability
        for group, result in zip(seats, rounds, strict=True)
        for index, probability in zip(group, result.probabilities, strict=True)
    }
    chosen = finalists(seats, scores, order)
    final = await read(chosen)
    probabilities = combine(seats, scores, dict(zip(chosen, final.probabilities, strict=True)))
    return _sum([*rounds, final], tuple(probabilities[index] for index in range(n_options)))


async def single(n_options: int, read: Read) -> Distribution:
    """One round: the first option stands in every group and makes their scores comparable.

    By Luce's choice axiom the odds of an option against the common one do not depend on the other options:
    p(i) is proportional to q(i) / q(first) in the group of i. It misjudges where that axiom fails, and is
    noisy where the first option is very improbable.
    """
    seats = [(0, *group) for group in groups(range(1, n_options), MAX_READ_OPTIONS - 1)]
    rounds = await all_of(read(group) for group in seats)
    log_odds = [0.0]
    for result in rounds:
        first, *others = map(_log, result.probabilities)
        log_odds += [other - first for other in others]
    return _sum(rounds, softmax(log_odds))


async def permute(n_options: int, read: Read) -> Distribution:
    """The mean of four tournaments, each with the options rotated by a quarter: letters and groups change."""
    orders = [_rotated(n_options, n_options * turn // ROTATIONS) for turn in range(ROTATIONS)]
    results = await all_of(tournament(n_options, read, order=order) for order in orders)
    return _sum(results, mean([result.probabilities for result in results]))


def groups(order: Sequence[int], most: int = MAX_READ_OPTIONS) -> list[tuple[int, ...]]:
    """``order`` in as few contiguous groups of at most ``most`` as there can be, sizes differing by one."""
    count = -(-len(order) // most)
    bounds = [len(order) * group // count for group in range(count + 1)]
    return [tuple(order[begin:end]) for begin, end in pairwise(bounds)]


def finalists(
    seats: Sequence[Sequence[int]], scores: dict[int, float], order: Sequence[int]
) -> tuple[int, ...]:
    """Each group's winner and the best of the rest, 16 in all, in seating order."""
    winners = [max(group, key=scores.__getitem__) for group in seats]
    rest = sorted((index for index in order if index not in winners), key=scores.__getitem__, reverse=True)
    chosen = {*winners, *rest[: max(0, MAX_READ_OPTIONS - len(winners))]}
    return tuple(index for index in order if index in chosen)


def combine(
    seats: Sequence[Sequence[int]], scores: dict[int, float], final: dict[int, float]
) -> dict[int, float]:
    """Probability by option index, from the first round (``scores``, q) and the final (f).

    A group's share is the sum of f over its finalists, its cap the sum of q over them. Finalists divide the
    sum of share x cap by f; every other option keeps share x q of its group. Source: the model's card.
    """
    shares = [math.fsum(final[index] for index in group if index in final) for group in seats]
    caps = [math.fsum(scores[index] for index in group if index in final) for group in seats]
    pool = math.fsum(share * cap for share, cap in zip(shares, caps, strict=True))
    weights = {
        index: final[index] * pool if index in final else share * scores[index]
        for group, share in zip(seats, shares, strict=True)
        for index in group
    }
    total = math.fsum(weights.values())
    return {index: weight / total for index, weight in weights.items()}


def _rotated(n_options: int, by: int) -> tuple[int, ...]:
    return tuple((index + by) % n_options for index in range(n_options))


def _log(probability: float) -> float:
    # An option that underflowed to 0 stays the least probable instead of breaking the sum.
    return math.log(max(probability, math.ulp(0.0)))


def _sum(parts: Sequence[Distribution], probabilities: tuple[float, ...]) -> Distribution:
    usage = sum((part.usage for part in parts), TokenCounts())
    return Distribution(probabilities=probabilities, usage=usage, passes=sum(part.passes for part in parts))
