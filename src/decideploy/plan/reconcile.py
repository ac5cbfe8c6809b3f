"""Compare the plan with what the engine logged, after every start."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

from decideploy.errors import Diagnostic
from decideploy.hardware.kernels import backends
from decideploy.plan.kv_cache import ceil_div
from decideploy.plan.launch_plan import LaunchPlan
from decideploy.plan.memory import GIB, MemoryPlan

KERNEL_DIFFERS = "moe-backend-differs"

# Less KV than planned may mean that the next start fails, more only that some lies idle. The log rounds to
# hundredths of a GiB, and what is fixed weighs more where the engine has a small share of a card.
_LESS, _MORE = 0.02, 0.10
_LESS_BYTES, _MORE_BYTES = GIB // 4, 2 * GIB
_WEIGHTS = 0.01


@dataclass(frozen=True, kw_only=True, slots=True)
class Observed:
    """What one start showed; None where the engine did not log it.

    ``init_s`` is from loaded weights to a warm engine, ``startup_s`` from nothing to an answer.
    """

    moe_backend: str | None = None
    weights_bytes: int | None = None
    kv_cache_bytes: int | None = None
    kv_cache_tokens: int | None = None
    graph_bytes: int | None = None
    init_s: float | None = None
    startup_s: float | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Figure:
    """One predicted and observed number; either is None when there is none."""

    name: str
    unit: str
    predicted: float | None
    observed: float | None

    @property
    def error(self) -> float | None:
        """Observed over predicted, less one."""
        if not self.predicted or self.observed is None:
            return None
        return self.observed / self.predicted - 1


@dataclass(frozen=True, kw_only=True, slots=True)
class Reconciliation:
    """Predicted against observed. ``differences`` are what the operator should know."""

    figures: tuple[Figure, ...]
    kv_cache_tokens: int | None
    predicted_moe_backend: str | None
    observed_moe_backend: str | None
    differences: tuple[Diagnostic, ...]

    @property
    def kernel_differs(self) -> bool:
        """Whether the engine took another expert kernel than the planned one."""
        return any(difference.code == KERNEL_DIFFERS for difference in self.differences)

    def figure(self, name: str) -> Figure:
        """The figure of that name."""
        return next(figure for figure in self.figures if figure.name == name)

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready values."""
        return asdict(self)


def reconcile(plan: LaunchPlan, observed: Observed) -> Reconciliation:
    """What the plan promised and the engine's log did not keep."""
    differences = (
        *_kernel_difference(plan, observed.moe_backend),
        *_kv_difference(plan.memory, observed.kv_cache_bytes),
        *_weights_difference(plan.memory, observed.weights_bytes),
    )
    return Reconciliation(
        figures=tuple(_figures(plan, observed)),
        kv_cache_tokens=observed.kv_cache_tokens,
        predicted_moe_backend=plan.moe_backend,
        observed_moe_backend=observed.moe_backend,
        differences=differences,
    )


def _figures(plan: LaunchPlan, observed: Observed) -> Iterator[Figure]:
    memory = plan.memory
    yield Figure(
        name="weights",
        unit="bytes",
        predicted=memory.weights_bytes,
        observed=observed.weights_bytes,
    )
    yield Figure(
        name="kv_cache", unit="bytes", predicted=memory.kv_cache_bytes, observed=observed.kv_cache_bytes
    )
    yield Figure(
        name="kv_blocks", unit="blocks", predicted=memory.kv_blocks, observed=_observed_blocks(plan, observed)
    )
    graphs = memory.graph_bytes if plan.platform == "cuda" else None
    yield Figure(name="cuda_graphs", unit="bytes", predicted=graphs, observed=observed.graph_bytes)
    yield Figure(name="init", unit="seconds", predicted=None, observed=observed.init_s)
    yield Figure(name="startup", unit="seconds", predicted=None, observed=observed.startup_s)


def _observed_blocks(plan: LaunchPlan, observed: Observed) -> int | None:
    """Blocks behind the capacity in tokens that the engine logs, which is rounded down to whole tokens."""
    if observed.kv_cache_tokens is None:
        return None
    # The floor is what one sequence reserves, and the null block.
    reserved = plan.memory.kv_floor_bytes // plan.memory.kv_block_bytes - 1
    return ceil_div(observed.kv_cache_tokens * reserved, plan.max_model_len)


def _kernel_difference(plan: LaunchPlan, observed: str | None) -> Iterator[Diagnostic]:
    if plan.moe_backend is None or observed is None:
        return
    known = backends().get(plan.moe_backend)
    expected = known.log if known else plan.moe_backend
    if observed.upper() != expected.upper():
        yield Diagnostic(
            code=KERNEL_DIFFERS,
            what=f"planned the {expected} expert kernel, the engine took {observed}",
            where="engine log",
            next_step="check that the patched vLLM is installed (`decideploy doctor`)",
        )


def _kv_difference(memory: MemoryPlan, observed: int | None) -> Iterator[Diagnostic]:
    if observed is None:
        return
    predicted = memory.kv_cache_bytes
    more = observed - predicted
    if more < -max(_LESS * predicted, _LESS_BYTES) or more > max(_MORE * predicted, _MORE_BYTES):
        yield Diagnostic(
            code="kv-cache-differs",
            what=f"planned {predicted / GIB:.2f} GiB of KV cache, the engine has {observed / GIB:.2f} GiB",
            where="engine log",
            next_step="plan again with --calibrate, which takes what this start measured",
        )


def _weights_difference(memory: MemoryPlan, observed: int | None) -> Iterator[Diagnostic]:
    if observed is None:
        return
    predicted = memory.weights_bytes
    if observed - predicted > max(_WEIGHTS * predicted, _LESS_BYTES):
        yield Diagnostic(
            code="weights-differ",
            what=f"planned {predicted / GIB:.2f} GiB of weights, the engine took {observed / GIB:.2f} GiB",
            where="engine log",
            next_step="plan again with --calibrate, which takes what this start measured",
        )
