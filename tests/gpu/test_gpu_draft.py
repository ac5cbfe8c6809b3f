"""A draft for System 2 beside System 1: readings stay what they are while tokens are proposed and refused."""

import re
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest
from agreement import ask_all, check_agreement
from decisions import random_decisions
from draft_model import write_draft
from servers import serving

pytestmark = pytest.mark.gpu

COUNT, WRITERS, TOKENS = 60, 8, 256


@pytest.fixture(scope="module")
def drafting(demo_model_nvfp4, results, tmp_path_factory):
    """The demo model with a draft of random weights; text only, its kernel tested elsewhere."""
    draft = write_draft(tmp_path_factory.mktemp("draft") / "draft")
    size = (draft / "model.safetensors").stat().st_size
    wishes = {"draft_model": str(draft), "draft_bytes": size, "images": False}
    with serving(demo_model_nvfp4, results, no_smoke_test=True, **wishes) as server:
        yield server


def proposed(url: str) -> dict[str, float]:
    """Tokens that the draft proposed and that the model took, so far."""
    lines = httpx.get(f"{url}/metrics", timeout=60).text
    found = re.findall(r"^vllm:spec_decode_num_(draft|accepted)_tokens_total\S* (\S+)$", lines, re.MULTILINE)
    return {name: float(value) for name, value in found}


def test_selftest_reads_the_same_with_the_draft(drafting, figure):
    checks = {check["name"]: check for check in drafting.started["selftest"]["checks"]}
    assert drafting.started["selftest"]["passed"]
    assert checks["draft-agrees"]["configured"], checks["draft-agrees"]
    figure("draft: start s", round(drafting.started["ready_s"], 1))
    figure("draft: self-test", checks["draft-agrees"]["detail"])


def test_decisions_agree_while_the_draft_runs(drafting, figure):
    decisions = random_decisions(COUNT, seed=20261201)
    alone = ask_all(drafting.url, decisions, 1)
    before = proposed(drafting.url)
    with ThreadPoolExecutor(WRITERS) as pool:
        writing = [pool.submit(write, drafting) for _ in range(WRITERS)]
        beside = ask_all(drafting.url, decisions, 16)
        for written in writing:
            assert written.result() == TOKENS
    after = proposed(drafting.url)
    figure("draft: tokens proposed and taken meanwhile", {name: after[name] - before[name] for name in after})
    assert after["draft"] > before["draft"]
    check_agreement(
        beside, alone, lambda told: figure("draft: decisions beside drafted text vs without", told)
    )


def write(server) -> int:
    """Have System 2 write; the number of tokens that came."""
    chat = {
        "model": server.started["plan"]["served_model_name"],
        "messages": [{"role": "user", "content": "Tell a long story."}],
        "max_tokens": TOKENS,
        "ignore_eos": True,
    }
    reply = httpx.post(f"{server.url}/v1/chat/completions", json=chat, timeout=300)
    assert reply.status_code == 200, reply.text
    return reply.json()["usage"]["completion_tokens"]
