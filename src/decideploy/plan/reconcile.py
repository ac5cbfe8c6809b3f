"""Compare the plan with what the engine logged, after every start."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from decideploy.errors import Diagnostic
from decideploy.plan.launch_plan import LaunchPlan
from decideploy.plan.memory import GIB

_TOLERANCE = 0.10

# How the log names a backend that `--moe-backend` names otherwise.
_LOG_NAMES = {
    "cutlass": "VLLM_CUTLASS",
    "flashinfer_trtllm": "FLASHINFER_TRTLLM",
    "flashinfer_cutlass": "FLASHINFER_CUTLASS",
    "flashinfer_cutedsl": "FLASHINFER_CUTEDSL",
    "marlin": "MARLIN",
    "humming": "HUMMING",
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Reconciliation:
    """Predicted against observed; an observed value is None when the engine did not log it."""

    predicted_kv_bytes: int
    observed_kv_bytes: int | None
    kv_cache_tokens: int | None
    predicted_moe_backend: str | None
    observed_moe_backend: str | None
    differences: tuple[Diagnostic, ...]

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready values."""
        return asdict(self)


def reconcile(
    plan: LaunchPlan,
    *,
    kv_cache_bytes: int | None,
    kv_cache_tokens: int | None,
    moe_backend: str | None,
) -> Reconciliation:
    """What the plan promised and the engine's log did not keep."""
    differences = (*_kernel_difference(plan, moe_backend), *_kv_difference(plan, kv_cache_bytes))
    return Reconciliation(
        predicted_kv_bytes=plan.memory.kv_cache_bytes,
        observed_kv_bytes=kv_cache_bytes,
        kv_cache_tokens=kv_cache_tokens,
        predicted_moe_backend=plan.moe_backend,
        observed_moe_backend=moe_backend,
        differences=differences,
    )


def _kernel_difference(plan: LaunchPlan, observed: str | None) -> tuple[Diagnostic, ...]:
    if plan.moe_backend is None or observed is None:
        return ()
    expected = _LOG_NAMES.get(plan.moe_backend, plan.moe_backend)
    if observed.upper() == expected.upper():
        return ()
    return (
        Diagnostic(
            code="moe-backend-differs",
            what=f"planned the {expected} expert kernel, the engine took {observed}",
            where="engine log",
            next_step="check that the patched vLLM is installed (`decideploy doctor`)",
        ),
    )


def _kv_difference(plan: LaunchPlan, observed: int | None) -> tuple[Diagnostic, ...]:
    predicted = plan.memory.kv_cache_bytes
    if observed is None or abs(observed - predicted) <= _TOLERANCE * predicted:
        return ()
    return (
        Diagnostic(
            code="kv-cache-differs",
            what=f"planned {predicted / GIB:.2f} GiB of KV cache, the engine has {observed / GIB:.2f} GiB",
            where="engine log",
            next_step="report both figures with the card's name, so that the memory model can be corrected",
        ),
    )
