"""What is written of a benchmark; the drawing is apart, because matplotlib alone takes seconds to import."""

import csv
import io
import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from wire_server import Reply, decision_document, info_document, wire_server

from decideploy.bench import BenchReport, Ratio, Row, draw_report, print_report, write_tables
from decideploy.cli import main
from decideploy.intervals import Interval

SHORT = ["--duration", "0.1", "--warmup", "0.02"]

ROW = Row(
    scenario="closed loop",
    arm="noul",
    load="8 clients",
    prompt_tokens=128,
    requests=3,
    errors={"503": 1},
    duration_s=2.0,
    rate_per_s=1.0,
    p50_s=0.1,
    p95_s=0.2,
    p99_s=0.3,
    late_p99_s=0.001,
    client_cpu_ms=0.5,
)
RATIO = Ratio(
    scenario="against completions",
    load="8 clients",
    numerator="decide",
    denominator="completions",
    ratio=Interval(value=1.05, low=1.01, high=1.09),
    goal=1.1,
)
REPORT = BenchReport(
    complete=True,
    url="http://server",
    model="demo",
    build="0.30.0",
    seed=0,
    rows=(ROW, replace(ROW, p50_s=math.nan, p95_s=math.nan, p99_s=math.nan)),
    ratios=(RATIO, replace(RATIO, goal=1.0), replace(RATIO, goal=None)),
)


def test_the_table_and_its_sentences() -> None:
    output = io.StringIO()
    print_report(REPORT, Console(file=output, width=110))
    text = output.getvalue()
    assert "1 x 503" in text
    assert "100.0" in text
    assert "decide / completions = 1.050 [1.010, 1.090]; goal at most 1.1: met" in text
    assert "goal at most 1: missed" in text


def test_the_files_hold_the_same_figures(tmp_path: Path) -> None:
    document, rows, ratios = write_tables(REPORT, tmp_path / "new")
    report = json.loads(document.read_text())
    assert report["schema_version"] == 1
    assert [ratio["met"] for ratio in report["ratios"]] == [True, False, None]
    with rows.open() as file:
        read = list(csv.DictReader(file))
    assert float(read[0]["p95_s"]) == report["rows"][0]["p95_s"] == 0.2
    assert read[1]["p50_s"] == ""
    assert report["rows"][1]["p50_s"] is None
    with ratios.open() as file:
        assert [row["ratio"] for row in csv.DictReader(file)] == ["1.05"] * 3


@pytest.mark.integration
def test_the_drawing(tmp_path: Path) -> None:
    png, svg = draw_report(REPORT, tmp_path / "new")
    assert png.read_bytes().startswith(b"\x89PNG")
    first = svg.read_bytes()
    assert b"<svg" in first
    assert draw_report(REPORT, tmp_path / "new")[1].read_bytes() == first


@pytest.mark.integration
def test_everything_is_written_from_the_shell(tmp_path: Path) -> None:
    def reply(path: str, body: Any) -> Reply:
        if path == "/v1/decide/info":
            return 200, info_document()
        words = len(body["state"].split())
        return 200, decision_document(["false", "true"], [0.5, 0.5], prompt_tokens=words)

    with wire_server(reply) as server:
        arguments = ["--url", server.url, "--clients", "1", "--out", str(tmp_path), *SHORT]
        assert main(["bench", *arguments]) == 0
    names = ["bench.json", "latency.png", "latency.svg", "ratios.csv", "rows.csv"]
    assert sorted(path.name for path in tmp_path.iterdir()) == names
