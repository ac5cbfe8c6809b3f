"""The demo model on the GPU, end to end: stages, every kind, parity, batches, isolation."""

import math
import re
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import httpx
import numpy as np
import pytest
from agreement import ask_all, check_agreement
from decisions import bare_prompt, random_decisions
from dequantised import write_dequantised

from decideploy.cli import main
from decideploy.decide import DecisionHead, PromptEncoder

pytestmark = pytest.mark.gpu

COUNT = 300
BASE_PROMPTS = 24
BASE_BOUND = 0.03


@pytest.fixture(scope="module")
def decisions():
    return random_decisions(COUNT, seed=20260930)


@pytest.fixture(scope="module")
def prompts(decisions, demo):
    encoder = PromptEncoder.from_model(demo.model)
    return [encoder.encode(bare_prompt(decision)) for decision in decisions]


@pytest.fixture(scope="module")
def reference(demo, hardware, tmp_path_factory):
    from reference import Reference

    if hardware.platform != "cuda":
        return Reference(demo.model)
    return Reference(write_dequantised(demo.model, tmp_path_factory.mktemp("dequantised") / "model"))


@pytest.fixture(scope="module")
def expected(reference, decisions, prompts):
    kinds = [decision.kind for decision in decisions]
    return reference.probabilities(prompts, kinds, [len(d.options) for d in decisions])


@pytest.fixture(scope="module")
def ask(demo, decisions):
    """A function that asks every decision, so many at once."""
    return lambda at_once: ask_all(demo.url, decisions, at_once)


@pytest.fixture(scope="module")
def alone(ask):
    return ask(1)


def test_probe_reads_every_value_of_the_gpu(hardware, figure):
    (gpu, *_) = hardware.visible_gpus
    readings = {
        "name": gpu.name,
        "compute capability": gpu.compute_capability,
        "total": gpu.total_bytes,
        "free": gpu.free_bytes,
        "uuid": gpu.uuid,
        "driver": hardware.driver_version,
        "CUDA": hardware.cuda_version,
    }
    figure("probe", ", ".join(f"{key} {reading.value}" for key, reading in readings.items() if key != "uuid"))
    figure("probe, conditions", [condition.code for condition in hardware.conditions])
    assert not [key for key, reading in readings.items() if not reading.known]


def test_server_starts_as_planned(demo, figure):
    observed = demo.started["reconciliation"]
    figure("demo, start s", round(demo.started["ready_s"], 1))
    figure(
        "demo, expert kernel", f"{observed['predicted_moe_backend']} -> {observed['observed_moe_backend']}"
    )
    gib = 1024**3
    for told in observed["figures"]:
        size = gib if told["unit"] == "bytes" else 1
        values = [told[source] and round(told[source] / size, 2) for source in ("predicted", "observed")]
        figure(f"demo, {told['name']}, {told['unit']} predicted, observed", values)
    assert not observed["differences"], observed


def test_selftest_passes(demo):
    assert demo.started["selftest"]["passed"], demo.started["selftest"]
    assert main(["selftest", "--url", demo.url]) == 0


@pytest.mark.parametrize(
    ("kind", "options", "count"),
    [
        ("noul", None, 2),
        ("score", None, 6),
        ("choice", ["yes", "no"], 2),
        ("choice", [*"abcdefghijklmnop"], 16),
    ],
)
def test_each_kind_answers(demo, kind, options, count):
    fields = {"kind": kind, "state": "The box was torn.", "question": "Was the box whole?"}
    reply = httpx.post(
        f"{demo.url}/v1/decide", json=fields | ({"options": options} if options else {}), timeout=60
    )
    assert reply.status_code == 200, reply.text
    probabilities = reply.json()["probabilities"]
    assert len(probabilities) == count
    assert math.isclose(sum(probabilities), 1, abs_tol=1e-6)


