import io
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from kernel_fakes import FakeKernels
from rich.console import Console
from waiting import PATIENCE_S, free_port, is_free

import decideploy.artifacts
import decideploy.build
from decideploy.errors import ConfigError, EngineError, IntegrityError, ProbeError, SeveralErrors
from decideploy.gateway import ServerSettings, read_settings
from decideploy.gateway.start import read_start
from decideploy.hardware import card_report, smoke
from decideploy.plan import Workload
from decideploy.plan import plan as make_plan
from decideploy.plan.starts import read_records
from decideploy.serve import SelfTestError, ServeOptions, serve, stages, state_folder
from decideploy.serve.launch import EngineProcess
from decideploy.serve.stages import example_command, usable_hardware

sys.path.insert(0, str(Path(__file__).parents[1] / "plan"))
from plan_facts import facts_26b, facts_small, gpu_report

SERVER = Path(__file__).with_name("fake_server.py")


@pytest.fixture
def port() -> int:
    return free_port()


@pytest.fixture
def console() -> Console:
    return Console(width=300, force_terminal=False, record=True, file=io.StringIO())


@pytest.fixture
def ground(monkeypatch: pytest.MonkeyPatch, port: int) -> Any:
    """Every stage before the engine replaced; ``ground.fault`` is what the fake engine does wrong."""
    told = SimpleNamespace(fault="", build=SimpleNamespace(version="0.30.0+cpu.test", recipe="cpu"))
    facts = facts_small(architecture="Gemma4ForConditionalGeneration")
    verification = SimpleNamespace(
        facts=facts, issues=(), raise_for_issues=lambda: None, known_facts=lambda: facts
    )
    real_plan = stages.plan

    def plan(*args: Any, **kwargs: Any) -> Any:
        return replace(real_plan(*args, **kwargs), argv=(sys.executable, str(SERVER), str(port), told.fault))

    monkeypatch.setattr(decideploy.build, "check_installed", lambda: told.build)
    monkeypatch.setattr(
        decideploy.artifacts, "resolve_model", lambda model, revision: Path(model), raising=False
    )
    monkeypatch.setattr(decideploy.artifacts, "check_access", lambda model, revision: str(model))
    monkeypatch.setattr(decideploy.artifacts, "verify", lambda model, adapter: verification, raising=False)
    monkeypatch.setattr(stages, "plan", plan)
    return told


def options(port: int, tmp_path: Path, **changes: Any) -> ServeOptions:
    usual = {"model": "/models/m", "port": port, "state_dir": tmp_path, "startup_timeout_s": PATIENCE_S}
    return ServeOptions(**{**usual, **changes})


def test_check_asks_each_kind_and_stops(ground: Any, port: int, tmp_path: Path, console: Console) -> None:
    result = serve(options(port, tmp_path, check=True), console)
    assert [request.kind for request, _ in result.decisions] == ["noul", "score", "choice"]
    assert result.selftest is not None
    assert not result.selftest.failures
    text = console.export_text()
    assert [name for name in ("build", "verify", "plan", "launch", "self-test") if name not in text] == []
    assert is_free(port)


