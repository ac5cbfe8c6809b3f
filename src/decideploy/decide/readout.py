"""From the engine's log-probabilities of the slots to probabilities of the options."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from decideploy.decide.head import DecisionHead
from decideploy.decide.slots import SLOT_LABELS, Kind
from decideploy.errors import EngineError

# vLLM puts this number where it has no log-probability.
PLACEHOLDER_LOGPROB: Final = -9999.0


def allowed_token_ids(head: DecisionHead, kind: Kind, n_options: int) -> tuple[int, ...]:
    """Verbalizer ids of the active slots, in option order."""
    return tuple(head.verbalizer_ids[slot] for slot in head.slot_range(kind, n_options))


def read_out(
    logprobs: Mapping[int, float], kind: Kind, n_options: int, head: DecisionHead, temperature: float
) -> tuple[float, ...]:
    """Probabilities of the options, float64, summing to 1.

    ``logprobs`` maps token id to log-probability (nats) over the active slots; a constant added to
    all of them changes nothing. Score of a slot: (log-probability + bias) / temperature; then softmax.
    Raises EngineError(502) when a slot is missing, is not a finite number or is the placeholder, or when
    the result is not finite.
    """
    slots = head.slot_range(kind, n_options)
    check_slots(logprobs, slots, head)
    scores = [(logprobs[head.verbalizer_ids[slot]] + head.bias[slot]) / temperature for slot in slots]
    probabilities = softmax(scores)
    if not all(map(math.isfinite, (*scores, *probabilities))):
        raise EngineError(
            f"the read-out is not finite: the slots' scores are {', '.join(map(str, scores))}",
            status=502,
            where=f"kind {kind}, temperature {temperature:g}",
            next_step="compare calibration.json and decision_head.json with the model's pinned revision",
        )
    return probabilities


def letter_ids(head: DecisionHead, n_options: int) -> tuple[int, ...]:
    """Token ids of the first ``n_options`` answer letters."""
    return allowed_token_ids(head, "choice", n_options)


def letter_distribution(
    logprobs: Mapping[int, float], n_options: int, head: DecisionHead
) -> tuple[float, ...]:
    """The base model's probabilities of the answer letters: neither bias nor temperature is meant for it.

    Raises EngineError(502) as :func:`read_out`.
    """
    slots = head.slot_range("choice", n_options)
    check_slots(logprobs, slots, head)
    return softmax([logprobs[head.verbalizer_ids[slot]] for slot in slots])


def slot_faults(logprobs: Mapping[int, float], labelled: Iterable[tuple[str, int]]) -> list[str]:
    """What is wrong with the log-probabilities of token ids, each told by its label."""
    faults = []
    for label, token_id in labelled:
        value = logprobs.get(token_id)
        if value is None:
            faults.append(f"{label} is missing")
        elif not math.isfinite(value) or value <= PLACEHOLDER_LOGPROB:
            faults.append(f"{label} is {value}")
    return faults


def check_slots(logprobs: Mapping[int, float], slots: Sequence[int], head: DecisionHead) -> None:
    """Raise EngineError(502) naming every slot for which the engine gave no number."""
    faults = slot_faults(logprobs, [(SLOT_LABELS[slot], head.verbalizer_ids[slot]) for slot in slots])
    if faults:
        raise EngineError(
            f"the engine's log-probabilities are unusable: {', '.join(faults)}",
            status=502,
            where=f"{len(faults)} of {len(slots)} slots",
            next_step="run `decideploy selftest` against this server; its checks name the likely cause",
        )


def softmax(scores: Sequence[float]) -> tuple[float, ...]:
    """exp(score) normalised; finite for any finite scores."""
    largest = max(scores)
    weights = [math.exp(score - largest) for score in scores]
    total = math.fsum(weights)
    return tuple(weight / total for weight in weights)
