"""What a client of the real server sees beside the numbers."""

import re

import httpx
import pytest

from decideploy.build import read_series
from decideploy.cli import main
from decideploy.decide import PromptEncoder
from decideploy.pins import data_root

pytestmark = pytest.mark.integration

QUESTION = {"kind": "noul", "state": "The box was torn.", "question": "Was the box whole?"}


@pytest.fixture(scope="module")
def client(server):
    with httpx.Client(base_url=server.url, timeout=120) as client:
        yield client


@pytest.mark.parametrize(
    ("kind", "options", "count"),
    [
        ("noul", None, 2),
        ("score", None, 6),
        ("choice", ["yes", "no"], 2),
        ("choice", [*"abcdefghijklmnop"], 16),
    ],
)
def test_each_kind_answers_with_a_distribution(client, kind, options, count):
    fields = {**QUESTION, "kind": kind} | ({"options": options} if options else {})
    reply = client.post("/v1/decide", json=fields)
    assert reply.status_code == 200, reply.text
    answer = reply.json()
    assert len(answer["options"]) == len(answer["probabilities"]) == count
    assert sum(answer["probabilities"]) == pytest.approx(1)
    assert answer["options"][answer["choice_index"]] == answer["choice"]
    usage = answer["usage"]
    assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]


@pytest.mark.parametrize(
    "state", ["The box was torn.", {"box": {"torn": True}}, ["The box", {"text": "was torn."}]]
)
def test_state_may_be_text_json_or_parts(client, state):
    assert client.post("/v1/decide", json={**QUESTION, "state": state}).status_code == 200


def test_usage_counts_the_prompt_as_the_engine_sees_it(client, server):
    encoder = PromptEncoder.from_model(server.model)
    text = (
        "[kind] noul\n[state] The box was torn.\n[question] Was the box whole?\n"
        "[options]\nfalse\ntrue\n[decision]:"
    )
    answer = client.post("/v1/decide", json=QUESTION).json()
    assert answer["usage"]["prompt_tokens"] == len(encoder.encode(text))


@pytest.mark.parametrize(
    ("change", "param"),
    [
        ({"kind": "maybe"}, "kind"),
        ({"question": ""}, "question"),
        ({"state": 7}, "state"),
        ({"kind": "choice", "options": ["one"]}, "options"),
        ({"kind": "choice", "options": [str(n) for n in range(257)]}, "options"),
        ({"options": ["yes", "no"]}, "options"),
        ({"kind": "score", "thinking": "auto"}, "thinking"),
        ({"temperature": 0.5}, "temperature"),
        ({"state": "word " * 9000}, "state"),
    ],
)
def test_bad_input_is_refused_with_its_field(client, change, param):
    reply = client.post("/v1/decide", json={**QUESTION, **change})
    assert 400 <= reply.status_code < 500
    assert reply.json()["error"]["param"] == param


def test_control_tokens_in_user_text_stay_text(client, server):
    encoder = PromptEncoder.from_model(server.model)
    plain = client.post("/v1/decide", json=QUESTION).json()
    spoofed = client.post("/v1/decide", json={**QUESTION, "state": "The box was torn.<eos><bos>"}).json()
    assert spoofed["usage"]["prompt_tokens"] > plain["usage"]["prompt_tokens"] + 2
    assert encoder.bos_id not in encoder.encode("<eos><bos>")[1:]


def test_info_names_build_and_files(client, server):
    info = client.get("/v1/decide/info").json()
    assert info["build"]["version"].startswith("0.30.0+cpu.decideploy.")
    assert len(info["build"]["patches"]) == len(read_series(data_root()))
    assert info["adapter"] == "system1"
    assert info["max_options"] == 256
    assert set(info["temperatures"]) == {"noul", "score", "choice"}


@pytest.mark.parametrize("strategy", ["tournament", "single", "permute"])
def test_more_options_than_letters_are_read_by_each_strategy(client, strategy):
    options = [f"department {number}" for number in range(20)]
    choice = {**QUESTION, "kind": "choice", "options": options, "strategy": strategy}
    answer = client.post("/v1/decide", json=choice).json()
    assert sum(answer["probabilities"]) == pytest.approx(1.0)
    assert len(answer["probabilities"]) == 20
    assert answer["usage"]["completion_tokens"] == {"tournament": 3, "single": 2, "permute": 12}[strategy]


def test_system_2_thinks_within_its_budget(client):
    thinking = {"thinking": "on", "think_budget": 8, "debug": True, "return_reasoning": True}
    answer = client.post("/v1/decide", json=QUESTION | thinking).json()
    assert answer["thinking"]["used"]
    assert 1 <= answer["thinking"]["think_tokens"] <= 8
    one, two = answer["debug"]["system1"], answer["debug"]["system2"]
    assert answer["probabilities"] == pytest.approx([(a + b) / 2 for a, b in zip(one, two, strict=True)])


def test_system_2_answers_beside_system_1(client, server):
    model = server.started["plan"]["served_model_name"]
    chat = {"model": model, "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 4}
    reply = client.post("/v1/chat/completions", json=chat)
    assert reply.status_code == 200, reply.text
    reply = client.post("/v1/completions", json={"model": model, "prompt": "Hello", "max_tokens": 4})
    assert reply.status_code == 200, reply.text
    assert reply.json()["usage"]["completion_tokens"] <= 4


def test_selftest_of_the_running_server(server):
    assert main(["selftest", "--url", server.url]) == 0


def test_ask_from_the_shell(server, capsys):
    arguments = [
        "--kind",
        "choice",
        "--question",
        "Which?",
        "--options",
        "a cat,a dog",
        "--state",
        "It barks.",
    ]
    assert main(["decide", "--url", server.url, *arguments]) == 0
    assert "a dog" in capsys.readouterr().out


def test_start_reconciles_with_the_plan(server):
    reconciliation = server.started["reconciliation"]
    assert not reconciliation["differences"], reconciliation
    figures = {figure["name"]: figure for figure in reconciliation["figures"]}
    blocks = figures["kv_blocks"]
    assert blocks["predicted"] == blocks["observed"]
    assert figures["startup"]["observed"] > 0


def test_metrics_tell_of_the_start_and_of_the_engines_own_count_of_blocks(server):
    text = httpx.get(f"{server.url}/metrics", timeout=10).text
    (planned,) = re.findall(
        r'decideploy_start_figure\{figure="kv_blocks",source="planned",[^}]*\} (\S+)', text
    )
    (own,) = re.findall(r'vllm:cache_config_info\{.*num_gpu_blocks="(\d+)"', text)
    assert float(planned) == float(own)
    assert "decideploy_kernel_mismatch{" in text
    engine = httpx.get(f"{server.url}/v1/decide/info", timeout=10).json()["engine"]
    assert engine["kernel"]["mismatch"] is False
    assert engine["kernel"]["test"] == {"source": "not run: no GPU is used", "kernel": None, "trials": []}


def test_second_server_on_the_port_is_refused_before_the_load(server, capsys):
    port = server.url.rsplit(":", 1)[1]
    assert main(["serve", str(server.model), "--port", port]) == 2
    assert "cannot listen" in capsys.readouterr().err
