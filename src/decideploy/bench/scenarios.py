"""What is measured: plain load, the route against the bare engine, a shared state, a tournament."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from decideploy.bench.figures import Ratio, Row, answered, median_ratio, summarize
from decideploy.bench.load import OK, Call, Sample, closed_loop, open_loop, timed
from decideploy.bench.prompts import OPTIONS, Prompts, decide_body, token_prompts
from decideploy.bench.target import Target
from decideploy.decide.client import PATH
from decideploy.decide.schema import MAX_OPTIONS
from decideploy.decide.slots import MAX_READ_OPTIONS, Kind

COMPLETIONS: Final = "/v1/completions"
SYSTEMONE: Final = "/v1/systemone"
QUESTIONS: Final = 10

ROUTE_GOAL: Final = 1.10
SHARED_GOAL: Final = 3.0
# A tournament is a round of groups at once and a final: what those take apart, and a little for the route.
TOURNAMENT_GOAL: Final = 1.10


@dataclass(frozen=True, kw_only=True, slots=True)
class Pace:
    """How long and how often: a warm-up and a measurement in seconds, rounds of a comparison, the seed."""

    warmup_s: float
    duration_s: float
    rounds: int
    seed: int


def decide_call(target: Target, kind: Kind, prompts: Prompts) -> Call:
    """One decision over a fresh state."""
    return lambda: target.status_of(PATH, prompts.body(kind))


async def under_clients(target: Target, kind: Kind, prompts: Prompts, clients: int, pace: Pace) -> Row:
    """Closed loop of ``clients``."""
    call = decide_call(target, kind, prompts)
    await closed_loop(call, clients=clients, duration_s=pace.warmup_s)
    measured = await Measured.of(closed_loop(call, clients=clients, duration_s=pace.duration_s))
    return measured.row("closed loop", kind, f"{clients} clients", prompts.tokens)


async def under_rate(target: Target, kind: Kind, prompts: Prompts, rate_per_s: float, pace: Pace) -> Row:
    """Open loop of ``rate_per_s`` arrivals."""
    call = decide_call(target, kind, prompts)
    await open_loop(call, rate_per_s=rate_per_s, duration_s=pace.warmup_s, seed=pace.seed + 1)
    loop = open_loop(call, rate_per_s=rate_per_s, duration_s=pace.duration_s, seed=pace.seed)
    measured = await Measured.of(loop)
    return measured.row("open loop", kind, f"{rate_per_s:g} a second", prompts.tokens)


@dataclass(kw_only=True, slots=True)
class Measured:
    """Samples, and what taking them took."""

    samples: list[Sample]
    duration_s: float
    cpu_s: float

    @classmethod
    async def of(cls, loop: Awaitable[list[Sample]]) -> Measured:
        """Run ``loop`` under the clocks."""
        start, cpu = time.perf_counter(), time.process_time()
        samples = await loop
        return cls(samples=samples, duration_s=time.perf_counter() - start, cpu_s=time.process_time() - cpu)

    def row(self, scenario: str, arm: str, load: str, prompt_tokens: int) -> Row:
        """The figures."""
        return summarize(
            self.samples,
            scenario=scenario,
            arm=arm,
            load=load,
            prompt_tokens=prompt_tokens,
            duration_s=self.duration_s,
            cpu_s=self.cpu_s,
        )


async def in_rounds(
    arms: Mapping[str, Callable[[], Awaitable[list[Sample]]]], rounds: int
) -> dict[str, list[Measured]]:
    """Run every arm once a round, in turned order every other round, so that drift hits all alike."""
    measured: dict[str, list[Measured]] = {arm: [] for arm in arms}
    for number in range(rounds):
        order = list(arms) if number % 2 == 0 else list(arms)[::-1]
        for arm in order:
            measured[arm].append(await Measured.of(arms[arm]()))
    return measured


def rows_of(
    measured: Mapping[str, Sequence[Measured]], scenario: str, load: str, tokens: Mapping[str, int]
) -> list[Row]:
    """One row an arm, its rounds together."""
    return [
        Measured(
            samples=[sample for one in rounds for sample in one.samples],
            duration_s=sum(one.duration_s for one in rounds),
            cpu_s=sum(one.cpu_s for one in rounds),
        ).row(scenario, arm, load, tokens[arm])
        for arm, rounds in measured.items()
    ]


async def against_completions(
    target: Target, kind: Kind, prompts: Prompts, *, model: str, clients: int, pace: Pace
) -> tuple[list[Row], list[Ratio]]:
    """The same read by ``/v1/decide`` and by ``/v1/completions``, in rounds of one after the other.

    Never both at once: each would wait in the other's queue, which would hide what the route costs.
    """
    direct = await token_prompts(target, kind, prompts, model)
    calls: dict[str, Call] = {
        "decide": decide_call(target, kind, prompts),
        "completions": lambda: target.status_of(COMPLETIONS, direct.body()),
    }
    for call in calls.values():
        await closed_loop(call, clients=clients, duration_s=pace.warmup_s)
    block_s = pace.duration_s / pace.rounds
    arms = {
        name: lambda call=call: closed_loop(call, clients=clients, duration_s=block_s)
        for name, call in calls.items()
    }
    measured = await in_rounds(arms, pace.rounds)
    tokens = {
        "decide": prompts.tokens,
        "completions": len(direct.before) + len(direct.fresh) + len(direct.after),
    }
    name, load = "against completions", f"{clients} clients"
    ratio = ratio_of(
        measured,
        scenario=name,
        load=load,
        numerator="decide",
        denominator="completions",
        goal=ROUTE_GOAL,
        seed=pace.seed,
    )
    return rows_of(measured, name, load, tokens), [ratio]


def ratio_of(
    measured: Mapping[str, Sequence[Measured]],
    *,
    scenario: str,
    load: str,
    numerator: str,
    denominator: str,
    goal: float | None,
    seed: int,
) -> Ratio:
    """The ratio of two arms' medians."""
    top, bottom = ([answered(one.samples) for one in measured[arm]] for arm in (numerator, denominator))
    return Ratio(
        scenario=scenario,
        load=load,
        numerator=numerator,
        denominator=denominator,
        ratio=median_ratio(top, bottom, seed=seed),
        goal=goal,
    )


