import pytest

from decideploy.api.asking import Asked
from decideploy.api.wording import level_lines, option_lines, score_question


@pytest.mark.parametrize(
    ("values", "descriptions", "lines"),
    [
        (["a", "b"], [None, "second"], ("a", "b: second")),
        (["a", "b"], ["one\nline", "\n"], ("a: one line", "b")),
        ([True, False, "maybe"], [None, "no", None], ("true", "false: no", "maybe")),
        # Two values that would read alike.
        ([True, "true"], [None, None], ("true", '"true"')),
        (["a\nb", "a b"], [None, None], ('"a\\nb"', '"a b"')),
        (["", "b"], [None, None], ('""', '"b"')),
        (["a", " a"], ["x", "x"], ('"a": x', '" a": x')),
        (["a: b", "a"], [None, "b"], ('"a: b"', '"a": b')),
    ],
)
def test_options_are_distinct_lines(
    values: list[str | bool], descriptions: list[str | None], lines: tuple[str, ...]
) -> None:
    assert option_lines(values, descriptions) == lines


def test_levels_that_read_alike_are_numbered() -> None:
    assert level_lines(["low", "high"]) == ("low", "high")
    assert level_lines(["same", "same", ""]) == ("0: same", "1: same", "2")


def test_six_levels_are_the_model_s_own_scores() -> None:
    asked = score_question("How?", ["none", "a\nlittle", "some", "much", "more", "all"], {})
    question = "How?\n0: none\n1: a little\n2: some\n3: much\n4: more\n5: all"
    assert asked == Asked(kind="score", question=question)


@pytest.mark.parametrize("count", [1, 2, 5, 7, 9, 10])
def test_any_other_number_of_levels_is_a_choice(count: int) -> None:
    levels = tuple(f"level {index}" for index in range(count))
    assert score_question("How?", levels, {}) == Asked(kind="choice", question="How?", options=levels)