def test_system_2_answers(demo):
    model = demo.started["plan"]["served_model_name"]
    chat = {"model": model, "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 8}
    reply = httpx.post(f"{demo.url}/v1/chat/completions", json=chat, timeout=120)
    assert reply.status_code == 200, reply.text
    assert reply.json()["usage"]["completion_tokens"] >= 1


def test_alone_agrees_with_the_reference(alone, expected, figure):
    check_agreement(alone, expected, partial(figure, "one at a time vs reference"))


@pytest.mark.parametrize("at_once", [64, 256])
def test_batch_agrees_with_the_reference_and_with_alone(ask, alone, expected, figure, at_once):
    found = ask(at_once)
    check_agreement(found, expected, partial(figure, f"{at_once} at once vs reference"))
    check_agreement(found, alone, partial(figure, f"{at_once} at once vs one at a time"))


def test_answers_are_informative(alone, figure):
    lower, upper = np.quantile([answer.max() for answer in alone], [0.25, 0.75])
    figure("leading probability, quartiles", f"{lower:.3f}, {upper:.3f}")
    assert lower < 0.6
    assert upper > 0.85


def test_base_model_beside_the_adapter_is_the_base_model(demo, reference, decisions, prompts, figure):
    """Base and adapter requests in the same steps; the base answers stay those of the base model."""
    head = DecisionHead.read(demo.model / "adapter_vllm" / "decision_head.json")
    kinds = [decision.kind for decision in decisions[:BASE_PROMPTS]]
    counts = [len(decision.options) for decision in decisions[:BASE_PROMPTS]]
    wanted = reference.base_probabilities(prompts[:BASE_PROMPTS], kinds, counts)
    adapted = reference.probabilities(prompts[:BASE_PROMPTS], kinds, counts)
    model = demo.started["plan"]["served_model_name"]

    def base(place):
        ids = [head.verbalizer_ids[slot] for slot in head.slot_range(kinds[place], counts[place])]
        return base_read(demo.url, model, prompts[place], ids)

    with ThreadPoolExecutor(64) as pool:
        traffic = [pool.submit(ask_all, demo.url, decisions[:60], 1) for _ in range(4)]
        found = list(pool.map(base, range(BASE_PROMPTS)))
        for answers in traffic:
            answers.result()
    moved = max(np.abs(a - b).max() for a, b in zip(found, wanted, strict=True))
    apart = max(np.abs(a - b).max() for a, b in zip(adapted, wanted, strict=True))
    figure("base beside adapter traffic vs base reference, max", f"{moved:.4f} (adapter itself: {apart:.2f})")
    assert moved < BASE_BOUND < apart


def base_read(url, model, prompt, ids):
    fields = {
        "model": model,
        "prompt": prompt,
        "max_tokens": 1,
        "temperature": 1.0,
        "top_k": 0,
        "top_p": 1.0,
        "allowed_token_ids": ids,
        "logprobs": len(ids),
        "return_tokens_as_token_ids": True,
    }
    reply = httpx.post(f"{url}/v1/completions", json=fields, timeout=120)
    assert reply.status_code == 200, reply.text
    entries = reply.json()["choices"][0]["logprobs"]["top_logprobs"][0]
    return np.exp([entries[f"token_id:{number}"] for number in ids])


def test_log_names_kernels(demo, results, figure):
    log = next(path for path in sorted(logs()) if demo.url.rsplit(":", 1)[1] in path.name).read_text("utf-8")
    for name, pattern in LINES.items():
        if found := re.findall(pattern, log):
            figure(f"demo log, {name}", found[0])
    assert re.search(LINES["experts"], log)


LINES = {
    "experts": r"Using .{1,60} MoE (?:LoRA )?backend.{0,120}",
    "attention": r"Using .{1,40}attention backend.{0,60}|Gemma4 model has heterogeneous head dim.{0,160}",
    "weights": r"Model loading took.{0,80}",
    "graphs": r"Graph capturing finished.{0,80}",
}


def logs():
    from decideploy.serve import state_folder

    return (state_folder(None) / "logs").glob("engine-*.log")