async def all_at_once(calls: Sequence[Call]) -> str:
    """Send all; 200 when each is answered so, else the first other status."""
    statuses = await asyncio.gather(*(call() for call in calls))
    return next((status for status in statuses if status != OK), OK)


async def once(call: Call) -> list[Sample]:
    """One sample of ``call``."""
    return [await timed(call, time.perf_counter(), 0.0)]


async def shared_state(
    target: Target, prompts: Prompts, *, model: str, pace: Pace
) -> tuple[list[Row], list[Ratio]]:
    """Ten questions over one state against one question, the state new to the cache each time."""
    questions = [f"Is point {number} of the letter right?" for number in range(QUESTIONS)]

    def asked(state: str, question: str) -> Call:
        return lambda: target.status_of(PATH, decide_body("noul", state, question=question))

    def of_state(count: int) -> Callable[[], Awaitable[list[Sample]]]:
        def run() -> Awaitable[list[Sample]]:
            state = prompts.state()
            calls = [asked(state, question) for question in questions[:count]]
            return once(lambda: all_at_once(calls))

        return run

    def systemone() -> Awaitable[list[Sample]]:
        named = {
            f"q{number}": {"type": "noul", "instructions": question}
            for number, question in enumerate(questions)
        }
        body = {"model": model, "state": prompts.state(), "questions": named}
        return once(lambda: target.status_of(SYSTEMONE, body))

    arms = {"one question": of_state(1), "ten questions": of_state(QUESTIONS)}
    if await target.serves(SYSTEMONE):
        arms["ten, one systemone request"] = systemone
    await in_rounds(arms, 2)
    measured = await in_rounds(arms, pace.rounds)
    name, load = "shared state", "one at a time"
    ratios = [
        ratio_of(
            measured,
            scenario=name,
            load=load,
            numerator=arm,
            denominator="one question",
            goal=SHARED_GOAL,
            seed=pace.seed,
        )
        for arm in list(arms)[1:]
    ]
    return rows_of(measured, name, load, dict.fromkeys(arms, prompts.tokens)), ratios


async def wide_choice(target: Target, prompts: Prompts, pace: Pace) -> tuple[list[Row], list[Ratio]]:
    """A choice of 256 against one read of 16 and against 16 such reads at once, which its first round is."""
    options = [f"{OPTIONS[number % len(OPTIONS)]} {number}" for number in range(MAX_OPTIONS)]
    groups = [options[first : first + MAX_READ_OPTIONS] for first in range(0, MAX_OPTIONS, MAX_READ_OPTIONS)]

    def asked(state: str, choice: Sequence[str]) -> Call:
        return lambda: target.status_of(PATH, decide_body("choice", state, options=choice))

    def choosing(*choices: Sequence[str]) -> Callable[[], Awaitable[list[Sample]]]:
        def run() -> Awaitable[list[Sample]]:
            state = prompts.state()
            calls = [asked(state, choice) for choice in choices]
            return once(lambda: all_at_once(calls))

        return run

    arms = {
        "one read": choosing(groups[0]),
        "sixteen reads at once": choosing(*groups),
        "tournament of 256": choosing(options),
    }
    await in_rounds(arms, 2)
    measured = await in_rounds(arms, pace.rounds)
    name, load = "tournament", "one at a time"
    rows = rows_of(measured, name, load, dict.fromkeys(arms, prompts.tokens))
    return rows, [
        Ratio(
            scenario=name,
            load=load,
            numerator="tournament of 256",
            denominator="its two rounds apart",
            ratio=median_ratio(
                [answered(one.samples) for one in measured["tournament of 256"]],
                two_rounds(measured),
                seed=pace.seed,
            ),
            goal=TOURNAMENT_GOAL,
        ),
        ratio_of(
            measured,
            scenario=name,
            load=load,
            numerator="tournament of 256",
            denominator="one read",
            goal=None,
            seed=pace.seed,
        ),
    ]


def two_rounds(measured: Mapping[str, Sequence[Measured]]) -> list[list[float]]:
    """Latency of sixteen reads at once plus that of one read, by rounds."""
    return [
        [a + b for a, b in zip(answered(first.samples), answered(last.samples), strict=False)]
        for first, last in zip(measured["sixteen reads at once"], measured["one read"], strict=True)
    ]
