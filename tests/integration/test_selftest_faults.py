"""Engines broken on purpose: the gate before the launch refuses them, and the self-test where there is none.

One engine is started for all faults that can be put into it while it runs (``faulty_server.py``), one
without patch 0004, one of the upstream wheel, and one by ``decideploy serve`` itself.
"""

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import contextmanager, suppress
from pathlib import Path

import httpx
import numpy as np
import pytest
from probes import cache_of
from waiting import PATIENCE_S, free_port

from decideploy.artifacts import verify
from decideploy.artifacts.digest import model_digest
from decideploy.artifacts.safetensors_file import StoredTensor
from decideploy.decide import DecisionHead, PromptEncoder
from decideploy.errors import IntegrityError, VerificationError
from decideploy.serve import Golden, selftest
from decideploy.serve.engine_log import EngineLog

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent / "artifacts"))

from model_edits import edit_json, edit_tensors, linked_copy  # noqa: E402

pytestmark = pytest.mark.integration

ADAPTER = "adapter_vllm/adapter_model.safetensors"
HEAD = "adapter_vllm/decision_head.json"
NOT_RUN = "the check could not be run"
START_S = 600
MEASURED = ("read-out", "adapter-moves", "base-stays", "batch-agrees", "golden-decisions", "golden-base")


def zeros(*, of):
    """An edit that zeroes every lora_B of the adapter whose name ``of`` picks."""

    def change(tensors):
        named = [name for name in tensors if "lora_B" in name and of(name)]
        assert named
        for name in named:
            stored = tensors[name]
            tensors[name] = StoredTensor(dtype=stored.dtype, values=np.zeros_like(stored.values))

    return edit_tensors(ADAPTER, change)


def swap_verbalizers(document):
    ids = document["verbalizer_ids"]
    ids[0], ids[1] = ids[1], ids[0]


def full_layers(model):
    layer_types = json.loads((model / "config.json").read_text())["text_config"]["layer_types"]
    return [number for number, kind in enumerate(layer_types) if kind == "full_attention"]


@pytest.fixture(scope="module")
def models(demo_model, tmp_path_factory):
    """Folder by fault, the whole model among them."""
    folder = tmp_path_factory.mktemp("faults")
    copies = tuple(f".layers.{layer}.self_attn.v_proj." for layer in full_layers(demo_model))
    edits = {
        "whole": lambda model: None,
        "zeroed-adapter": zeros(of=lambda name: True),
        "zeroed-backbone": zeros(of=lambda name: "lm_head" not in name),
        "no-value-copies": zeros(of=lambda name: any(copy in name for copy in copies)),
        "swapped-verbalizers": edit_json(HEAD, swap_verbalizers),
    }
    for name, edit in edits.items():
        edit(linked_copy(demo_model, folder / name))
    return {name: folder / name for name in edits}


@pytest.fixture(scope="module")
def plan(models, engine_home):
    """What ``serve`` would launch for the whole model: its argv and environment."""
    done = subprocess.run(
        [sys.executable, "-m", "decideploy", "serve", str(models["whole"]), "--dry-run", "--json"],
        env=os.environ | {"DECIDEPLOY_HOME": str(engine_home)},
        capture_output=True,
        text=True,
        check=True,
    )
    return json.loads(done.stdout)["plan"]


def arguments(plan, port):
    """The plan's arguments for ``vllm``, on ``port``; no gateway, which would run the self-test itself."""
    argv = list(plan["argv"][1:])
    argv[argv.index("--port") + 1] = str(port)
    if "--middleware" in argv:
        place = argv.index("--middleware")
        del argv[place : place + 2]
    return argv


