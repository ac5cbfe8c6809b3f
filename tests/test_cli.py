from __future__ import annotations

import argparse
import json
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from rich.console import Console
from waiting import PATIENCE_S

import decideploy.build
import decideploy.hardware
from decideploy import errors
from decideploy.cli import main, server
from decideploy.cli.output import Command
from decideploy.cli.parser import make_parser
from decideploy.plan import Workload

README = Path(__file__).parent.parent / "README.md"

IMPORT_LIGHTLY = """
import sys
import decideploy.cli, decideploy.artifacts, decideploy.hardware, decideploy.plan
import decideploy.pins, decideploy.build, decideploy.decide
print(*sorted({"torch", "vllm", "modal", "transformers"} & sys.modules.keys()))
"""


def readme_verbs() -> list[str]:
    return re.findall(r"^\| `decideploy ([a-z-]+)", README.read_text("utf-8"), re.MULTILINE)


def raising(error: BaseException) -> Command:
    def command(_options: argparse.Namespace, _console: Console) -> int:
        raise error

    return command


def test_parser_has_every_verb_of_the_readme(capsys: pytest.CaptureFixture[str]) -> None:
    verbs = readme_verbs()
    assert {"build", "verify", "plan", "serve", "doctor"} <= set(verbs)
    for verb in verbs:
        with pytest.raises(SystemExit) as stopped:
            main([verb, "--help"])
        assert stopped.value.code == 0
        assert f"decideploy {verb}" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("flags", "why"), [((), "no GPU is visible"), (("--no-smoke-test",), "--no-smoke-test")]
)
def test_probe_says_why_no_kernel_was_tried(
    flags: tuple[str, ...], why: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert main(["probe", "--json", *flags]) == 0
    reading = json.loads(capsys.readouterr().out)["smoke_test"]
    assert reading == {"value": None, "source": f"not run: {why}"}


def test_probe_tells_the_hardware_where_the_build_is_not_installed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def missing() -> None:
        raise errors.IntegrityError("vllm is not installed here")

    monkeypatch.setattr(decideploy.hardware, "probe", lambda: decideploy.hardware.card_report("h200"))
    monkeypatch.setattr(decideploy.build, "check_installed", missing)
    assert main(["probe", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["gpus"][0]["name"]["value"] == "NVIDIA H200"
    assert document["smoke_test"] == {"value": None, "source": "not run: vllm is not installed here"}


@pytest.mark.parametrize("verb", ["serve", "doctor"])
@pytest.mark.parametrize("port", ["0", "65536", "-1", "8000.5", "http", "9" * 5000])
def test_ports_outside_the_range_are_refused(
    verb: str, port: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stopped:
        main([verb, f"--port={port}"])
    assert stopped.value.code == 2
    assert "integer from 1 to 65535" in capsys.readouterr().err


@pytest.mark.parametrize("port", ["1", "65535"])
def test_ports_at_the_ends_of_the_range_are_taken(port: str, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    monkeypatch.setattr(server, "_doctor", lambda options, _console: asked.append(options.port) or 0)
    assert main(["doctor", "--port", port]) == 0
    assert asked == [int(port)]


@pytest.mark.parametrize("option", ["--max-model-len", "--max-num-seqs"])
@pytest.mark.parametrize("value", ["0", "-1", "many", "9" * 5000])
def test_sizes_of_the_workload_are_positive(
    option: str, value: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(["plan", "model", f"{option}={value}"])
    assert stopped.value.code == 2
    assert "no integer above 0" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["calibrate", "--folds", "-3"], "no integer from 0 up"),
        (["calibrate", "--folds", "x"], "no integer from 0 up"),
        (["calibrate", "--folds", "1"], "0, or 2 and more"),
        (["serve", "--max-images", "-1"], "no integer from 0 up"),
    ],
)
def test_counts_that_may_be_0_say_so(
    arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(arguments)
    assert stopped.value.code == 2
    assert words in capsys.readouterr().err


def test_the_plan_takes_what_is_asked_for(demo_model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    wishes = ["--max-model-len", "512", "--max-num-seqs", "7"]
    assert main(["plan", str(demo_model), "--hardware", "h200", "--json", *wishes]) == 0
    launch = json.loads(capsys.readouterr().out)
    assert (launch["max_model_len"], launch["max_num_seqs"]) == (512, 7)


def test_serve_hands_on_what_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Workload] = []
    monkeypatch.setattr("decideploy.serve.serve", lambda options, _console: asked.append(options.workload))
    assert main(["serve", "--max-model-len", "512"]) == 0
    assert main(["serve", "--max-num-seqs", "7"]) == 0
    assert asked == [Workload(max_model_len=512), Workload(max_num_seqs=7)]


def test_serve_hands_on_the_limits_of_images(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Workload] = []
    monkeypatch.setattr("decideploy.serve.serve", lambda options, _console: asked.append(options.workload))
    hosts = ["--allow-image-host", "a.example.com", "--allow-image-host", "b.example.com"]
    assert main(["serve", "--max-images", "0"]) == 0
    assert main(["serve", "--max-images", "2", *hosts]) == 0
    two = Workload(max_images=2, image_hosts=("a.example.com", "b.example.com"))
    assert asked == [Workload(images=False, max_images=0), two]
    assert main(["serve", "--allow-image-host", "https://a.example.com"]) == 2
    assert len(asked) == 2


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (errors.Error("x"), 1),
        (errors.ConfigError("x"), 2),
        (errors.IntegrityError("x"), 3),
        (errors.PatchError("x"), 4),
        (errors.VerificationError("x", issues=()), 5),
        (errors.ProbeError("x"), 6),
        (errors.CapacityError("x", needed_bytes=2, available_bytes=1, largest_term="t"), 7),
        (errors.EngineError("x"), 8),
        (KeyboardInterrupt(), 130),
    ],
)
def test_exit_status_tells_the_kind_of_error(
    error: BaseException, status: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "_probe", raising(error))
    assert main(["probe"]) == status


def test_a_file_where_a_folder_belongs_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "taken").write_text("")
    assert main(["demo-model", str(tmp_path / "taken" / "model")]) == 2
    told = capsys.readouterr().err
    assert "Not a directory" in told
    assert f"where: {tmp_path}/taken" in told
    assert "next:" in told


def undecodable() -> Exception:
    with pytest.raises(UnicodeDecodeError) as caught:
        b"key = \xff".decode()
    return caught.value


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (PermissionError(13, "Permission denied", "here.json"), ["Permission denied", "where: here.json"]),
        (FileExistsError(17, "File exists", "a", None, "b"), ["File exists", "where: a -> b"]),
        (OSError("no number"), ["no number"]),
        (undecodable(), ["not UTF-8 text", "at byte 6", r"b'key = \xff'"]),
        (RecursionError("too deep"), ["nests deeper", "too deep"]),
    ],
)
def test_faults_of_files_are_configuration_errors(
    error: Exception, words: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(server, "_probe", raising(error))
    assert main(["probe", "--json"]) == 2
    written = capsys.readouterr()
    assert all(word in written.err for word in words)
    document = json.loads(written.out)
    assert document["error"] == "ConfigError"
    assert document["diagnostics"][0]["next_step"]


def test_a_nested_report_ends_without_traceback(
    tmp_path: Path, demo_model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    report = tmp_path / "report.json"
    report.write_text("[" * 100_000)
    assert main(["plan", str(demo_model), "--hardware", str(report)]) == 2
    assert "error:" in capsys.readouterr().err


def test_long_paths_are_not_broken(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    where = "/".join(["folder"] * 60)
    monkeypatch.setattr(server, "_probe", raising(errors.ConfigError("wrong", where=where)))
    main(["probe"])
    assert where in capsys.readouterr().err


def test_imports_stay_light() -> None:
    done = subprocess.run([sys.executable, "-c", IMPORT_LIGHTLY], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []


def test_a_reader_that_leaves_ends_a_verb_silently() -> None:
    command = [
        sys.executable,
        "-m",
        "decideploy",
        "plan",
        "autotrust/GEV-26B-Decide-NVFP4",
        "--hardware",
        "h200",
        "--json",
    ]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        process.stdout.close()
        assert process.stderr.read() == b""
        assert process.wait(PATIENCE_S) == 128 + signal.SIGPIPE


def test_blanks_beside_commas_belong_to_no_option() -> None:
    options = make_parser().parse_args(
        ["decide", "--kind", "choice", "--question", "q", "--options", "a refund, an apology"]
    )
    assert options.options == ("a refund", "an apology")