def test_check_as_json_is_one_document(
    ground: Any, port: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    serve(options(port, tmp_path, check=True, json=True))
    document = json.loads(capsys.readouterr().out)
    assert document["selftest"]["passed"] is True
    assert len(document["decisions"]) == 3


def test_the_gateway_gets_its_settings(
    ground: Any, port: int, tmp_path: Path, console: Console, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: dict[str, Any] = {}

    def watched(*_args: Any, **kwargs: Any) -> Any:
        seen.update(kwargs, settings=read_settings(kwargs["env"]))
        seen["log"] = os.readlink(f"/proc/self/fd/{seen['settings'].access_log}")
        raise EngineError("enough seen")

    monkeypatch.setattr(stages, "EngineProcess", watched)
    with pytest.raises(EngineError, match="enough seen"):
        serve(options(port, tmp_path, check=True), console)
    assert seen["log"] == str(tmp_path / "logs" / f"access-{port}.jsonl"), "lines between the table's"
    log = tmp_path / "access" / "log.jsonl"
    settings, workload = ServerSettings(max_queue=7), Workload(shutdown_timeout_s=11)
    with pytest.raises(EngineError, match="enough seen"):
        serve(options(port, tmp_path, settings=settings, access_log=log, workload=workload), console)
    assert (seen["settings"].max_queue, seen["settings"].drain_timeout_s) == (7, 11.0)
    assert seen["keep_fds"] == (seen["settings"].access_log,)
    assert seen["log"] == str(log)


def test_faulty_keys_stop_before_the_load(
    ground: Any, port: int, tmp_path: Path, console: Console, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DECIDEPLOY_API_KEYS", "short")
    with pytest.raises(ConfigError, match="16 are the least"):
        serve(options(port, tmp_path), console)
    monkeypatch.delenv("DECIDEPLOY_API_KEYS")
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="access log"):
        serve(options(port, tmp_path, access_log=tmp_path / "file" / "log"), console)
    assert "launch" not in console.export_text()


def test_an_open_server_is_warned_about(ground: Any, port: int, tmp_path: Path, console: Console) -> None:
    serve(options(port, tmp_path, host="0.0.0.0", dry_run=True), console)
    assert "may ask" in console.export_text()


def test_a_server_that_could_not_test_itself_is_told() -> None:
    with pytest.raises(EngineError, match="the engine has died"):
        stages.read_proof({"phase": "failed", "reasons": ["the engine has died"], "selftest": None}, "u")


def test_another_kernel_than_planned_is_told_and_ends_a_strict_start(
    ground: Any, port: int, tmp_path: Path, console: Console, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, planned = stages.reconcile, make_plan(facts_26b(), gpu_report(80 * 1024**3))
    monkeypatch.setattr(
        stages, "reconcile", lambda _, observed: real(planned, replace(observed, moe_backend="MARLIN"))
    )
    result = serve(options(port, tmp_path, check=True), console)
    assert result.reconciliation is not None
    assert result.reconciliation.kernel_differs
    assert "planned the HUMMING expert kernel, the engine took MARLIN" in console.export_text()
    (record,) = read_records(tmp_path / "starts")
    assert record == read_start(tmp_path / "run" / f"start-{port}.json")
    assert (record.kernel_differs, record.observed_kernel) == (True, "MARLIN")
    with pytest.raises(EngineError, match="took MARLIN") as caught:
        serve(options(port, tmp_path, check=True, strict_kernel=True), console)
    assert "--strict-kernel" in caught.value.next_step
    assert is_free(port)


@pytest.fixture
def on_gpu(ground: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The CUDA build, an NVFP4 model and an H200 with ``on_gpu.kernels``; what is planned is not launched."""
    ground.kernels, ground.launches = FakeKernels(), []
    ground.build = SimpleNamespace(version="0.30.0+cuda.test", recipe="cuda", files_sha256="0" * 64)
    facts = facts_26b(architecture="Gemma4ForConditionalGeneration")
    verification = SimpleNamespace(issues=(), raise_for_issues=lambda: None, known_facts=lambda: facts)
    monkeypatch.setattr(decideploy.artifacts, "verify", lambda model, adapter: verification, raising=False)
    monkeypatch.setattr(stages, "probe", lambda: card_report("h200"))
    monkeypatch.setattr(smoke, "run_command", ground.kernels)

    def launched(*_args: Any, **_kwargs: Any) -> Any:
        raise EngineError("enough seen")

    def planned(*args: Any, **kwargs: Any) -> Any:
        ground.launches.append(make_plan(*args, **kwargs))
        return ground.launches[-1]

    monkeypatch.setattr(stages, "EngineProcess", launched)
    monkeypatch.setattr(stages, "plan", planned)
    return ground


def test_a_kernel_that_is_wrong_is_replaced_before_the_load(
    on_gpu: Any, port: int, tmp_path: Path, console: Console
) -> None:
    on_gpu.kernels.kinds = {"humming": "wrong"}
    with pytest.raises(EngineError, match="enough seen"):
        serve(options(port, tmp_path), console)
    (launch,) = on_gpu.launches
    assert launch.moe_backend == "marlin"
    assert "humming gives wrong numbers" in launch.reasons["moe_backend"]
    text = console.export_text()
    assert "[kernel-wrong] humming gives wrong numbers" in text
    assert "marlin: right" in text


def test_a_kernel_that_was_asked_for_and_is_wrong_is_refused(
    on_gpu: Any, port: int, tmp_path: Path, console: Console
) -> None:
    on_gpu.kernels.kinds = {"humming": "nan"}
    forced = Workload(moe_backend="humming")
    with pytest.raises(ConfigError, match="humming gives values that are not finite") as caught:
        serve(options(port, tmp_path, workload=forced), console)
    assert caught.value.where == "--moe-backend"
    assert on_gpu.kernels.asked == ["humming"]
    on_gpu.kernels.kinds = {}
    with pytest.raises(EngineError, match="enough seen"):
        serve(options(port, tmp_path, workload=Workload(moe_backend="marlin")), console)
    assert on_gpu.kernels.asked == ["humming", "marlin"]


def test_a_test_that_cannot_run_warns_and_leaves_the_plan(
    on_gpu: Any, port: int, tmp_path: Path, console: Console
) -> None:
    on_gpu.kernels.kinds = {"humming": "crash", "marlin": "crash"}
    with pytest.raises(EngineError, match="enough seen"):
        serve(options(port, tmp_path), console)
    assert [launch.moe_backend for launch in on_gpu.launches] == ["humming"]
    assert "the first is used untested" in " ".join(console.export_text().split())


def test_no_right_kernel_ends_the_start(on_gpu: Any, port: int, tmp_path: Path, console: Console) -> None:
    on_gpu.kernels.kinds = {"humming": "wrong", "marlin": "crash"}
    with pytest.raises(ProbeError, match=r"humming gives wrong numbers.*; marlin ended with status 1"):
        serve(options(port, tmp_path), console)


def test_kernels_are_not_tried_where_nobody_asks_for_numbers(
    on_gpu: Any, port: int, tmp_path: Path, console: Console
) -> None:
    with pytest.raises(EngineError, match="enough seen"):
        serve(options(port, tmp_path, no_smoke_test=True), console)
    serve(options(port, tmp_path, dry_run=True), console)
    assert [launch.moe_backend for launch in on_gpu.launches] == ["humming", "humming"]
    assert on_gpu.kernels.asked == []
    assert "not tested: --no-smoke-test" in console.export_text()


def test_failed_selftest_stops_the_engine(ground: Any, port: int, tmp_path: Path, console: Console) -> None:
    ground.fault = "adapter-is-base"
    with pytest.raises(SelfTestError, match="adapter-moves"):
        serve(options(port, tmp_path), console)
    assert is_free(port)


def test_dry_run_starts_nothing_and_prints_the_plan(
    ground: Any, port: int, tmp_path: Path, console: Console
) -> None:
    result = serve(options(port, tmp_path, dry_run=True), console)
    assert result.base_url is None
    assert "VLLM_PLUGINS=decideploy" in console.export_text()
    assert not (tmp_path / "logs").exists()


def test_wrong_build_stops_serve_but_not_a_dry_run(
    ground: Any, port: int, tmp_path: Path, console: Console, monkeypatch: pytest.MonkeyPatch
) -> None:
    def wrong() -> None:
        raise IntegrityError("vllm is not installed here")

    monkeypatch.setattr(decideploy.build, "check_installed", wrong)
    with pytest.raises(IntegrityError):
        serve(options(port, tmp_path), console)
    serve(options(port, tmp_path, dry_run=True), console)
    assert "would stop serve" in console.export_text()


def test_taken_port_is_found_before_anything_else(
    ground: Any, port: int, tmp_path: Path, console: Console
) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", port))
        other.listen()
        with pytest.raises(ConfigError, match="cannot listen"):
            serve(options(port, tmp_path), console)
        assert "build" not in console.export_text(clear=False)
        serve(options(port, tmp_path, dry_run=True), console)
    assert "VLLM_PLUGINS" in console.export_text()


def test_dry_run_refuses_a_port_that_does_not_exist(ground: Any, tmp_path: Path, console: Console) -> None:
    with pytest.raises(ConfigError, match="port 70000"):
        serve(options(70000, tmp_path, dry_run=True), console)


def test_unwritable_state_folder_is_told_by_the_demo_model(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="cannot write to the state folder") as caught:
        stages.demo_model(tmp_path / "file" / "state")
    assert "DECIDEPLOY_HOME" in caught.value.next_step


def test_sigterm_ends_serve_cleanly(
    ground: Any, port: int, tmp_path: Path, console: Console, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = signal.getsignal(signal.SIGTERM)
    serving, wait = threading.Event(), EngineProcess.wait

    def watched(engine: EngineProcess) -> int:
        serving.set()
        return wait(engine)

    def terminate() -> None:
        if serving.wait(PATIENCE_S):
            os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.setattr(EngineProcess, "wait", watched)
    threading.Thread(target=terminate, daemon=True).start()
    result = serve(options(port, tmp_path), console)
    assert result.base_url == f"http://127.0.0.1:{port}"
    text = console.export_text()
    assert f"curl -s http://127.0.0.1:{port}/v1/decide" in text
    assert text.rstrip().endswith("stopped")
    assert signal.getsignal(signal.SIGTERM) is before


def test_example_command_is_what_a_shell_runs() -> None:
    words = subprocess.run(
        ["bash", "-c", f"curl() {{ printf '%s\\n' \"$@\"; }}; {example_command('http://h:1')}"],
        check=True,
        capture_output=True,
        text=True,
    ).stdout.splitlines()
    assert words[1] == "http://h:1/v1/decide"
    assert json.loads(words[-1])["kind"] == "noul"
    assert 'Bearer $API_KEY"' in example_command("http://h:1", with_key=True)


def test_cpu_build_hides_gpus_and_cuda_build_needs_one() -> None:
    report = card_report("h100")
    assert usable_hardware(report, "cpu").platform == "cpu"
    assert usable_hardware(report, "cuda").platform == "cuda"
    with pytest.raises(ProbeError, match="no GPU is visible"):
        usable_hardware(replace(report, gpus=()), "cuda")


def test_state_folder_order(tmp_path: Path) -> None:
    environ = {"HOME": "/home/u", "XDG_CACHE_HOME": "/xdg", "DECIDEPLOY_HOME": "/own"}
    assert state_folder(tmp_path, environ) == tmp_path
    assert state_folder(None, environ) == Path("/own")
    del environ["DECIDEPLOY_HOME"]
    assert state_folder(None, environ) == Path("/xdg/decideploy")
    assert state_folder(None, {"HOME": "/home/u"}) == Path("/home/u/.cache/decideploy")


def test_every_cheap_fault_is_told_before_a_model_is_looked_for(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    options = ServeOptions(
        model="no-model",
        port=0,
        state_dir=tmp_path / "file" / "state",
        settings=ServerSettings(api_key_file=tmp_path / "no-keys"),
    )
    with pytest.raises(SeveralErrors) as caught:
        serve(options, Console(quiet=True))
    told = " ".join(map(str, caught.value.diagnostics()))
    assert caught.value.exit_code == 2
    assert all(part in told for part in ("port 0", "no-keys", "state folder", "no-model"))
