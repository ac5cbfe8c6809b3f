"""The prompt template bare-v1: everything that follows BOS, as plain text.

    [kind] choice
    [state] …
    [question] …
    [options]
    A) first option
    B) second option
    [decision]:

``noul`` and ``score`` list their canonical options bare. Nothing follows the last colon.
Source: the model's published read-out.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, Literal, TypeAlias

if TYPE_CHECKING:
    from decideploy.decide.schema import DecideRequest, State

Kind: TypeAlias = Literal["noul", "score", "choice"]

TEMPLATE_VERSION: Final = "bare-v1"
CHOICE_LETTERS: Final = tuple("ABCDEFGHIJKLMNOP")
CANONICAL_OPTIONS: Final[Mapping[str, tuple[str, ...]]] = MappingProxyType(
    {"noul": ("false", "true"), "score": ("0", "1", "2", "3", "4", "5")}
)
SLOT_LABELS: Final = (*CANONICAL_OPTIONS["noul"], *CANONICAL_OPTIONS["score"], *CHOICE_LETTERS)
NUM_SLOTS: Final = len(SLOT_LABELS)
KIND_RANGES: Final[Mapping[str, tuple[int, int]]] = MappingProxyType(
    {"noul": (0, 2), "score": (2, 8), "choice": (8, 24)}
)
KINDS: Final[tuple[Kind, ...]] = ("noul", "score", "choice")


def render(request: DecideRequest) -> str:
    """The text of one decision, without BOS."""
    return "\n".join(
        (
            f"[kind] {request.kind}",
            f"[state] {render_state(request.state)}",
            f"[question] {request.question}",
            "[options]",
            *option_lines(request.kind, request.answer_options),
            "[decision]:",
        )
    )


def render_state(state: State) -> str:
    """A string as it is, an object as JSON on one line, a list as its texts on lines of their own."""
    if isinstance(state, str):
        return state
    if isinstance(state, Mapping):
        # Python's default separators: the form in which objects are most often put into prompts.
        return json.dumps(state, ensure_ascii=False, allow_nan=False)
    return "\n".join(part if isinstance(part, str) else part.text for part in state)


def option_lines(kind: Kind, options: Sequence[str]) -> list[str]:
    """One line an option; choice options carry the letter whose slot answers for them."""
    if kind != "choice":
        return list(options)
    return [
        f"{letter}) {fold_lines(option)}" for letter, option in zip(CHOICE_LETTERS, options, strict=False)
    ]


def fold_lines(text: str) -> str:
    """``text`` on one line: a second line would read as an option without a letter."""
    return " ".join(text.splitlines())
