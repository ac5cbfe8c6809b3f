"""The full 26B shape: memory as planned, start, latency and throughput over HTTP.

Speed is measured with random weights. Memory is with the checkpoint's own, which are zeros: random scales of
gate and up differ, and Humming widens all of them for that.
"""

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from full_shape import write_full_shape
from load import Prompts, closed_loop
from measured_plans import KV_BOUND, PLANS, WEIGHTS_BOUND
from servers import free_port, images

from decideploy.artifacts import verify
from decideploy.hardware import card_report
from decideploy.plan import Workload, append_record, make_record, plan, reconcile
from decideploy.serve import EngineProcess, state_folder
from decideploy.serve.stages import usable_hardware

pytestmark = pytest.mark.gpu

GIB = 1024**3
DUMMY = ("--load-format", "dummy")
PROGRAM = Path(__file__).with_name("measure_memory.py")
START_S = 420.0
LENGTHS = (64, 128, 256, 512, 1024, 2048)
CLIENTS = ((1, 256, 60), (8, 256, 240), (64, 256, 1536), (64, 512, 768))


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("shape") / "full-shape"
    write_full_shape(folder)
    return folder


@pytest.fixture(scope="module")
def facts(model):
    verification = verify(model)
    verification.raise_for_issues()
    return verification.known_facts()


@pytest.fixture(scope="module")
def starting(facts, hardware, figure, results):
    """A function that starts the engine of a workload; the plan's argv goes to the results."""

    @contextmanager
    def start(name: str, workload: Workload) -> Iterator[tuple]:
        port = free_port()
        wishes = replace(
            workload,
            port=port,
            images=workload.images and images(),
            cache_root=cache_root(),
        )
        launch = plan(facts, usable_hardware(hardware, "cuda"), workload=wishes)
        with (results / "plans.txt").open("a") as plans:
            plans.write(f"{name}: {' '.join(launch.argv)}\n")
        log = state_folder(None) / "logs" / f"engine-{name.replace(' ', '-').replace(',', '')}.log"
        argv = without_gateway(launch.argv)
        engine = EngineProcess(argv, env=launch.env, host="127.0.0.1", port=port, log_path=log, drain_s=15)
        with engine:
            engine.start()
            yield engine, launch
        for title, pattern in LINES.items():
            if found := re.findall(pattern, log.read_text("utf-8", "replace")):
                figure(f"{name}: {title}", found[-1])

    return start


def cache_root() -> Path:
    return state_folder(None) / "cache-shape"


def without_gateway(argv):
    """The gateway refuses a server whose self-test fails, as that of weights without meaning must."""
    place = argv.index("--middleware")
    return (*argv[:place], *argv[place + 2 :])


LINES = {
    "weights": r"Model loading took (.{0,60})",
    "graphs": r"Graph capturing finished (.{0,60})",
    "graph estimate": r"[Ee]stimated CUDA graph.{0,80}",
    "compile": r"torch\.compile (?:took|and initial).{0,80}",
    "attention": r"Using (\w+) attention backend",
    "init": r"init engine .{0,80}",
}


def record_memory(name, engine, launch, figure, results):
    """The start's comparison with its plan, kept as `serve` keeps it, so that --calibrate can read it."""
    found = engine.log.facts
    observed = reconcile(launch, found)
    append_record(make_record(launch, found, observed), results / "starts")
    for told in observed.figures:
        size = GIB if told.unit == "bytes" else 1
        error = "" if told.error is None else f" ({told.error:+.2%})"
        values = [None if v is None else round(v / size, 2) for v in (told.predicted, told.observed)]
        figure(f"{name}: {told.name}, {told.unit} predicted, observed", f"{values}{error}")
    figure(f"{name}: KV tokens, kernel", f"{found.kv_cache_tokens}, {found.moe_backend}")
    return observed


def test_default_plan_answers_fast(starting, model, figure, results):
    prompts = Prompts(model)
    with starting("default", Workload(extra_args=DUMMY)) as (engine, launch):
        figure("default: cold start s", round(engine.wait_ready(START_S), 1))
        observed = record_memory("default", engine, launch, figure, results)
        measure("default", engine.base_url, prompts, figure)
    assert not observed.kernel_differs, observed


def test_second_start_is_warm(starting, model, figure):
    prompts = Prompts(model, seed=1)
    with starting("default again", Workload(extra_args=DUMMY)) as (engine, _):
        figure("default: warm start s", round(engine.wait_ready(START_S), 1))
        times, _ = closed_loop(engine.base_url, [prompts.body(256) for _ in range(256)], 64)
        figure("default again: first 256 of 256 tokens, 64 clients", str(times))


