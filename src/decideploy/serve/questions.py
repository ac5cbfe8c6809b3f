"""The fixed questions that the self-test and ``serve --check`` ask."""

from __future__ import annotations

from decideploy.decide import DecideRequest

_STATE = "The order was delivered on Monday. The customer writes on Friday that the lamp does not switch on."
_OPTIONS = ("send a replacement", "refund the price", "ask for a photo", "close the case")
_TOPICS = (
    ("a parcel", "late"),
    ("an invoice", "paid twice"),
    ("a password", "expired"),
    ("a printer", "out of paper"),
    ("a meeting", "moved to Tuesday"),
    ("a contract", "not signed"),
    ("a server", "overheated"),
    ("a ticket", "answered"),
)
_ASKED = ("Is that a problem?", "How urgent is this?")
_ACTIONS = (
    "do nothing",
    "write to the customer",
    "call the office",
    "order a new one",
    "repair it today",
    "ask the manager",
    "close the case",
)


def one_of_each_kind() -> tuple[DecideRequest, ...]:
    """One noul, one score and one choice question."""
    return (
        DecideRequest(kind="noul", state=_STATE, question="Does the customer report a defect?"),
        DecideRequest(kind="score", state=_STATE, question="How urgent is this?"),
        DecideRequest(kind="choice", state=_STATE, question="What should be done?", options=_OPTIONS),
    )


def widest_choice() -> DecideRequest:
    """A choice over all 16 slots."""
    options = tuple(f"{thing} is {fault}" for thing, fault in _TOPICS) + tuple(
        f"{thing} is not {fault}" for thing, fault in _TOPICS
    )
    return DecideRequest(kind="choice", state=_STATE, question="Which sentence fits best?", options=options)


def batch(width: int = 16, *, case: int = 0) -> tuple[DecideRequest, ...]:
    """``width`` different questions of different lengths; another ``case`` shares no prefix with this one.

    A prefix that the engine remembers would be read from its cache, and what is to be looked at is reading.
    """
    return tuple(_reported(number, f"Case {case}, part {number}. ") for number in range(width))


def _reported(number: int, opening: str) -> DecideRequest:
    thing, fault = _TOPICS[number % len(_TOPICS)]
    asked = _ASKED[number // len(_TOPICS) % len(_ASKED)]
    return DecideRequest(
        kind="noul" if asked == _ASKED[0] else "score",
        state=opening + f"It is reported that {thing} is {fault}. " * (1 + number % 4),
        question=asked,
    )


def golden_questions() -> tuple[DecideRequest, ...]:
    """Eight questions of each kind, the kinds in turn; choices have 2 to 16 options."""
    return tuple(
        request
        for place, (thing, fault) in enumerate(_TOPICS)
        for request in (
            DecideRequest(
                kind="noul",
                state=f"The customer says that {thing} is {fault}. " * (1 + place % 3),
                question=f"Is {thing} {fault}?",
            ),
            DecideRequest(
                kind="score",
                state=f"On Friday the office reported {thing} that is {fault}.",
                question=f"How urgent is {thing} that is {fault}?",
            ),
            DecideRequest(
                kind="choice",
                state=f"It is known that {thing} is {fault}. {_STATE}",
                question="What should happen next?",
                options=_actions(2 + 2 * place, thing),
            ),
        )
    )


def _actions(count: int, thing: str) -> tuple[str, ...]:
    named = tuple(f"{action} about {thing}" for action in _ACTIONS)
    other = tuple(f"{action} on {day}" for day in ("Monday", "Tuesday") for action in _ACTIONS)
    return (*named, *other)[:count]
