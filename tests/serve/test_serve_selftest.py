import functools
import json
import re
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from fake_server import MODEL_SHA256, Server
from rich.console import Console

from decideploy.cli import main
from decideploy.errors import ConfigError, EngineError
from decideploy.serve import SelfTestError, SelfTestReport, print_selftest, selftest
from decideploy.serve.engine_log import _CAUSES
from decideploy.serve.golden import Golden, Tolerance, distance, golden_of
from decideploy.serve.http_client import Client, spread_pause_s
from decideploy.serve.questions import batch, golden_questions, one_of_each_kind, widest_choice
from decideploy.serve.selftest import EXAMINATIONS, Check, Subject, record_golden, run_check

Start = Callable[[str], str]
DOCUMENT = Path(__file__).parents[2] / "docs" / "self-test.md"


@pytest.fixture(scope="module")
def start() -> Iterator[Start]:
    servers: list[Server] = []

    @functools.cache
    def run(fault: str) -> str:
        server = Server(0, fault)
        servers.append(server)
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}).start()
        return f"http://127.0.0.1:{server.server_address[1]}"

    yield run
    for server in servers:
        server.shutdown()
        server.server_close()


@pytest.fixture(scope="module")
def golden(start: Start, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the server without a fault answers."""
    path = tmp_path_factory.mktemp("golden") / "golden.json"
    record_golden(start("")).write(path)
    return path


def test_right_server_passes_every_check(start: Start, golden: Path) -> None:
    report = selftest(start("draft"), golden=golden)
    assert [check.name for check in report.checks if not check.passed] == []
    assert all(check.configured for check in report.checks)
    assert "mtp" in {check.name: check.detail for check in report.checks}["draft-agrees"]
    report.raise_for_failures()
    assert json.loads(json.dumps(report.to_dict()))["passed"] is True


def test_a_check_with_nothing_to_look_at_says_so(start: Start) -> None:
    report = selftest(start(""))
    idle = {check.name: check.detail for check in report.checks if not check.configured}
    assert idle.keys() == {"draft-agrees", "golden-model", "golden-decisions", "golden-base"}
    assert all(detail.startswith("not configured: ") for detail in idle.values())
    console = Console(width=200)
    with console.capture() as capture:
        print_selftest(report, console)
    assert capture.get().count("not run") == len(idle)


@pytest.mark.parametrize(
    ("fault", "check"),
    [
        ("bad-sum", "kinds"),
        ("slot-missing", "slots"),
        ("placeholder", "slots"),
        ("split-label", "slots"),
        ("swapped-verbalizers", "verbalizers"),
        ("uncalibrated", "read-out"),
        ("truncated", "not-truncated"),
        ("defaults", "not-truncated"),
        ("adapter-is-base", "adapter-moves"),
        ("base-moves", "base-stays"),
        ("batch-dependent", "batch-agrees"),
        ("draft-moves", "draft-agrees"),
        ("draft-steps", "draft-agrees"),
        ("other-model", "golden-model"),
        ("other-decisions", "golden-decisions"),
        ("base-is-other", "golden-base"),
    ],
)
def test_each_fault_is_caught(start: Start, golden: Path, fault: str, check: str) -> None:
    found = examine(start(fault), check, golden)
    assert not found.passed, found.detail


def examine(url: str, name: str, golden: Path | None = None) -> Check:
    """The one check ``name``, without the others' time."""
    (one,) = [one for one in EXAMINATIONS if one.name == name]
    with Client(url) as client:
        return run_check(Subject(client=client, golden=Golden.read(golden) if golden else None), one)


def test_failures_are_one_error_with_a_next_step_each(start: Start) -> None:
    url, names = start("adapter-is-base"), ("adapter-moves", "kinds", "draft-agrees")
    report = SelfTestReport(url=url, checks=tuple(examine(url, name) for name in names))
    assert report.summary == "1 check passed, not configured: draft-agrees"
    with pytest.raises(SelfTestError, match="adapter-moves") as caught:
        report.raise_for_failures()
    told = {diagnostic.code: diagnostic for diagnostic in caught.value.diagnostics()}
    assert told.keys() == {"selftest-adapter-moves"}
    assert all(diagnostic.next_step for diagnostic in told.values())
    assert caught.value.exit_code == 8


def test_every_check_is_shown_to_fail() -> None:
    (mark,) = [m for m in test_each_fault_is_caught.pytestmark if m.name == "parametrize"]  # type: ignore[attr-defined]
    assert {check for _, check in mark.args[1]} == {one.name for one in EXAMINATIONS}


def test_a_full_batch_is_as_wide_as_the_server_says(start: Start) -> None:
    check = examine(start(""), "batch-agrees")
    assert check.detail.startswith("12 decisions, as many as the server batches")


def test_sampling_defaults_are_told_apart_from_an_engine_that_loses_slots(start: Start) -> None:
    cut = examine(start("defaults"), "not-truncated")
    assert "sampling defaults" in cut.meaning
    assert "P is -inf" in cut.detail
    assert examine(start("slot-missing"), "not-truncated").passed


def test_a_server_that_takes_fewer_at_once_than_it_batches_passes(start: Start) -> None:
    assert [check.detail for check in selftest(start("full")).checks if not check.passed] == []


def test_a_server_that_stays_full_is_told_once_the_time_is_up(start: Start) -> None:
    (one,) = [one for one in EXAMINATIONS if one.name == "kinds"]
    with Client(start("always-full"), timeout_s=0.1) as client:
        found = run_check(Subject(client=client, golden=None), one)
    assert "as many requests wait as may" in found.detail
    assert found.remedy == "ask fewer at a time, or later"


def test_a_batch_that_was_refused_together_does_not_come_back_together() -> None:
    pauses = {spread_pause_s("10", 1) for _ in range(20)}
    assert len(pauses) > 1
    assert 10.0 <= min(pauses) <= max(pauses) <= 15.0


def test_another_model_is_one_failure_of_its_own(start: Start, golden: Path) -> None:
    url = start("other-model")
    assert MODEL_SHA256 in examine(url, "golden-model", golden).detail
    for uncompared in ("golden-decisions", "golden-base"):
        found = examine(url, uncompared, golden)
        assert found.detail == "not configured: the golden decisions are of another model"


def test_shell_records_decisions_and_compares_with_them(
    start: Start, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    url, path = start(""), tmp_path / "new" / "golden.json"
    assert main(["selftest", "--url", url, "--record", str(path)]) == 0
    assert "24 decisions of the server of demo" in " ".join(capsys.readouterr().out.split())
    assert main(["selftest", "--url", start("other-decisions"), "--golden", str(path), "--json"]) == 8
    assert '"code": "selftest-golden-decisions"' in capsys.readouterr().out


def test_shell_replaces_a_file_only_when_told(
    start: Start, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    url, path = start(""), tmp_path / "m.json"
    path.write_text("a manifest")
    assert main(["selftest", "--url", url, "--record", str(path)]) == 2
    assert "the file exists" in capsys.readouterr().err
    assert path.read_text() == "a manifest"
    assert main(["selftest", "--url", url, "--record", str(path), "--force"]) == 0
    assert Golden.read(path).decisions
    assert main(["selftest", "--url", url, "--force"]) == 2
    assert "--force has no effect" in capsys.readouterr().err


def test_recording_refuses_a_server_that_answers_wrongly(start: Start) -> None:
    with pytest.raises(SelfTestError, match="adapter-moves"):
        record_golden(start("adapter-is-base"))


def test_recorded_decisions_name_model_and_build(golden: Path) -> None:
    recorded = Golden.read(golden)
    assert recorded.model_sha256 == MODEL_SHA256
    assert recorded.build is not None
    assert recorded.build.files_sha256 == "b" * 64
    assert [decision.request for decision in recorded.decisions] == list(golden_questions())


@pytest.mark.parametrize(
    ("content", "told"),
    [
        ("{", "Invalid JSON"),
        ("{}", "model_sha256: Field required"),
        ('{"schema_version": 2}', "schema_version: Input should be 1"),
    ],
)
def test_unusable_golden_decisions_stop_before_anything_is_asked(
    tmp_path: Path, content: str, told: str
) -> None:
    path = tmp_path / "golden.json"
    path.write_text(content)
    with pytest.raises(ConfigError, match=told) as caught:
        selftest("http://127.0.0.1:1", golden=path)
    assert caught.value.where == str(path)
    assert "--record" in caught.value.next_step


def test_golden_decisions_that_are_not_there_are_an_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="No such file"):
        Golden.read(tmp_path / "absent.json")


def test_the_named_file_comes_before_the_models_own(tmp_path: Path) -> None:
    assert golden_of(tmp_path) is None
    (tmp_path / "golden.json").write_text("{}")
    assert golden_of(tmp_path) == tmp_path / "golden.json"
    assert golden_of(tmp_path, Path("other.json")) == Path("other.json")


def test_distance_keeps_mean_largest_and_place() -> None:
    far = distance([(0.5, 0.5), (0.8, 0.2)], [(0.5, 0.5), (0.6, 0.4)])
    assert (far.count, far.worst) == (2, 1)
    assert far.mean == pytest.approx(0.1)
    assert far.largest == pytest.approx(0.2)
    assert far.within(Tolerance(mean=0.11, largest=0.21))
    assert not far.within(Tolerance(mean=0.09, largest=0.21))
    assert not far.within(Tolerance(mean=0.11, largest=0.19))


def test_answers_that_are_no_numbers_are_within_no_tolerance() -> None:
    assert not distance([(float("nan"), 0.5)], [(0.5, 0.5)]).within(Tolerance())


def test_server_that_cannot_be_reached_is_one_error() -> None:
    with pytest.raises(EngineError, match="cannot be reached") as caught:
        selftest("http://127.0.0.1:1")
    assert caught.value.status == 503
    assert len(caught.value.diagnostics()) == 1
    assert "--url" in caught.value.next_step


def test_check_that_raised_makes_no_diagnosis(start: Start) -> None:
    url = start("split-label")
    for name in ("slots", "adapter-moves", "base-stays"):
        failure = examine(url, name)
        assert "single tokens" in failure.detail
        assert failure.meaning == "the check could not be run"
        assert "patches" not in failure.remedy


def test_next_steps_name_options_that_exist() -> None:
    remedies = [one.remedy for one in EXAMINATIONS] + [remedy for _, remedy in _CAUSES]
    named = {option for remedy in remedies for option in re.findall(r"--[a-z][a-z-]+", remedy)}
    helped = "".join(
        subprocess.run(
            [sys.executable, "-m", "decideploy", verb, "--help"], check=True, capture_output=True, text=True
        ).stdout
        for verb in ("serve", "selftest", "verify")
    )
    # Of the container runtime, and what serve itself gives to the engine.
    elsewhere = {"--shm-size", "--logprobs-mode", "--max-logprobs", "--speculative-config"}
    assert {option for option in named - elsewhere if option not in helped} == set()
    assert not any("max_model_len" in remedy or "gpu_memory" in remedy for remedy in remedies)


def test_table_tells_what_a_failure_means(start: Start) -> None:
    url, console = start("adapter-is-base"), Console(width=200)
    with console.capture() as capture:
        print_selftest(SelfTestReport(url=url, checks=(examine(url, "adapter-moves"),)), console)
    assert "decisions are the base model's" in capture.get()


def test_questions_are_distinct_and_cover_all_slots() -> None:
    assert {request.kind for request in one_of_each_kind()} == {"noul", "score", "choice"}
    assert len(widest_choice().answer_options) == 16
    wide = batch(300)
    assert len({(request.state, request.question) for request in wide}) == 300
    assert not {request.state for request in wide} & {request.state for request in batch(300, case=1)}
    kinds = [request.kind for request in golden_questions()]
    assert [kinds.count(kind) for kind in ("noul", "score", "choice")] == [8, 8, 8]
    assert max(len(request.answer_options) for request in golden_questions()) == 16


def test_document_lists_every_check_in_order() -> None:
    rows = re.findall(r"^\| `([a-z-]+)` \|", DOCUMENT.read_text("utf-8"), re.MULTILINE)
    assert rows[: len(EXAMINATIONS)] == [one.name for one in EXAMINATIONS]
