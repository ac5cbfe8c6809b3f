"""How questions of other APIs read in the core's prompt: options, criteria and levels as lines of text."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Final

from decideploy.api.asking import Asked
from decideploy.api.content import Location
from decideploy.decide.slots import CANONICAL_OPTIONS, fold_lines

NATIVE_LEVELS: Final = len(CANONICAL_OPTIONS["score"])
# Asked where a client names the options or levels only.
WHICH_OPTION: Final = "Which option applies?"
WHICH_LEVEL: Final = "Which level applies?"


def described(name: str, description: str | None) -> str:
    """``name`` or ``name: description``, on one line."""
    folded = fold_lines(description or "").strip()
    return f"{fold_lines(name)}: {folded}" if folded else fold_lines(name)


def option_lines(values: Sequence[str | bool], descriptions: Sequence[str | None]) -> tuple[str, ...]:
    """A line for each option, no two alike: where two would be, or one would be empty, texts stand as JSON.

    So the text ``true`` differs from the truth value, and a line break from a space.
    """
    plain = tuple(
        described(_value_text(value), text) for value, text in zip(values, descriptions, strict=True)
    )
    if are_distinct(plain):
        return plain
    return tuple(described(json.dumps(value), text) for value, text in zip(values, descriptions, strict=True))


def level_lines(levels: Sequence[str]) -> tuple[str, ...]:
    """A line for each of the ordered ``levels``, numbered from 0 where two would be alike or one empty."""
    plain = tuple(fold_lines(level) for level in levels)
    return plain if are_distinct(plain) else numbered(plain)


def numbered(lines: Sequence[str]) -> tuple[str, ...]:
    """``0: first``, ``1: second``, …"""
    return tuple(described(str(index), line) for index, line in enumerate(lines))


def are_distinct(lines: Sequence[str]) -> bool:
    """Whether the core would take ``lines`` as options: none is blank, no two are the same."""
    stripped = [line.strip() for line in lines]
    return all(stripped) and len(set(stripped)) == len(stripped)


def score_question(question: str, levels: Sequence[str], places: Mapping[str, Location]) -> Asked:
    """Six levels: the model's own scores, named in the question; any other number: a choice over them."""
    if len(levels) == NATIVE_LEVELS:
        named = numbered([fold_lines(level) for level in levels])
        return Asked(kind="score", question="\n".join((question, *named)), places=places)
    return Asked(kind="choice", question=question, options=level_lines(levels), places=places)


def _value_text(value: str | bool) -> str:
    return value if isinstance(value, str) else json.dumps(value)
