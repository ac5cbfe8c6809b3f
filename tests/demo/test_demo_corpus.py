from __future__ import annotations

import re
from collections import Counter
from itertools import islice, product
from pathlib import Path
from types import ModuleType

import pytest

from decideploy.calibrate import read_dataset
from decideploy.demo.corpus import (
    QUESTIONS,
    Decision,
    Part,
    dates,
    decisions,
    exercises,
    numbers,
    reviews,
    shapes,
    tickets,
    words,
)
from decideploy.demo.corpus.__main__ import main as print_corpus
from decideploy.demo.corpus.drawing import part_of

TOPICS = (tickets, reviews, numbers, dates, shapes)
WORDS = (words.ITEMS, words.NAMES, words.COLOURS, words.SHAPES, words.ASPECTS, words.THINGS)
COUNT = 60 * len(QUESTIONS)


def drawn(*, seed: int = 1, phrases: Part = Part.TRAIN, fillers: Part = Part.TRAIN) -> list[Decision]:
    return list(islice(decisions(seed, phrases=phrases, words=fillers), COUNT))


def templates(topic: ModuleType) -> list[tuple[str, ...]]:
    tables = (value for value in vars(topic).values() if isinstance(value, tuple))
    return [table for table in tables if all(isinstance(line, str) and line[-1:] in ".?" for line in table)]


def spelt(decision: Decision) -> str:
    return "\n".join((decision.state, decision.question, *decision.options, decision.evidence))


def test_a_seed_gives_the_same_decisions_and_another_seed_others() -> None:
    assert drawn() == drawn()
    assert drawn() != drawn(seed=2)
    assert list(islice(exercises(1), 9)) == list(islice(exercises(1), 9))


@pytest.mark.parametrize("table", [*WORDS, *(table for topic in TOPICS for table in templates(topic))])
def test_parts_of_a_table_share_no_line(table: tuple[str, ...]) -> None:
    lines = [line for part in Part for line in part_of(table, part)]
    assert sorted(lines) == sorted(table)
    assert len(set(lines)) == len(lines)
    assert all(part_of(table, part) for part in Part)


def test_held_out_words_stand_in_nothing_that_is_trained_with_an_answer() -> None:
    texts = [*map(spelt, drawn()), *map("".join, islice(exercises(1), 500))]
    seen = set(re.findall("[A-Za-z]+", " ".join(texts)))
    for part, table in product((Part.CALIBRATION, Part.HELD_OUT), WORDS):
        assert not seen & set(part_of(table, part))


def test_held_out_templates_ask_in_other_words() -> None:
    trained = {(decision.state, decision.question) for decision in drawn()}
    held_out = {(decision.state, decision.question) for decision in drawn(phrases=Part.HELD_OUT)}
    assert not trained & held_out


@pytest.mark.parametrize("part", Part)
def test_decisions_are_what_the_server_takes(part: Part) -> None:
    found = drawn(phrases=part, fillers=part)
    for decision in found:
        assert decision.request.answer_options == decision.options
        assert not set("{}") & set(spelt(decision))
    widths = {len(decision.options) for decision in found if decision.kind == "choice"}
    assert {2, 12} <= widths <= set(range(2, 17))


def test_no_answer_is_the_usual_one() -> None:
    labels = {kind: Counter(d.label for d in drawn() if d.kind == kind) for kind in ("noul", "score")}
    assert 0.4 < labels["noul"][1] / labels["noul"].total() < 0.6
    assert all(labels["score"][level] > labels["score"].total() / 12 for level in range(6))


def test_decisions_are_written_as_calibrate_reads_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert print_corpus(["--phrases", "held-out", "--words", "calibration", "--count", "60"]) == 0
    written = tmp_path / "data.jsonl"
    written.write_text(capsys.readouterr().out, "utf-8")
    found = read_dataset(written).examples
    drawn_again = islice(decisions(1, phrases=Part.HELD_OUT, words=Part.CALIBRATION), 60)
    assert [(e.request, e.label) for e in found] == [(d.request, d.label) for d in drawn_again]