def measure(name, url, prompts, figure):
    """Each length by one client, then several clients; the first answers of a length are reported apart."""
    for tokens in LENGTHS:
        first, answers = closed_loop(url, [prompts.body(tokens) for _ in range(5)], 1)
        check(name, answers, tokens, figure)
        times, _ = closed_loop(url, [prompts.body(tokens) for _ in range(60)], 1)
        figure(f"{name}: {tokens} tokens, 1 client", f"{times}  (first {first.seconds[0] * 1000:.0f} ms)")
    for clients, tokens, count in CLIENTS:
        closed_loop(url, [prompts.body(tokens) for _ in range(2 * clients)], clients)
        times, answers = closed_loop(url, [prompts.body(tokens) for _ in range(count)], clients)
        check(name, answers, tokens, figure)
        figure(f"{name}: {tokens} tokens, {clients} clients", str(times))


def check(name, answers, tokens, figure):
    """Random weights may make a step's numbers infinite, which the server tells: counted, not hidden."""
    refused = [answer for answer in answers if answer["status"] != 200]
    if refused:
        figure(
            f"{name}: {tokens} tokens, answers that are no decision", f"{len(refused)}: {refused[0]}"[:300]
        )
    assert {answer["status"] for answer in answers} <= {200, 502}
    assert {answer["usage"]["prompt_tokens"] for answer in answers if "usage" in answer} <= {tokens}


@pytest.fixture(scope="module")
def measured(facts, hardware, results):
    """A function that gives a workload's plan, and what the engine measured of it."""

    def measure(name: str, workload: Workload) -> tuple:
        wishes = replace(workload, images=workload.images and images(), cache_root=cache_root())
        launch = plan(facts, usable_hardware(hardware, "cuda"), workload=wishes)
        out = results / f"memory-{name.replace(' ', '-').replace(',', '')}"
        command = [sys.executable, "-P", str(PROGRAM), f"{out}.json", *launch.argv[2:]]
        with open(f"{out}.log", "w") as log:
            subprocess.run(
                command, env=os.environ | launch.env, stdout=log, stderr=log, timeout=300, check=False
            )
        assert Path(f"{out}.json").exists(), Path(f"{out}.log").read_text("utf-8", "replace")[-4000:]
        return launch, json.loads(Path(f"{out}.json").read_text())

    return measure


@pytest.mark.parametrize("name", PLANS)
def test_memory_is_as_planned(measured, figure, name):
    launch, found = measured(name, PLANS[name].workload)
    memory, errors = launch.memory, {}
    for term, predicted in (("weights", memory.weights_bytes), ("kv_cache", memory.kv_cache_bytes)):
        observed = found[f"{term}_bytes"]
        errors[term] = observed / predicted - 1
        told = f"[{predicted / GIB:.2f}, {observed / GIB:.2f}] ({errors[term]:+.2%})"
        figure(f"{name}: {term}, GiB predicted, observed", told)
    rest = {
        key: round(found[f"{key}_bytes"] / GIB, 3)
        for key in ("consumed", "peak_and_graphs", "graphs_estimate")
    }
    figure(f"{name}: GiB, kernel", f"{rest}, {found['kernel']}")
    figure(f"{name}: plan", {term.name: round(term.size_bytes / GIB, 3) for term in memory.terms})
    assert abs(errors["kv_cache"]) <= KV_BOUND
    assert abs(errors["weights"]) <= WEIGHTS_BOUND
    assert found["kernel"].lower() == launch.moe_backend


def test_a_plan_for_24_gb_serves_long_prompts(starting, facts, hardware, model, figure):
    """The large card with a 24 GB card's share of it: the plan made for the one must hold on the other."""
    small = plan(facts, card_report("rtx4090"), workload=Workload(images=False))
    (gpu, *_) = hardware.visible_gpus
    wishes = Workload(
        images=False,
        gpu_memory_utilization=round(small.memory.available_bytes / gpu.total_bytes.value, 3),
        max_model_len=small.max_model_len,
        max_num_batched_tokens=small.max_num_batched_tokens,
        max_num_seqs=small.max_num_seqs,
        moe_backend=small.moe_backend,
    )
    with starting("24 GB", wishes) as (engine, launch):
        figure("24 GB: start s", round(engine.wait_ready(START_S), 1))
        figure(
            "24 GB: KV bytes planned, observed",
            [launch.memory.kv_cache_bytes, engine.log.facts.kv_cache_bytes],
        )
        prompts = Prompts(model, seed=2)
        times, answers = closed_loop(engine.base_url, [prompts.body(8000) for _ in range(4)], 2)
        check("24 GB", answers, 8000, figure)
        figure("24 GB: 8,000 tokens, 2 clients", str(times))
