"""How the start compared with its plan, as ``serve`` laid it beside the running server."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector, CollectorRegistry

from decideploy.plan.starts import StartRecord


def read_start(path: Path | None) -> StartRecord | None:
    """The record in ``path``; None where there is none, as before ``serve`` has written it."""
    if path is None or not path.exists():
        return None
    return StartRecord.model_validate_json(path.read_bytes())


class StartMetrics(Collector):
    """Planned and observed figures of the start, read from ``source`` when they are asked for."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.source: Callable[[], StartRecord | None] = lambda: None
        registry.register(self)

    def describe(self) -> list[Metric]:
        """Nothing: asked at registration, before there is a start."""
        return []

    def collect(self) -> Iterator[Metric]:
        """The metrics of the start, none before it is recorded."""
        record = self.source()
        if record is None:
            return
        figures = GaugeMetricFamily(
            "decideploy_start_figure",
            "What the plan promised and what the engine logged, by figure and its unit",
            labels=("figure", "unit", "source"),
        )
        for figure in record.figures:
            for source, value in (("planned", figure.predicted), ("observed", figure.observed)):
                if value is not None:
                    figures.add_metric((figure.name, figure.unit, source), value)
        yield figures
        kernel = GaugeMetricFamily(
            "decideploy_kernel_mismatch",
            "1 where the engine took another expert kernel than the planned one",
            labels=("planned", "observed"),
        )
        labels = (record.planned_kernel or "auto", record.observed_kernel or "unknown")
        kernel.add_metric(labels, float(record.kernel_differs))
        yield kernel
