import asyncio
import math
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from decideploy.decide.decision import Distribution, TokenCounts
from decideploy.decide.strategies import combine, finalists, groups, permute, single, tournament

USAGE = TokenCounts(prompt_tokens=100, completion_tokens=1, cached_tokens=90)


class Reader:
    """Reads in proportion to the options' ``weights``: Luce's choice axiom holds."""

    def __init__(self, weights: Sequence[float]) -> None:
        self.weights = weights
        self.reads: list[tuple[int, ...]] = []
        self.running = self.most_running = 0

    async def __call__(self, indices: Sequence[int]) -> Distribution:
        self.reads.append(tuple(indices))
        self.running += 1
        self.most_running = max(self.running, self.most_running)
        await asyncio.sleep(0)
        self.running -= 1
        total = math.fsum(self.weights[index] for index in indices)
        return Distribution(
            probabilities=tuple(self.weights[index] / total for index in indices), usage=USAGE, passes=1
        )


@pytest.mark.parametrize(
    ("n_options", "sizes"),
    [(17, [8, 9]), (32, [16, 16]), (33, [11, 11, 11]), (100, [14, 14, 14, 15, 14, 14, 15]), (256, [16] * 16)],
)
def test_groups_are_balanced_contiguous_and_as_few_as_can_be(n_options: int, sizes: list[int]) -> None:
    seats = groups(range(n_options))
    assert [len(group) for group in seats] == sizes
    assert [index for group in seats for index in group] == list(range(n_options))


def test_finalists_are_the_winners_and_the_best_of_the_rest_in_their_order() -> None:
    seats = [tuple(range(9)), tuple(range(9, 18))]
    scores = {index: (0.9 if index == 3 else 0.0125) for index in range(9)}
    scores |= {index: 0.1 + 0.01 * (index - 9) for index in range(9, 18)}
    # Of the rest the nine of the second group lead; six of the first follow in their order.
    assert finalists(seats, scores, range(18)) == (0, 1, 2, 3, 4, 5, 6, *range(9, 18))


def test_combination_of_the_published_formula() -> None:
    seats = [(0, 1, 2), (3, 4)]
    scores = {0: 0.5, 1: 0.3, 2: 0.2, 3: 0.6, 4: 0.4}
    final = {0: 0.4, 1: 0.1, 3: 0.5}
    # shares 0.5 and 0.5, caps 0.8 and 0.6: the finalists divide 0.7; 2 keeps 0.5 x 0.2, 4 keeps 0.5 x 0.4.
    assert combine(seats, scores, final) == pytest.approx({0: 0.28, 1: 0.07, 2: 0.1, 3: 0.35, 4: 0.2})


def test_tournament_reads_every_option_once_and_the_finalists_again() -> None:
    reader = Reader([1.0 + (index % 7) for index in range(40)])
    result = asyncio.run(tournament(40, reader))
    assert reader.reads[:-1] == groups(range(40))
    assert len(reader.reads[-1]) == 16
    assert (result.passes, result.usage.prompt_tokens, result.usage.cached_tokens) == (4, 400, 360)
    # The groups of the first round run at once, so that 256 options take two rounds.
    assert reader.most_running == 3


def test_tournament_of_the_most_options() -> None:
    weights = [1.0] * 256
    weights[200] = 50.0
    reader = Reader(weights)
    result = asyncio.run(tournament(256, reader))
    assert (len(reader.reads), reader.most_running, result.passes) == (17, 16, 17)
    assert result.probabilities.index(max(result.probabilities)) == 200


@settings(max_examples=20, deadline=None)
@given(st.integers(17, 256), st.randoms(use_true_random=False))
def test_every_strategy_gives_a_distribution_over_all_options(n_options: int, random: object) -> None:
    weights = [random.uniform(1e-3, 1.0) for _ in range(n_options)]  # type: ignore[attr-defined]
    total = sum(weights)
    for strategy in (tournament, single, permute):
        result = asyncio.run(strategy(n_options, Reader(weights)))
        assert math.fsum(result.probabilities) == pytest.approx(1.0)
        assert len(result.probabilities) == n_options
        assert min(result.probabilities) > 0.0
        if strategy is single:
            # The axiom that it rests on holds for this reader.
            assert result.probabilities == pytest.approx([weight / total for weight in weights])


def test_single_takes_one_round_with_the_first_option_in_every_group() -> None:
    reader = Reader([1.0] * 46)
    asyncio.run(single(46, reader))
    assert reader.reads == [(0, *range(1, 16)), (0, *range(16, 31)), (0, *range(31, 46))]
    assert reader.most_running == 3


def test_single_bears_a_first_option_without_probability() -> None:
    result = asyncio.run(single(17, Reader([0.0] + [1.0] * 16)))
    assert math.fsum(result.probabilities) == pytest.approx(1.0)


def test_permute_is_the_mean_of_tournaments_with_other_seats() -> None:
    class FirstIsFavoured(Reader):
        async def __call__(self, indices: Sequence[int]) -> Distribution:
            await super().__call__(indices)
            biased = [2.0, *([1.0] * (len(indices) - 1))]
            total = sum(biased)
            return Distribution(
                probabilities=tuple(weight / total for weight in biased), usage=USAGE, passes=1
            )

    reader = FirstIsFavoured([1.0] * 32)
    result = asyncio.run(permute(32, reader))
    assert {group[0] for group in reader.reads if len(group) == 16} >= {0, 8, 16, 24}
    assert result.passes == 12
    alone = asyncio.run(tournament(32, FirstIsFavoured([1.0] * 32)))
    assert max(result.probabilities) < max(alone.probabilities)


def test_an_error_of_one_read_is_raised_as_it_is() -> None:
    async def broken(_: Sequence[int]) -> Distribution:
        raise KeyError("lost")

    with pytest.raises(KeyError, match="lost"):
        asyncio.run(tournament(17, broken))
