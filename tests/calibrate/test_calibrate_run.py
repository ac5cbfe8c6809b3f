"""The verb against a server whose right temperatures are known."""

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from calibration_data import drawn
from wire_server import GOLD_TEMPERATURES, TEMPERATURES, Reply, decision_document, info_document, wire_server

from decideploy.calibrate import CalibrationReport, Scored, calibrate, fit_kind, write_calibration
from decideploy.cli import main
from decideploy.decide import Calibration
from decideploy.errors import ConfigError, EngineError

OPTIONS = ["a", "b", "c"]
RIGHT = 1.7
# Below the default of 100, which would take seconds to ask.
FEW = ["--min-examples", "40", "--folds", "3"]


@pytest.fixture(scope="module")
def scored() -> Scored:
    return drawn(60, temperature=RIGHT, options=3, seed=5)


@pytest.fixture
def data(scored: Scored, tmp_path: Path) -> Path:
    """Choice questions whose state is the number of their row; half of them ask for the gold calibration."""
    path = tmp_path / "data.jsonl"
    with path.open("w") as file:
        for number, label in enumerate(scored.labels):
            fields: dict[str, Any] = {"kind": "choice", "question": "q", "options": OPTIONS}
            if number % 2:
                fields["calibration"] = "gold"
            print(json.dumps({**fields, "state": str(number), "label": int(label)}), file=file)
        print(json.dumps({"kind": "noul", "state": "-1", "question": "q", "label": True}), file=file)
    return path


def answers(scored: Scored) -> Any:
    def answer(path: str, body: Any) -> Reply:
        if path == "/v1/decide/info":
            return 200, info_document()
        if body["kind"] == "noul":
            return 200, decision_document(["false", "true"], [0.0, 1.0])
        temperatures = GOLD_TEMPERATURES if body.get("calibration") == "gold" else TEMPERATURES
        scores = scored.scores[int(body["state"])] / temperatures["choice"]
        weights = np.exp(scores - scores.max())
        return 200, decision_document(OPTIONS, list(weights / weights.sum()))

    return answer


