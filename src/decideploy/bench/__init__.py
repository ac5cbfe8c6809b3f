"""Load a running server and say how fast it answers; comparisons are ratios within one run."""

from decideploy.bench.figures import Ratio, Row, median_ratio, summarize
from decideploy.bench.load import Sample, closed_loop, open_loop
from decideploy.bench.report import BenchReport, draw_report, print_report, write_tables
from decideploy.bench.run import BenchOptions, bench
from decideploy.bench.scenarios import Pace

__all__ = [
    "BenchOptions",
    "BenchReport",
    "Pace",
    "Ratio",
    "Row",
    "Sample",
    "bench",
    "closed_loop",
    "draw_report",
    "median_ratio",
    "open_loop",
    "print_report",
    "summarize",
    "write_tables",
]
