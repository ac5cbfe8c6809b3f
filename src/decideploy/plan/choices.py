"""What a platform chooses, and what both tell alike: the sum, the length, and notes on the workload."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from decideploy.hardware import HardwareReport, KernelPath
from decideploy.plan import memory as mem
from decideploy.plan.context_length import describe, length_notes
from decideploy.plan.correction import Correction
from decideploy.plan.kv_cache import KvShape
from decideploy.plan.memory import MemoryPlan, MemoryTerm
from decideploy.plan.workload import Workload

if TYPE_CHECKING:
    from decideploy.artifacts import ModelFacts


@dataclass(frozen=True, kw_only=True, slots=True)
class Choices:
    """What differs between the platforms, settled before argv is assembled."""

    device: str
    flags: tuple[str, ...]
    env: Mapping[str, str]
    max_model_len: int
    batched_tokens: int
    steps_in_flight: int
    memory: MemoryPlan
    reasons: Mapping[str, str]
    images: bool = False
    capture_sizes: tuple[int, ...] = ()
    kernel: KernelPath | None = None
    moe_backend: str | None = None
    notes: tuple[str, ...] = field(default=())


@dataclass(frozen=True, kw_only=True, slots=True)
class Inputs:
    """What the choices are made from."""

    facts: ModelFacts
    hardware: HardwareReport
    workload: Workload
    rank: int
    corrections: tuple[Correction, ...]


def sum_bytes(terms: tuple[MemoryTerm, ...]) -> int:
    """All terms together."""
    return sum(term.size_bytes for term in terms)


def left_bytes(available: int, terms: tuple[MemoryTerm, ...]) -> int:
    """What the terms leave of ``available`` bytes, at least 0."""
    return max(available - sum_bytes(terms), 0)


def memory_plan(
    terms: tuple[MemoryTerm, ...],
    shape: KvShape,
    *,
    length: int,
    in_flight: int,
    available: int,
    where: str,
    kv_bytes: int | None = None,
) -> MemoryPlan:
    """The whole sum; CapacityError when terms and KV cache do not fit ``available`` bytes."""
    floor = shape.floor_bytes(length, in_flight)
    mem.require_fit(terms, max(floor, kv_bytes or 0), available, where, length)
    if kv_bytes is not None:
        mem.require_floor(floor, kv_bytes, length)
    return MemoryPlan(
        available_bytes=available,
        terms=terms,
        kv_cache_bytes=left_bytes(available, terms) if kv_bytes is None else kv_bytes,
        kv_floor_bytes=floor,
        kv_sequence_bytes=shape.sequence_bytes(length),
        kv_block_bytes=shape.block_bytes,
    )


def length_reasons(
    facts: ModelFacts, workload: Workload, length: int, memory: MemoryPlan, *, images: bool
) -> dict[str, str]:
    """Why sequences are as long as they are."""
    if workload.max_model_len is not None:
        how = "asked for"
    elif length == facts.max_position_embeddings:
        how = "the model's own"
    else:
        how = "the longest whose startup floor fits, within the default cap"
    return {
        "max_model_len": f"{how}; longest request: {describe(workload, images=images)}; "
        f"{memory.sequences:.1f} such sequences fit the KV cache at once"
    }


def workload_notes(
    workload: Workload, memory: MemoryPlan, shape: KvShape, length: int, *, images: bool
) -> Iterator[str]:
    """What an operator should know of lengths and of thinking."""
    yield from length_notes(workload, length, images=images)
    if workload.thinking_share:
        yield _thinking_note(workload, memory, shape, length)


def _thinking_note(workload: Workload, memory: MemoryPlan, shape: KvShape, length: int) -> str:
    thinking = workload.clients * workload.thinking_share
    tokens = min(workload.median_prompt_tokens + workload.longest_thought_tokens, length)
    held = memory.kv_cache_bytes // shape.sequence_bytes(tokens)
    return (
        f"{thinking:.0f} of {workload.clients} clients think at once; the KV cache holds {held} such "
        f"sequences of {tokens:,} tokens{'' if held >= thinking else ', the others wait'}"
    )
