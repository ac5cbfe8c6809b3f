"""The verbs that ask a server many questions, against the real one."""

import json
import random

import pytest

from decideploy.cli import main
from decideploy.decide import Calibration

pytestmark = pytest.mark.integration

WORDS = [
    "parcel",
    "box",
    "lamp",
    "order",
    "week",
    "letter",
    "price",
    "road",
    "door",
    "house",
    "table",
    "paper",
    "late",
    "whole",
    "torn",
    "paid",
    "lost",
]
RIGHT = 1.7


@pytest.fixture(scope="module")
def questions():
    generator = random.Random(3)
    return [
        {
            "kind": "choice",
            "state": " ".join(generator.choices(WORDS, k=20)),
            "question": f"What fits best, {number}?",
            "options": generator.sample(WORDS, 4),
        }
        for number in range(160)
    ]


@pytest.fixture(scope="module")
def answers(server, questions, tmp_path_factory):
    """The answers of a batch, whose input is ``questions``."""
    folder = tmp_path_factory.mktemp("batch")
    lines = "".join(json.dumps(question) + "\n" for question in questions)
    (folder / "in.jsonl").write_text(lines)
    arguments = ["--batch", str(folder / "in.jsonl"), "--out", str(folder / "out.jsonl")]
    assert main(["decide", "--url", server.url, *arguments]) == 0
    return [json.loads(line) for line in (folder / "out.jsonl").read_text().splitlines()]


def test_a_batch_answers_every_line_in_order(questions, answers):
    assert [answer["line"] for answer in answers] == list(range(1, len(questions) + 1))
    assert [answer["options"] for answer in answers] == [question["options"] for question in questions]


@pytest.fixture
def labelled(questions, answers, tmp_path):
    """The questions with labels drawn at ``RIGHT`` times the served temperature."""
    generator = random.Random(5)
    path = tmp_path / "labelled.jsonl"
    with path.open("w") as file:
        for question, answer in zip(questions, answers, strict=True):
            weights = [probability ** (1 / RIGHT) for probability in answer["probabilities"]]
            label = generator.choices(answer["options"], weights)[0]
            print(json.dumps({**question, "label": label}), file=file)
    return path


def test_a_temperature_is_found_through_the_real_server(server, labelled, tmp_path, capsys, figure):
    out = tmp_path / "calibration.json"
    arguments = ["--url", server.url, "--data", str(labelled), "--out", str(out), "--json"]
    assert main(["calibrate", *arguments]) == 0
    choice = json.loads(capsys.readouterr().out)["kinds"][2]
    # A 95 % interval misses one draw of labels in twenty; a fit of something else is further off.
    assert choice["interval"]["low"] / 1.2 < RIGHT * choice["served"] < choice["interval"]["high"] * 1.2
    assert Calibration.read(out).temperature("choice") == choice["temperature"]
    figure(f"temperature fitted: {choice['temperature']:.3f}, drawn with {RIGHT * choice['served']:.3f}")


def test_the_load_generator_measures_the_real_server(server, capsys, figure):
    pace = ["--duration", "3", "--warmup", "0.5", "--rounds", "3", "--json"]
    arguments = ["--url", server.url, "--against", "completions", "--clients", "4", *pace]
    assert main(["bench", *arguments]) == 0
    report = json.loads(capsys.readouterr().out)
    decide, completions = report["rows"]
    assert decide["errors"] == completions["errors"] == {}
    assert decide["prompt_tokens"] == completions["prompt_tokens"]
    (ratio,) = report["ratios"]
    # A wide bound: three short rounds only show that both arms do the same work.
    assert 0.3 < ratio["ratio"]["value"] < 3
    figure(f"decide over completions, 4 clients: {ratio['ratio']['value']:.2f}")
