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

from decideploy.decide.schema import DecideRequest, ImagePart, State, TextPart
from decideploy.decide.slots import CHOICE_LETTERS, Kind, fold_lines


def render(request: DecideRequest) -> str:
    """The text of one decision about texts, without BOS; ValueError when the state holds images."""
    (text,) = render_segments(request)
    return text


def render_segments(request: DecideRequest) -> tuple[str, ...]:
    """The text of one decision, without BOS; one image of the state stands between any two segments."""
    segments = list(state_segments(request.state))
    segments[0] = f"[kind] {request.kind}\n[state] {segments[0]}"
    segments[-1] += "\n".join(
        (
            "",
            f"[question] {request.question}",
            "[options]",
            *option_lines(request.kind, request.answer_options),
            "[decision]:",
        )
    )
    return tuple(segments)


def state_segments(state: State) -> tuple[str, ...]:
    """A string as it is, an object as JSON on one line, a list's parts on lines of their own.

    The texts before, between and after the images, always one more than there are images.
    """
    if isinstance(state, str):
        return (state,)
    if isinstance(state, Mapping):
        # Python's default separators: the form in which objects are most often put into prompts.
        return (json.dumps(state, ensure_ascii=False, allow_nan=False),)
    # Joined once: a text that grows with each of many parts would be copied as often.
    segments: list[list[str]] = [[]]
    for index, part in enumerate(state):
        segments[-1].append("\n" if index else "")
        if isinstance(part, ImagePart):
            segments.append([])
        else:
            segments[-1].append(part.text if isinstance(part, TextPart) else part)
    return tuple("".join(texts) for texts in segments)


def option_lines(kind: Kind, options: Sequence[str]) -> list[str]:
    """One line an option; choice options carry the letter whose slot answers for them."""
    if kind != "choice":
        return list(options)
    return [
        f"{letter}) {fold_lines(option)}" for letter, option in zip(CHOICE_LETTERS, options, strict=False)
    ]
