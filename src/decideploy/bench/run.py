"""The whole of ``decideploy bench``."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from decideploy.bench.figures import Ratio, Row
from decideploy.bench.prompts import prompts_of_length
from decideploy.bench.report import BenchReport
from decideploy.bench.scenarios import (
    Pace,
    against_completions,
    shared_state,
    under_clients,
    under_rate,
    wide_choice,
)
from decideploy.bench.target import Target, connected
from decideploy.decide.client import INFO_PATH
from decideploy.decide.slots import Kind

SHARED_STATE_TOKENS: Final = 1000
WIDE_CHOICE_TOKENS: Final = 128
DEFAULT_PACE: Final = Pace(warmup_s=2.0, duration_s=10.0, rounds=20, seed=0)


@dataclass(frozen=True, kw_only=True, slots=True)
class BenchOptions:
    """What to measure. Without ``against``, ``shared_state`` or ``tournament``: plain load.

    ``clients`` are closed loops, ``rates`` (a second) open ones.
    """

    clients: Sequence[int] = (1, 8, 64)
    rates: Sequence[float] = ()
    kinds: Sequence[Kind] = ("noul",)
    prompt_tokens: Sequence[int] = (128,)
    against: bool = False
    shared_state: bool = False
    tournament: bool = False
    pace: Pace = DEFAULT_PACE


def bench(
    url: str,
    options: BenchOptions,
    *,
    api_key: str | None = None,
    timeout_s: float = 60.0,
    told: Callable[[Row], None] = lambda _row: None,
) -> BenchReport:
    """Measure the server at ``url``; ``told`` hears of each row as it is there.

    Raises EngineError when the server cannot be reached before the load starts; failures under load are
    counted in the rows. An interrupt ends the run with what was measured, if anything was.
    """
    measured = Measurements(told=told)
    try:
        asyncio.run(measured.take(url, options, api_key=api_key, timeout_s=timeout_s))
    except KeyboardInterrupt:
        if not measured.rows:
            raise
    return measured.report(url, options.pace.seed)


@dataclass(kw_only=True, slots=True)
class Measurements:
    """What one run has measured so far."""

    told: Callable[[Row], None]
    info: Mapping[str, Any] = field(default_factory=dict)
    rows: list[Row] = field(default_factory=list)
    ratios: list[Ratio] = field(default_factory=list)
    complete: bool = False

    async def take(self, url: str, options: BenchOptions, *, api_key: str | None, timeout_s: float) -> None:
        """Measure everything that ``options`` ask for."""
        async with connected(url, api_key=api_key, timeout_s=timeout_s) as target:
            self.info = await target.ask(INFO_PATH)
            async for rows, ratios in measurements(target, options, self.info):
                for row in rows:
                    self.told(row)
                self.rows += rows
                self.ratios += ratios
        self.complete = True

    def report(self, url: str, seed: int) -> BenchReport:
        """The report of what is there."""
        return BenchReport(
            complete=self.complete,
            url=url,
            model=self.info["model"],
            build=self.info["build"]["version"],
            seed=seed,
            rows=tuple(self.rows),
            ratios=tuple(self.ratios),
        )


async def measurements(
    target: Target, options: BenchOptions, info: Mapping[str, Any]
) -> AsyncIterator[tuple[list[Row], list[Ratio]]]:
    """Every measurement that ``options`` ask for, one after the other."""
    pace, generator = options.pace, random.Random(options.pace.seed)
    if options.shared_state:
        prompts = await prompts_of_length(target, "noul", SHARED_STATE_TOKENS, generator)
        yield await shared_state(target, prompts, model=info["model"], pace=pace)
    if options.tournament:
        prompts = await prompts_of_length(target, "choice", WIDE_CHOICE_TOKENS, generator)
        yield await wide_choice(target, prompts, pace)
    plain = not (options.against or options.shared_state or options.tournament)
    if not (plain or options.against):
        return
    for kind in options.kinds:
        for tokens in options.prompt_tokens:
            prompts = await prompts_of_length(target, kind, tokens, generator)
            for clients in options.clients:
                if options.against:
                    yield await against_completions(
                        target, kind, prompts, model=info["adapter"], clients=clients, pace=pace
                    )
                else:
                    yield [await under_clients(target, kind, prompts, clients, pace)], []
            for rate in options.rates if plain else ():
                yield [await under_rate(target, kind, prompts, rate, pace)], []
