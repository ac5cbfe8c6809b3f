"""The benchmark as tables, CSV, JSON and a drawing."""

from __future__ import annotations

import csv
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, Final

from rich.console import Console
from rich.table import Table

from decideploy.bench.figures import Ratio, Row
from decideploy.intervals import without_nan
from decideploy.plotting import new_figure, save_figure

SCHEMA_VERSION: Final = 1


@dataclass(frozen=True, kw_only=True, slots=True)
class BenchReport:
    """Every row and ratio of one run; ``complete`` is False for one that was interrupted."""

    complete: bool
    url: str
    model: str
    build: str
    seed: int
    rows: tuple[Row, ...]
    ratios: tuple[Ratio, ...]

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready values with ``schema_version``; NaN, of what nothing answered, is None."""
        document: dict[str, Any] = without_nan({"schema_version": SCHEMA_VERSION, **asdict(self)})
        for ratio, told in zip(self.ratios, document["ratios"], strict=True):
            told["met"] = ratio.met
        return document


def print_report(report: BenchReport, console: Console | None = None) -> None:
    """Print the rows, then the ratios."""
    console = console or Console()
    table = Table(title=f"{report.model} at {report.url}", box=None, pad_edge=False)
    table.add_column("measured", overflow="fold")
    for name in ("tokens", "requests", "errors", "per s", "p50 ms", "p95 ms", "p99 ms", "client ms"):
        table.add_column(name, justify="right")
    for row in report.rows:
        errors = ", ".join(f"{count} x {status}" for status, count in row.errors.items()) or "0"
        latencies = [f"{1000 * value:.1f}" for value in (row.p50_s, row.p95_s, row.p99_s)]
        counts = [str(row.prompt_tokens), str(row.requests), errors, f"{row.rate_per_s:.1f}"]
        name = f"{row.scenario}: {row.arm}, {row.load}"
        table.add_row(name, *counts, *latencies, f"{row.client_cpu_ms:.2f}")
    console.print(table)
    for ratio in report.ratios:
        console.print(sentence(ratio), markup=False, highlight=False)


def sentence(ratio: Ratio) -> str:
    """One ratio in words."""
    goal = "" if ratio.goal is None else f"; goal at most {ratio.goal:g}: {'met' if ratio.met else 'missed'}"
    figure = f"{ratio.ratio.value:.3f} [{ratio.ratio.low:.3f}, {ratio.ratio.high:.3f}]"
    return f"{ratio.scenario}, {ratio.load}: p50 of {ratio.numerator} / {ratio.denominator} = {figure}{goal}"


def write_tables(report: BenchReport, folder: Path) -> tuple[Path, ...]:
    """Write rows.csv, ratios.csv and bench.json into ``folder``; returns the files."""
    folder.mkdir(parents=True, exist_ok=True)
    document = folder / "bench.json"
    document.write_text(json.dumps(report.to_dict(), indent=2) + "\n", encoding="utf-8")
    rows = [{**asdict(row), "errors": json.dumps(dict(row.errors))} for row in report.rows]
    ratios = [
        {**asdict(ratio), **asdict(ratio.ratio), "met": ratio.met, "ratio": ratio.ratio.value}
        for ratio in report.ratios
    ]
    ratio_columns = ["scenario", "load", "numerator", "denominator", "ratio", "low", "high", "goal", "met"]
    return (
        document,
        write_csv(folder / "rows.csv", [field.name for field in fields(Row)], rows),
        write_csv(folder / "ratios.csv", ratio_columns, ratios),
    )


def write_csv(path: Path, columns: Sequence[str], rows: Sequence[dict[str, Any]]) -> Path:
    """Write ``rows`` with a header; NaN is left empty."""
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, columns, extrasaction="ignore")
        writer.writeheader()
        writer.writerows(without_nan(row) for row in rows)
    return path


def draw_report(report: BenchReport, folder: Path) -> tuple[Path, Path]:
    """Draw p50, p95 and p99 of every row into latency.png and latency.svg."""
    folder.mkdir(parents=True, exist_ok=True)
    figure = new_figure(width=8.0, height=1.2 + 0.55 * len(report.rows))
    axes: Any = figure.subplots()
    names = [f"{row.scenario}\n{row.arm}, {row.load}, {row.prompt_tokens} tokens" for row in report.rows]
    places = range(len(names))
    for label, marker, values in (
        ("p50", "o", [row.p50_s for row in report.rows]),
        ("p95", "s", [row.p95_s for row in report.rows]),
        ("p99", "^", [row.p99_s for row in report.rows]),
    ):
        axes.plot([1000 * value for value in values], places, marker, label=label)
    axes.set_yticks(places, names, fontsize=7)
    axes.invert_yaxis()
    axes.set(xlabel="latency, ms", xscale="log", title=f"{report.model}, {report.build}")
    axes.grid(axis="x", which="both", alpha=0.3)
    axes.legend()
    return save_figure(figure, folder / "latency")