@contextmanager
def running(plan, log, *, vllm=None):
    """A faulty server; gives its URL once it answers, None when its process ended before that."""
    port = free_port()
    path = os.pathsep.join(filter(None, [str(vllm) if vllm else "", *python_path()]))
    command = [sys.executable, str(HERE / "faulty_server.py"), *arguments(plan, port)]
    cache = cache_of(vllm, Path(plan["env"]["VLLM_CACHE_ROOT"]).parent)
    with open(log, "wb") as out:
        process = subprocess.Popen(
            command,
            env=os.environ | plan["env"] | {"PYTHONPATH": path, "VLLM_CACHE_ROOT": str(cache)},
            stdout=out,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        yield answering(process, f"http://127.0.0.1:{port}")
    finally:
        stop(process)


def python_path():
    return [folder for folder in os.environ.get("PYTHONPATH", "").split(os.pathsep) if folder]


def answering(process, url):
    deadline = time.monotonic() + START_S
    while process.poll() is None and time.monotonic() < deadline:
        try:
            if httpx.get(f"{url}/health", timeout=5).status_code == 200:
                return url
        except httpx.HTTPError:
            time.sleep(0.5)
    return None


def stop(process):
    """End the server and the engine, which is a process of its own in the same session."""
    process.terminate()
    with suppress(subprocess.TimeoutExpired):
        process.wait(30)
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


@pytest.fixture(scope="module")
def faulty(plan, tmp_path_factory):
    log = tmp_path_factory.mktemp("log") / "faulty.log"
    with running(plan, log) as url:
        assert url, log.read_text()[-4000:]
        yield url


@pytest.fixture(scope="module")
def golden(demo_model):
    return demo_model / "golden.json"


def examined(url, golden):
    """The self-test's report, and the names of the checks that made a diagnosis."""
    report = selftest(url, golden=golden)
    told = {check.name: check.detail for check in report.checks}
    return told, {failure.name for failure in report.failures if failure.meaning != NOT_RUN}


def broken(faulty, golden, name):
    reply = httpx.post(f"{faulty}/fault/{name}", timeout=PATIENCE_S)
    assert reply.status_code == 200, reply.text
    return examined(faulty, golden)


def test_whole_engine_passes_every_check(faulty, golden, figure):
    told, diagnosed = broken(faulty, golden, "none")
    assert not diagnosed, told
    for name in MEASURED:
        figure(f"self-test, whole engine, {name}: {told[name]}")


@pytest.mark.parametrize(
    ("fault", "names"),
    [
        ("zeroed-adapter", {"adapter-moves", "golden-decisions"}),
        ("zeroed-backbone", {"golden-decisions"}),
        ("no-value-copies", {"golden-decisions"}),
        ("swapped-verbalizers", {"verbalizers", "golden-decisions"}),
        ("sampling-defaults", {"not-truncated"}),
    ],
)
def test_broken_engine_is_refused_by_name(faulty, golden, fault, names, figure):
    told, diagnosed = broken(faulty, golden, fault)
    assert diagnosed == names, told
    for name in sorted(names):
        figure(f"self-test, {fault}, {name}: {told[name]}")


@pytest.mark.parametrize(
    ("fault", "code"),
    [
        ("zeroed-adapter", "adapter-zero"),
        ("zeroed-backbone", "adapter-zero"),
        ("no-value-copies", "adapter-value-copy"),
        ("swapped-verbalizers", "head-verbalizer"),
    ],
)
def test_files_of_a_broken_model_are_refused_before_the_launch(models, fault, code):
    assert code in {issue.code for issue in verify(models[fault]).errors}
    done = subprocess.run(
        [sys.executable, "-m", "decideploy", "serve", str(models[fault]), "--port", str(free_port())],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == VerificationError.exit_code
    assert code in done.stderr


def test_swapped_verbalizers_stop_the_plugin_too(models):
    head = DecisionHead.read(models["swapped-verbalizers"] / HEAD)
    with pytest.raises(VerificationError) as caught:
        PromptEncoder.from_model(models["swapped-verbalizers"]).check_labels(head)
    assert {fault.code for fault in caught.value.diagnostics()} == {"verbalizer-mismatch"}


def test_upstream_wheel_is_refused_before_the_launch(models, upstream):
    done = subprocess.run(
        [sys.executable, "-m", "decideploy", "serve", str(models["whole"]), "--port", str(free_port())],
        env=os.environ | {"PYTHONPATH": os.pathsep.join([str(upstream), *python_path()])},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == IntegrityError.exit_code
    assert "another vllm than the installed one" in done.stderr


def test_upstream_wheel_never_answers(plan, upstream, tmp_path):
    log = tmp_path / "engine.log"
    with running(plan, log, vllm=upstream) as url:
        assert url is None
    facts = EngineLog(tmp_path / "followed.log")
    with open(log, "rb") as lines:
        facts.follow(lines)
        facts.wait(PATIENCE_S)
    assert "lacks the lm_head LoRA patch" in facts.cause, log.read_text()[-4000:]


def test_engine_without_patch_0004_changes_the_base_model(plan, without, golden, tmp_path, figure):
    log = tmp_path / "engine.log"
    with running(plan, log, vllm=without("0004")) as url:
        assert url, log.read_text()[-4000:]
        told, diagnosed = examined(url, golden)
    for name in ("base-stays", "golden-base"):
        figure(f"self-test, without patch 0004, {name}: {told[name]}")
    assert "golden-base" in diagnosed, told
    assert diagnosed <= {"base-stays", "golden-base", "batch-agrees"}, told


def test_golden_decisions_of_the_whole_model_are_not_of_a_broken_one(models, golden):
    known = Golden.read(golden)
    assert model_digest(models["whole"]) == known.model_sha256
    digests = {name: model_digest(folder) for name, folder in models.items()}
    assert len(set(digests.values())) == len(models)


def test_serve_refuses_readiness(models, golden, engine_home, tmp_path):
    """Without ``verify``, K=V copies are missed by everything but the recorded decisions."""
    model = models["no-value-copies"]
    # The reference reads adapter/ and not what was made of it, so only the digest changes.
    moved = Golden.read(golden).model_copy(update={"model_sha256": model_digest(model)})
    moved.write(tmp_path / "moved.json")
    command = [sys.executable, str(HERE / "unverified_serve.py"), "serve", str(model), "--json"]
    command += ["--port", str(free_port()), "--golden", str(tmp_path / "moved.json")]
    done = subprocess.run(
        command,
        env=os.environ | {"DECIDEPLOY_HOME": str(engine_home)},
        capture_output=True,
        text=True,
        check=False,
        timeout=START_S,
    )
    assert done.returncode == 8, done.stderr[-4000:]
    codes = [fault["code"] for fault in json.loads(done.stdout)["diagnostics"]]
    assert codes == ["selftest-golden-decisions"], done.stdout
