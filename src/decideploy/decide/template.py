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

from decideploy.decide.schema import DecideRequest, State
from decideploy.decide.slots import CHOICE_LETTERS, Kind, fold_lines


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
