"""Starts that were measured: one file a device in the state folder, one line a start."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, ValidationError

from decideploy.errors import ConfigError
from decideploy.hardware import Reading, SmokeTest
from decideploy.plan.correction import Correction, is_correction
from decideploy.plan.launch_plan import LaunchPlan
from decideploy.plan.memory import WEIGHTS
from decideploy.plan.reconcile import Figure, Observed, Reconciliation


class StartRecord(BaseModel):
    """One start: its settings, what was planned and what came of it.

    ``kernel_test`` is what the numeric test of the expert kernels gave before it, or why it was not run.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    schema_version: Literal[1] = 1
    time: datetime
    correction: Correction
    figures: tuple[Figure, ...]
    planned_kernel: str | None
    observed_kernel: str | None
    kernel_differs: bool
    kernel_test: Reading[SmokeTest] = Reading(value=None, source="not recorded")


def starts_folder(state_folder: Path) -> Path:
    """Where starts are kept."""
    return state_folder / "starts"


def make_record(
    plan: LaunchPlan, observed: Observed, found: Reconciliation, time: datetime | None = None
) -> StartRecord:
    """The record of a start."""
    return StartRecord(
        time=time or datetime.now(UTC),
        correction=_correction(plan, observed),
        figures=found.figures,
        planned_kernel=found.predicted_moe_backend,
        observed_kernel=found.observed_moe_backend,
        kernel_differs=found.kernel_differs,
        kernel_test=plan.kernel_test,
    )


def append_record(record: StartRecord, folder: Path) -> Path:
    """Add a line to the file of the record's device; returns the file."""
    name = re.sub(r"[^a-z0-9]+", "-", record.correction.device.lower()).strip("-")
    path = folder / f"{name}.jsonl"
    folder.mkdir(parents=True, exist_ok=True)
    with path.open("a", encoding="utf-8") as file:
        file.write(record.model_dump_json() + "\n")
    return path


def read_records(folder: Path) -> tuple[StartRecord, ...]:
    """Every record in ``folder``; none when there is no such folder. ConfigError names every bad line."""
    records, faults = [], []
    for path in sorted(folder.glob("*.jsonl")):
        for number, line in enumerate(path.read_text("utf-8").splitlines(), 1):
            try:
                records.append(StartRecord.model_validate_json(line))
            except ValidationError as error:
                faults.append(f"{path}:{number}: {error.error_count()} faults, {error.errors()[0]['msg']}")
    if faults:
        raise ConfigError(
            f"recorded starts cannot be read: {'; '.join(faults)}",
            where=str(folder),
            next_step="delete these lines, or leave out --calibrate",
        )
    return tuple(records)


def corrections(folder: Path) -> tuple[Correction, ...]:
    """What the starts in ``folder`` measured."""
    return tuple(record.correction for record in read_records(folder))


def _correction(plan: LaunchPlan, observed: Observed) -> Correction:
    """Measured less predicted, as if nothing had been corrected before."""
    terms = [term for term in plan.memory.terms if not is_correction(term)]
    weights = sum(term.size_bytes for term in terms if term.name.startswith(WEIGHTS))
    others = sum(term.size_bytes for term in terms) - weights
    taken = _others_taken(plan, observed)
    return Correction(
        **_setting(plan),
        weights_bytes=None if observed.weights_bytes is None else observed.weights_bytes - weights,
        other_bytes=None if taken is None else taken - others,
    )


def _others_taken(plan: LaunchPlan, observed: Observed) -> int | None:
    """What the engine held back beside weights and KV; unknown where the KV cache's size was asked for."""
    if observed.weights_bytes is None or observed.kv_cache_bytes is None:
        return None
    if plan.platform != "cuda" or "--kv-cache-memory-bytes" in plan.argv:
        return None
    return plan.memory.available_bytes - observed.weights_bytes - observed.kv_cache_bytes


def _setting(plan: LaunchPlan) -> dict[str, Any]:
    return {
        "device": plan.device,
        "model": plan.model,
        "moe_backend": plan.moe_backend,
        "images": plan.images,
        "max_num_seqs": plan.max_num_seqs,
        "max_num_batched_tokens": plan.max_num_batched_tokens,
    }
