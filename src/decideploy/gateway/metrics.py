"""Prometheus metrics of our own, in the registry whose metrics the engine's ``/metrics`` shows."""

from __future__ import annotations

import functools
from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Final

from prometheus_client import REGISTRY, CollectorRegistry, Counter, Gauge, Histogram

from decideploy.gateway.start import StartMetrics

# A decision takes milliseconds, a thought or a completion minutes.
_BUCKETS_S: Final = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0)


@dataclass(slots=True)
class Tally:
    """What is decided for one request; ``internal`` is one of the server itself, which is not counted."""

    internal: bool = False
    kinds: set[str] = field(default_factory=set)


# Tasks that a route starts see the same tally.
TALLY: ContextVar[Tally | None] = ContextVar("tally", default=None)


class GatewayMetrics:
    """``requests`` counts HTTP requests, each once; ``decisions`` what was decided, several in one request.

    Implements the observer that the decision service calls.
    """

    def __init__(self, registry: CollectorRegistry) -> None:
        self.requests = Counter(
            "decideploy_requests_total",
            "HTTP requests by API, kind of decision (none, or mixed) and outcome",
            ("dialect", "kind", "outcome"),
            registry=registry,
        )
        self.request_seconds = Histogram(
            "decideploy_request_duration_seconds",
            "From a request's arrival to the end of its answer, waiting included",
            ("dialect",),
            buckets=_BUCKETS_S,
            registry=registry,
        )
        self.decisions = Counter(
            "decideploy_decisions_total",
            "Decisions by API, kind and outcome",
            ("dialect", "kind", "outcome"),
            registry=registry,
        )
        self.decision_seconds = Histogram(
            "decideploy_decision_duration_seconds",
            "Duration of a decision, all its passes",
            ("dialect", "kind"),
            buckets=_BUCKETS_S,
            registry=registry,
        )
        self.passes = Counter(
            "decideploy_passes_total", "Engine passes of decisions", ("dialect",), registry=registry
        )
        self.thinking = Counter(
            "decideploy_thinking_total",
            "Decisions for which System 2 thought; over decideploy_decisions_total it is the share",
            ("dialect",),
            registry=registry,
        )
        self.canaries = Counter(
            "decideploy_canaries_total",
            "Decisions that the server asked itself, by outcome",
            ("outcome",),
            registry=registry,
        )
        self.inflight = Gauge(
            "decideploy_inflight", "Requests that hold a slot of the engine", registry=registry
        )
        self.queue_depth = Gauge("decideploy_queue_depth", "Requests that wait for a slot", registry=registry)
        self.ready = Gauge("decideploy_ready", "1 while /ready answers 200", registry=registry)
        self.start = StartMetrics(registry)

    def watch(
        self, *, inflight: Callable[[], float], queue_depth: Callable[[], float], ready: Callable[[], float]
    ) -> None:
        """Read the gauges from these when they are asked for."""
        self.inflight.set_function(inflight)
        self.queue_depth.set_function(queue_depth)
        self.ready.set_function(ready)

    def decided(
        self, *, dialect: str, kind: str, outcome: str, seconds: float, passes: int, thought: bool
    ) -> None:
        """Count one decision, however it ended."""
        tally = TALLY.get() or Tally()
        if tally.internal:
            return
        tally.kinds.add(kind)
        self.decisions.labels(dialect, kind, outcome).inc()
        self.decision_seconds.labels(dialect, kind).observe(seconds)
        self.passes.labels(dialect).inc(passes)
        if thought:
            self.thinking.labels(dialect).inc()

    def answered(self, *, dialect: str, kinds: set[str], outcome: str, seconds: float) -> None:
        """Count one HTTP request."""
        kind = "mixed" if len(kinds) > 1 else next(iter(kinds), "none")
        self.requests.labels(dialect, kind, outcome).inc()
        self.request_seconds.labels(dialect).observe(seconds)


@functools.cache
def shared_metrics() -> GatewayMetrics:
    """The process's metrics, in prometheus_client's own registry, where the engine keeps its own."""
    return GatewayMetrics(REGISTRY)
