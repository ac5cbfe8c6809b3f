"""The calibration report as a table."""

from __future__ import annotations

from collections import Counter

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from decideploy.calibrate.kinds import KindReport
from decideploy.calibrate.metrics import Metrics
from decideploy.calibrate.run import CalibrationReport
from decideploy.counted import counted
from decideploy.intervals import Interval


def print_report(report: CalibrationReport, console: Console | None = None) -> None:
    """Print one row for each kind and stage, then what was not fitted or not used."""
    console = console or Console()
    table = Table(title=f"Calibration of {escape(report.model)} (95 % bootstrap intervals)")
    for name in ("kind", "n", "stage", "T", "accuracy", "ECE 10", "ECE 15", "Brier", "NLL"):
        table.add_column(name, justify="left" if name in ("kind", "stage") else "right")
    for kind in report.kinds:
        add_rows(table, kind, report.folds)
    console.print(table)
    for kind in report.kinds:
        console.print(verdict(kind, report.folds), markup=False, highlight=False)
    for reason, count in Counter(line.reason for line in report.excluded).items():
        console.print(f"{counted(count, 'line')} left out: {reason}", markup=False, highlight=False)


def add_rows(table: Table, kind: KindReport, folds: int) -> None:
    """The rows of one kind; none when it has no examples."""
    stages = (
        ("before", f"{kind.served:.3f}", kind.before),
        ("after", shown(kind.interval), kind.after),
        (f"{folds}-fold", "", kind.held_out),
    )
    name, n = str(kind.kind), str(kind.n)
    for stage, temperature, metrics in stages:
        if metrics is not None:
            table.add_row(name, n, stage, temperature, *map(shown, figures(metrics)))
            name = n = ""


def figures(metrics: Metrics) -> tuple[Interval, ...]:
    """The columns of a row."""
    return metrics.accuracy, metrics.ece_10, metrics.ece_15, metrics.brier, metrics.nll


def shown(interval: Interval | None) -> str:
    """``value`` over ``[low, high]``."""
    return f"{interval.value:.3f}\n[{interval.low:.3f}, {interval.high:.3f}]" if interval else ""


def verdict(kind: KindReport, folds: int) -> str:
    """One sentence on what the kind gets and whether that is better."""
    if kind.gain is None:
        return f"{kind.kind}: keeps the served temperature {kind.served:.3f}: {kind.kept}"
    basis = "held-out" if folds else "in-sample"
    gain = f"{kind.gain.value:+.4f} nats [{kind.gain.low:+.4f}, {kind.gain.high:+.4f}]"
    better = "better" if kind.gain.low > 0 else "worse" if kind.gain.high < 0 else "no better for certain"
    return (
        f"{kind.kind}: {kind.served:.3f} → {kind.temperature:.3f}; {basis} gain {gain} an example: {better}"
    )
