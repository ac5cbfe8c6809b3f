"""The decision head: 24 slots of the vocabulary, their biases, and which kind owns which slots."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal, Self, TypeAlias

from pydantic import BaseModel, ConfigDict, Field, FiniteFloat, ValidationInfo, field_validator

from decideploy.decide.documents import read_document
from decideploy.decide.slots import KIND_RANGES, NUM_SLOTS, Kind

FILE_NAME = "decision_head.json"

SlotRange: TypeAlias = tuple[int, int]
TokenId: TypeAlias = Annotated[int, Field(ge=0)]


class SlotRanges(BaseModel):
    """Half-open slot ranges ``[first, end)`` of the three kinds."""

    model_config = ConfigDict(extra="ignore", frozen=True, strict=True)

    noul: SlotRange
    score: SlotRange
    choice: SlotRange

    @field_validator("noul", "score", "choice")
    @classmethod
    def _published(cls, value: SlotRange, info: ValidationInfo) -> SlotRange:
        expected = KIND_RANGES[info.field_name or ""]
        if value != expected:
            raise ValueError(f"slots {list(value)} are not the published {list(expected)}")
        return value


class Slots(BaseModel):
    """Layout of the head's output."""

    model_config = ConfigDict(extra="ignore", frozen=True, strict=True)

    num_slots: int
    template_version: Literal["bare-v1"]
    ranges: SlotRanges

    @field_validator("num_slots")
    @classmethod
    def _published(cls, value: int) -> int:
        if value != NUM_SLOTS:
            raise ValueError(f"{value} slots; the read-out is defined for {NUM_SLOTS}")
        return value


class DecisionHead(BaseModel):
    """``adapter_vllm/decision_head.json``: per slot one bias (nats, float) and one verbalizer token id.

    Source: the model's published files. Errors: VerificationError with every fault as ``file: key``.
    """

    model_config = ConfigDict(extra="ignore", frozen=True, strict=True)

    bias: tuple[FiniteFloat, ...]
    verbalizer_ids: tuple[TokenId, ...]
    slots: Slots

    @field_validator("bias", "verbalizer_ids")
    @classmethod
    def _one_a_slot(cls, value: tuple[float, ...]) -> tuple[float, ...]:
        if len(value) != NUM_SLOTS:
            raise ValueError(f"{len(value)} entries for {NUM_SLOTS} slots")
        return value

    @field_validator("verbalizer_ids")
    @classmethod
    def _distinct(cls, value: tuple[int, ...]) -> tuple[int, ...]:
        # Two slots on one token would silently share one probability.
        repeated = sorted({token_id for token_id in value if value.count(token_id) > 1})
        if repeated:
            raise ValueError(f"token ids {repeated} stand for more than one slot")
        return value

    @classmethod
    def read(cls, path: Path) -> Self:
        """The head in the file ``path``."""
        return read_document(path, cls)

    def slot_range(self, kind: Kind, n_options: int) -> range:
        """The active slots of ``kind`` with ``n_options`` options, in option order."""
        first, _ = KIND_RANGES[kind]
        return range(first, first + n_options)
