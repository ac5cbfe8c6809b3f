"""``plan``: every choice of the launch, each with its reason."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from decideploy.errors import CapacityError, ConfigError
from decideploy.hardware import HardwareReport, KernelPath, Reading, SmokeTest
from decideploy.plan import memory as mem
from decideploy.plan.argv import common_reasons, make_argv, make_env
from decideploy.plan.choices import Inputs
from decideploy.plan.correction import Correction
from decideploy.plan.cpu import cpu_choices
from decideploy.plan.cuda import cuda_choices
from decideploy.plan.memory import MemoryPlan
from decideploy.plan.remedies import remedies
from decideploy.plan.workload import Workload

if TYPE_CHECKING:
    from decideploy.artifacts import AdapterFacts, ModelFacts

SCHEMA_VERSION = 1

_LORA_RANKS = (8, 16, 32)
_SIZES_ALONE = ("from the model's sizes alone: its files were not seen, and are verified before a start",)


@dataclass(frozen=True, kw_only=True, slots=True)
class LaunchPlan:
    """One launch. ``argv`` starts with ``vllm serve MODEL``; ``env`` is added to the environment.

    ``device`` is the card's name, or "cpu"; ``model`` the model's own name. ``moe_backend`` is the value of
    --moe-backend, None when the engine's only kernel is used, ``kernel_test`` what the numeric test of the
    kernels on this GPU gave. ``reasons`` explains each choice by its name;
    ``notes`` are what the operator should know beside them.
    """

    platform: str
    device: str
    model: str
    argv: tuple[str, ...]
    env: Mapping[str, str]
    served_model_name: str
    max_model_len: int
    max_num_seqs: int
    max_num_batched_tokens: int
    in_flight_tokens: int
    kv_cache_dtype: str
    images: bool
    capture_sizes: tuple[int, ...]
    moe_backend: str | None
    kernel: KernelPath | None
    memory: MemoryPlan
    reasons: Mapping[str, str]
    inputs_sha256: Mapping[str, str]
    kernel_test: Reading[SmokeTest]
    notes: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """The plan as JSON-ready values with ``schema_version`` and the digests of its inputs."""
        return {"schema_version": SCHEMA_VERSION, **asdict(self), "memory": self.memory.to_dict()}


def plan(
    facts: ModelFacts,
    hardware: HardwareReport,
    *,
    workload: Workload | None = None,
    corrections: tuple[Correction, ...] = (),
) -> LaunchPlan:
    """Choose kernel path, memory settings, argv and environment. Pure: same inputs, same plan.

    ``corrections`` are what earlier starts measured; those of other cards and models do not count. Raises
    CapacityError when it does not fit, ProbeError when the hardware cannot run it or is not known well
    enough, ConfigError when the workload contradicts the model.
    """
    workload = workload or Workload()

    def try_other(hardware: HardwareReport, workload: Workload) -> LaunchPlan:
        return first_plan(facts, hardware, workload=workload, corrections=corrections)

    try:
        return try_other(hardware, workload)
    except CapacityError as error:
        error.next_step = remedies(try_other, hardware, workload)
        raise


def first_plan(
    facts: ModelFacts,
    hardware: HardwareReport,
    *,
    workload: Workload,
    corrections: tuple[Correction, ...] = (),
) -> LaunchPlan:
    """:func:`plan`, whose CapacityError names no remedy: what remedies are sought with."""
    adapter = _adapter(facts)
    rank = _engine_rank(adapter)
    inputs = Inputs(facts=facts, hardware=hardware, workload=workload, rank=rank, corrections=corrections)
    choices = (cuda_choices if hardware.platform == "cuda" else cpu_choices)(inputs)
    name = workload.served_model_name or facts.name
    return LaunchPlan(
        platform=hardware.platform,
        device=choices.device,
        model=facts.name,
        argv=make_argv(
            facts,
            adapter,
            workload,
            choices.flags,
            name=name,
            lora_rank=rank,
            max_model_len=choices.max_model_len,
            batched_tokens=choices.batched_tokens,
        ),
        env={**make_env(workload), **choices.env},
        served_model_name=name,
        max_model_len=choices.max_model_len,
        max_num_seqs=workload.sequences,
        max_num_batched_tokens=choices.batched_tokens,
        in_flight_tokens=choices.steps_in_flight * choices.batched_tokens,
        kv_cache_dtype=workload.kv_cache_dtype,
        images=choices.images,
        capture_sizes=choices.capture_sizes,
        moe_backend=choices.moe_backend,
        kernel=choices.kernel,
        memory=choices.memory,
        reasons={**_all_reasons(facts, adapter, workload, rank), **choices.reasons},
        inputs_sha256={"hardware": _sha256(asdict(hardware)), "workload": _sha256(asdict(workload))},
        notes=(*(_SIZES_ALONE if facts.head is None else ()), *choices.notes),
        kernel_test=_kernel_test(facts, hardware),
    )


def _kernel_test(facts: ModelFacts, hardware: HardwareReport) -> Reading[SmokeTest]:
    """What the kernels' numeric test gave, or why it says nothing of this launch."""
    if hardware.platform != "cuda":
        return Reading(value=None, source="not run: no GPU is used")
    if facts.quant_algo != "NVFP4":
        return Reading(value=None, source="not run: the experts are not NVFP4")
    return hardware.smoke_test


def _adapter(facts: ModelFacts) -> AdapterFacts:
    if facts.adapter is None:
        raise ConfigError(
            "the model has no System 1 adapter",
            where=str(facts.path / "adapter_vllm"),
            next_step="make it with `decideploy convert-adapter`, or name it with --adapter",
        )
    return facts.adapter


def _engine_rank(adapter: AdapterFacts) -> int:
    """The smallest buffer width that vLLM allows and that holds the adapter."""
    fitting = [rank for rank in _LORA_RANKS if rank >= adapter.rank]
    if not fitting:
        raise ConfigError(
            f"the adapter has rank {adapter.rank}, at most {_LORA_RANKS[-1]} is served",
            where=f"{adapter.path}/adapter_config.json: r",
            next_step="train or convert the adapter with a rank of 32 or less",
        )
    return fitting[0]


def _all_reasons(facts: ModelFacts, adapter: AdapterFacts, workload: Workload, rank: int) -> dict[str, str]:
    head_gib = 4 * facts.hidden_size * facts.vocab_size / mem.GIB
    return common_reasons(adapter, workload, rank) | {
        "lora_target_modules": "only these are wrapped; else every expert is, "
        f"at {mem.unfiltered_lora_bytes(facts, rank) / mem.GIB:.2f} GiB and slower kernels",
        "head_dtype": "the model's own: it is shared with the embedding, "
        f"in float32 it would be {head_gib:.2f} GiB more",
    }


def _sha256(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True, default=str).encode()).hexdigest()
