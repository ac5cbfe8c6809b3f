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


def batch() -> tuple[DecideRequest, ...]:
    """Sixteen different questions of different lengths."""
    return tuple(
        DecideRequest(
            kind="noul" if asked == "Is that a problem?" else "score",
            state=f"It is reported that {thing} is {fault}. " * (1 + index % 4),
            question=asked,
        )
        for asked in ("Is that a problem?", "How urgent is this?")
        for index, (thing, fault) in enumerate(_TOPICS)
    )
