"""From samples to percentiles, and ratios of medians with bootstrap intervals."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from decideploy.bench.load import OK, Sample
from decideploy.intervals import RESAMPLES, Interval


@dataclass(frozen=True, kw_only=True, slots=True)
class Row:
    """One measurement; latencies are those of the answers (200), NaN when there are none.

    ``rate_per_s`` counts answers; ``client_cpu_ms`` is the generator's own processor time a request, and
    ``late_p99_s`` how late it sent: both tell whether the generator was the bottleneck.
    """

    scenario: str
    arm: str
    load: str
    prompt_tokens: int
    requests: int
    errors: Mapping[str, int]
    duration_s: float
    rate_per_s: float
    p50_s: float
    p95_s: float
    p99_s: float
    late_p99_s: float
    client_cpu_ms: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Ratio:
    """``numerator`` over ``denominator`` by their medians, against ``goal`` (at most)."""

    scenario: str
    load: str
    numerator: str
    denominator: str
    ratio: Interval
    goal: float | None

    @property
    def met(self) -> bool | None:
        """Whether the ratio is at most the goal; None without one."""
        return None if self.goal is None else self.ratio.value <= self.goal


def summarize(
    samples: Sequence[Sample],
    *,
    scenario: str,
    arm: str,
    load: str,
    prompt_tokens: int,
    duration_s: float,
    cpu_s: float,
) -> Row:
    """The row of ``samples``, taken in ``duration_s`` at ``cpu_s`` of the generator's processor time."""
    statuses = Counter(sample.status for sample in samples)
    latencies = answered(samples)
    p50_s, p95_s, p99_s = percentiles(latencies)
    late = [sample.late_s for sample in samples]
    return Row(
        scenario=scenario,
        arm=arm,
        load=load,
        prompt_tokens=prompt_tokens,
        requests=len(samples),
        errors={status: count for status, count in sorted(statuses.items()) if status != OK},
        duration_s=duration_s,
        rate_per_s=len(latencies) / duration_s,
        p50_s=p50_s,
        p95_s=p95_s,
        p99_s=p99_s,
        late_p99_s=percentiles(late)[2],
        client_cpu_ms=1000 * cpu_s / max(1, len(samples)),
    )


def answered(samples: Sequence[Sample]) -> list[float]:
    """Latencies (seconds) of the requests that were answered."""
    return [sample.latency_s for sample in samples if sample.status == OK]


def percentiles(values: Sequence[float]) -> tuple[float, float, float]:
    """The 50th, 95th and 99th percentile; NaN of nothing."""
    if not values:
        return math.nan, math.nan, math.nan
    p50, p95, p99 = np.percentile(values, (50, 95, 99))
    return float(p50), float(p95), float(p99)


def median_ratio(
    numerator: Sequence[Sequence[float]], denominator: Sequence[Sequence[float]], *, seed: int
) -> Interval:
    """The ratio of the pooled medians of two arms, each given by rounds.

    The bootstrap draws whole rounds, both arms of a round together: requests of one round share the state of
    the machine, so that drawing single requests would make the interval too narrow. NaN without answers.
    """
    top, bottom = [np.asarray(r) for r in numerator], [np.asarray(r) for r in denominator]
    if not sum(map(len, top)) or not sum(map(len, bottom)):
        return Interval(value=math.nan, low=math.nan, high=math.nan)
    generator = np.random.default_rng(seed)
    rounds = len(top)
    resampled = []
    for drawn in generator.integers(rounds, size=(RESAMPLES, rounds)):
        above, below = (np.concatenate([arm[index] for index in drawn]) for arm in (top, bottom))
        # A draw may hold only rounds in which everything failed.
        if len(above) and len(below):
            resampled.append(np.median(above) / np.median(below))
    value = np.median(np.concatenate(top)) / np.median(np.concatenate(bottom))
    return Interval.of(float(value), resampled)