def test_calibrate_from_the_shell(
    scored: Scored, data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "calibration.json"
    arguments = ["--data", str(data), "--out", str(out), "--json", *FEW]
    with wire_server(answers(scored)) as server:
        assert main(["calibrate", "--url", server.url, *arguments]) == 0
    report = json.loads(capsys.readouterr().out)
    noul, score, choice = report["kinds"]
    assert report["schema_version"] == 1
    assert choice["interval"]["low"] < RIGHT < choice["interval"]["high"]
    assert choice["n"] == 60
    assert choice["held_out"]["nll"]["value"] < choice["before"]["nll"]["value"]
    assert noul["kept"] == "0 examples, fewer than 40"
    assert report["excluded"][0]["reason"].startswith("an option's probability underflowed")
    read = Calibration.read(out)
    assert read.temperature("choice") == choice["temperature"]
    assert read.temperature("noul") == TEMPERATURES["noul"]
    provenance = json.loads(out.read_text())["provenance"]
    assert provenance["data_sha256"] == report["data_sha256"]
    assert provenance["kinds"]["score"] == {"examples": 0, "fitted": False, "served": score["served"]}


@pytest.mark.integration
def test_diagrams_from_the_shell(scored: Scored, data: Path, tmp_path: Path) -> None:
    plots = tmp_path / "plots"
    with wire_server(answers(scored)) as server:
        arguments = ["--url", server.url, "--data", str(data), "--plot", str(plots), *FEW]
        assert main(["calibrate", *arguments]) == 0
    names = ["reliability-choice.png", "reliability-choice.svg"]
    assert sorted(path.name for path in plots.iterdir()) == names
    assert (plots / names[0]).read_bytes().startswith(b"\x89PNG")
    assert "<svg" in (plots / names[1]).read_text()


def test_the_table_tells_what_was_fitted_and_what_not(
    scored: Scored, data: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "160")
    with wire_server(answers(scored)) as server:
        assert main(["calibrate", "--url", server.url, "--data", str(data), *FEW]) == 0
    told = capsys.readouterr().out
    assert "3-fold" in told
    assert "choice: 0.500 →" in told
    assert "score: keeps the served temperature 1.000: 0 examples, fewer than 40" in told
    assert "\n1 line left out" in told


def test_a_table_that_is_piped_is_whole(
    scored: Scored, data: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    with wire_server(answers(scored)) as server:
        assert main(["calibrate", "--url", server.url, "--data", str(data), *FEW]) == 0
    told = capsys.readouterr().out
    assert "…" not in told
    before = next(line for line in told.splitlines() if "before" in line)
    intervals = told.splitlines()[told.splitlines().index(before) + 1]
    assert len(re.findall(r"\[\d\.\d{3}, \d\.\d{3}\]", intervals)) == 5


def test_an_existing_file_is_kept_and_the_server_not_asked(
    scored: Scored, data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with wire_server(answers(scored)) as server:
        assert main(["calibrate", "--url", server.url, "--data", str(data), "--out", str(data)]) == 2
    assert not server.seen
    assert "the file exists" in capsys.readouterr().err


@pytest.fixture
def report(scored: Scored) -> CalibrationReport:
    fitted = fit_kind("choice", scored, served=1.0, folds=0, min_examples=40, seed=0)
    nothing = Scored(scores=np.empty((0, 0)), labels=np.empty(0, dtype=np.int64))
    kept = [
        fit_kind(kind, nothing, served=1.0, folds=0, min_examples=40, seed=0) for kind in ("noul", "score")
    ]
    digest = "0" * 64
    return CalibrationReport(
        url="http://server",
        model="demo",
        model_sha256=digest,
        served_sha256=digest,
        data_sha256=digest,
        folds=0,
        seed=0,
        kinds=(*kept, fitted),
        excluded=(),
    )


def test_a_file_is_written_whole_or_not_at_all(report: CalibrationReport, tmp_path: Path) -> None:
    out = tmp_path / "new" / "calibration.json"
    out.parent.mkdir()
    write_calibration(report, out)
    first = out.read_bytes()
    with pytest.raises(ConfigError, match="the file exists"):
        write_calibration(report, out)
    out.write_text("{}")
    write_calibration(report, out, force=True)
    assert out.read_bytes() == first
    assert [path.name for path in out.parent.iterdir()] == ["calibration.json"]


def test_nothing_is_written_when_nothing_was_fitted(report: CalibrationReport, tmp_path: Path) -> None:
    nothing = replace(report, kinds=report.kinds[:2])
    with pytest.raises(ConfigError, match="no kind could be fitted"):
        write_calibration(nothing, tmp_path / "calibration.json")
    assert not list(tmp_path.iterdir())


def test_a_line_that_the_server_refuses_is_told(scored: Scored, data: Path) -> None:
    answer = answers(scored)

    def refuse_one(path: str, body: Any) -> Reply:
        if body and body["state"] == "7":
            return 422, {"error": {"message": "state: seven", "type": "invalid_request_error"}}
        reply: Reply = answer(path, body)
        return reply

    with wire_server(refuse_one) as server, pytest.raises(ConfigError) as caught:
        calibrate(server.url, data)
    assert "state: seven" in str(caught.value)
    assert "line 8" in str(caught.value)


def test_a_server_that_changes_meanwhile_is_told(scored: Scored, data: Path) -> None:
    answer, infos = answers(scored), ["2" * 64, "4" * 64]

    def changing(path: str, body: Any) -> Reply:
        if path == "/v1/decide/info":
            return 200, info_document(model_sha256=infos.pop(0))
        reply: Reply = answer(path, body)
        return reply

    with wire_server(changing) as server, pytest.raises(EngineError, match="changed while it was asked"):
        calibrate(server.url, data)


def test_without_matplotlib_a_plot_is_refused_before_the_server_is_asked(
    scored: Scored, data: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda _name: None)
    with wire_server(answers(scored)) as server:
        assert main(["calibrate", "--url", server.url, "--data", str(data), "--plot", "p"]) == 2
    assert not server.seen
    assert "decideploy[plot]" in capsys.readouterr().err
