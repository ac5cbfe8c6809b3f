import time
from typing import Any

import pytest

from decideploy.decide import parse_request, render


def rendered(**fields: Any) -> str:
    return render(parse_request({"state": "The door is open.", "question": "Is it?", **fields}))


def test_noul_lists_false_and_true() -> None:
    assert rendered(kind="noul") == (
        "[kind] noul\n[state] The door is open.\n[question] Is it?\n[options]\nfalse\ntrue\n[decision]:"
    )


def test_score_lists_six_levels() -> None:
    assert rendered(kind="score").endswith("[options]\n0\n1\n2\n3\n4\n5\n[decision]:")


def test_choice_letters_its_options() -> None:
    text = rendered(kind="choice", options=["yes", "no", "maybe"])
    assert text == (
        "[kind] choice\n[state] The door is open.\n[question] Is it?\n"
        "[options]\nA) yes\nB) no\nC) maybe\n[decision]:"
    )


def test_sixteen_options_end_at_p() -> None:
    text = rendered(kind="choice", options=[f"option {n}" for n in range(16)])
    assert text.endswith("\nO) option 14\nP) option 15\n[decision]:")


def test_canonical_options_may_be_given() -> None:
    assert rendered(kind="noul", options=["false", "true"]) == rendered(kind="noul")


@pytest.mark.parametrize("newline", ["\n", "\r\n", "\r", "\u2028", "\x0b"])
def test_option_newlines_become_spaces(newline: str) -> None:
    text = rendered(kind="choice", options=[f"one{newline}two", "three"])
    assert "\nA) one two\nB) three\n" in text


def test_question_and_state_newlines_stay() -> None:
    text = rendered(kind="noul", state="a\n\nb", question="c\nd")
    assert text.startswith("[kind] noul\n[state] a\n\nb\n[question] c\nd\n[options]\n")


@pytest.mark.parametrize(
    ("state", "line"),
    [
        ("", "[state] "),
        ({"name": "Zoë", "tags": [1, None, True]}, '[state] {"name": "Zoë", "tags": [1, null, true]}'),
        ({}, "[state] {}"),
        (["first", {"text": "second"}], "[state] first\nsecond"),
    ],
)
def test_state_forms(state: Any, line: str) -> None:
    assert f"\n{line}\n[question]" in rendered(kind="noul", state=state)


def test_a_state_of_many_parts_is_written_in_one_pass() -> None:
    parts = ["a long part of a state " * 20] * 50_000
    started = time.process_time()
    assert "\n".join(parts) in rendered(kind="noul", state=parts)
    assert time.process_time() - started < 10
