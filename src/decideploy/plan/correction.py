"""What earlier starts measured, as terms of the next plan."""

from __future__ import annotations

from dataclasses import dataclass

from decideploy.plan.memory import WEIGHTS, MemoryTerm

_WEIGHTS_TERM = "weights: as measured here"
_OTHER_TERM = "context and step: as measured here"


@dataclass(frozen=True, kw_only=True, slots=True)
class Correction:
    """Measured minus predicted bytes of one start, and the settings for which that holds.

    ``weights_bytes`` holds for the card, the model, the expert kernel and images; ``other_bytes``, which is
    everything but weights and KV, for the sizes of a step too. None where the engine did not log it.
    """

    device: str
    model: str
    moe_backend: str | None
    images: bool
    max_num_seqs: int
    max_num_batched_tokens: int
    weights_bytes: int | None = None
    other_bytes: int | None = None

    def same_weights(self, other: Correction) -> bool:
        """Whether both load the same weights the same way on the same card."""
        return self._loading == other._loading

    def same_step(self, other: Correction) -> bool:
        """Whether their steps are of one size too."""
        return self.same_weights(other) and self._step == other._step

    @property
    def _loading(self) -> tuple[str, str, str | None, bool]:
        return self.device, self.model, self.moe_backend, self.images

    @property
    def _step(self) -> tuple[int, int]:
        return self.max_num_seqs, self.max_num_batched_tokens


def correction_terms(
    terms: tuple[MemoryTerm, ...], corrections: tuple[Correction, ...], setting: Correction
) -> tuple[MemoryTerm, ...]:
    """``terms`` and, where starts like ``setting`` were measured, the largest that they differed by.

    Terms never fall below what was measured, nor, in sum, below nothing.
    """
    weights = [
        c.weights_bytes for c in corrections if c.weights_bytes is not None and c.same_weights(setting)
    ]
    others = [c.other_bytes for c in corrections if c.other_bytes is not None and c.same_step(setting)]
    predicted = sum(term.size_bytes for term in terms if term.name.startswith(WEIGHTS))
    rest = sum(term.size_bytes for term in terms) - predicted
    return (
        *terms,
        *_term(_WEIGHTS_TERM, weights, -predicted),
        *_term(_OTHER_TERM, others, -rest),
    )


def is_correction(term: MemoryTerm) -> bool:
    """Whether ``term`` came of a correction."""
    return term.name in (_WEIGHTS_TERM, _OTHER_TERM)


def _term(name: str, measured: list[int], least: int) -> tuple[MemoryTerm, ...]:
    if not measured:
        return ()
    formula = f"observed less predicted, the largest of {len(measured)} start(s)"
    return (MemoryTerm(name=name, size_bytes=max([*measured, least]), formula=formula),)
