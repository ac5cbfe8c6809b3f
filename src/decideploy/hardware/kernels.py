"""Which FP4 kernel a compute capability takes; the table is ``kernels.toml``."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from typing import Any

from decideploy.errors import ConfigError, ProbeError

_WHERE = "decideploy/hardware/kernels.toml"

Packages = Mapping[str, str | None] | None


@dataclass(frozen=True, kw_only=True, slots=True)
class MinimumVersions:
    """The oldest driver and CUDA version that the CUDA build runs on."""

    driver: str
    cuda: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Backend:
    """One expert kernel.

    ``name`` is its value of ``--moe-backend``, ``log`` its name in the engine's log, ``activation`` W4A4 or
    W4A16, ``package`` the distribution that brings it, ``needs`` what that must find on the host, and
    ``compute_capability`` where it runs, everywhere when empty.
    """

    name: str
    log: str
    activation: str
    package: str | None = None
    needs: str = ""
    compute_capability: tuple[str, ...] = ()

    def runs_on(self, compute_capability: str) -> bool:
        """Whether the engine has it on such a GPU."""
        return not self.compute_capability or compute_capability in self.compute_capability


@dataclass(frozen=True, kw_only=True, slots=True)
class KnownBad:
    """A combination that is known to go wrong; ``verdict`` is "avoid", or "prove" with numbers first."""

    backends: tuple[str, ...]
    verdict: str
    why: str
    references: tuple[str, ...]
    compute_capability: tuple[str, ...] = ()
    tensor_parallel: bool = False

    def concerns(self, backend: str, compute_capability: str, tensor_parallel_size: int) -> bool:
        """Whether ``backend`` there is one of these."""
        return (
            backend in self.backends
            and (not self.compute_capability or compute_capability in self.compute_capability)
            and (not self.tensor_parallel or tensor_parallel_size > 1)
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class KernelPath:
    """The expert kernel to ask for.

    ``order`` are the backends in order of preference, ``usable`` those of them that nothing speaks against
    here, ``backend`` the first of these and ``dropped`` says why each before it is not; ``dtype`` is set when
    the model's own dtype cannot run; ``cautions`` are what is known against ``backend`` here.
    """

    compute_capability: str
    backend: str
    activation: str
    order: tuple[str, ...]
    usable: tuple[str, ...]
    reason: str
    needs: str = ""
    dtype: str | None = None
    dropped: Mapping[str, str] = field(default_factory=dict)
    cautions: tuple[KnownBad, ...] = ()


@cache
def _table() -> Mapping[str, Any]:
    return tomllib.loads(files("decideploy.hardware").joinpath("kernels.toml").read_text("utf-8"))


@cache
def backends() -> Mapping[str, Backend]:
    """Every expert kernel that the table knows, by its value of ``--moe-backend``."""
    rows: Mapping[str, dict[str, Any]] = _table()["backend"]
    places = {name: tuple(row.get("compute_capability", ())) for name, row in rows.items()}
    return {
        name: Backend(**row | {"name": name, "compute_capability": places[name]})
        for name, row in rows.items()
    }


@cache
def known_bad() -> tuple[KnownBad, ...]:
    """Every combination that is known to go wrong."""
    rows: list[dict[str, Any]] = _table()["known_bad"]
    lists = ("backends", "references", "compute_capability")
    return tuple(KnownBad(**row | {key: tuple(row[key]) for key in lists if key in row}) for row in rows)


def minimum_versions() -> MinimumVersions:
    """Driver and CUDA version that the CUDA build needs."""
    return MinimumVersions(**_table()["minimum"])


def is_unified_memory(compute_capability: str | None) -> bool:
    """Whether GPUs of this compute capability share the host's memory."""
    return compute_capability in _table()["unified_memory"]["compute_capability"]


def attention_backend(
    compute_capability: str | None, *, packages: Packages, kv_dtype: str = "auto"
) -> tuple[str, str] | None:
    """``--attention-backend`` and why, None where the engine's own choice runs.

    ``packages`` as for :func:`kernel_path`; ``kv_dtype`` is the value of ``--kv-cache-dtype``.
    """
    fp8, row = _table()["fp8_kv"], _table()["attention"]
    if kv_dtype == "fp8" and compute_capability not in fp8["own_attention"]:
        return fp8["attention"], "the one attention kernel here that reads fp8 keys and values"
    if compute_capability not in row["compute_capability"]:
        return None
    if packages is None or packages.get(row["package"]) is not None:
        return None
    return row["without"], f"FlashAttention 4 needs {row['package']}, which is not installed"


def own_attention(compute_capability: str | None) -> str:
    """The attention kernel that the engine takes by itself for Gemma-4's two head widths."""
    row = _table()["attention"]
    found: str = row["own" if compute_capability in row["compute_capability"] else "others"]
    return found


def check_fp8_kv(compute_capability: str | None) -> None:
    """ConfigError where no attention kernel reads 8-bit keys and values."""
    capable = _table()["fp8_kv"]["compute_capability"]
    if compute_capability not in capable:
        raise ConfigError(
            f"no attention kernel reads fp8 keys and values on compute capability {compute_capability}",
            where="--kv-cache-dtype fp8",
            next_step=f"leave the option out, or use a card of {', '.join(capable)}",
        )


def kernel_path(
    compute_capability: str,
    *,
    patched: bool = True,
    packages: Packages = None,
    tensor_parallel_size: int = 1,
    refused: Mapping[str, str] | None = None,
) -> KernelPath:
    """The path for ``compute_capability`` ("9.0").

    ``patched`` is whether kernel choice follows the adapter (patch 0003); ``packages`` are the installed
    kernel packages, None when unknown, then all are taken as present, as in the lock; ``refused`` says why
    some are not to be used. ProbeError when no row fits, or every kernel of it is refused.
    """
    row = _row(compute_capability)
    order = tuple(row["patched" if patched else "stock"])
    against = {
        name: (refused or {}).get(name) or _against(name, compute_capability, packages, tensor_parallel_size)
        for name in order
    }
    usable = tuple(name for name in order if not against[name])
    if not usable:
        raise _none_usable(against)
    backend = usable[0]
    dropped = {name: against[name] for name in order[: order.index(backend)]}
    return KernelPath(
        compute_capability=compute_capability,
        backend=backend,
        activation=backends()[backend].activation,
        order=order,
        usable=usable,
        reason=_reason(row["reason"], patched, dropped),
        needs=backends()[backend].needs,
        dtype=row.get("dtype"),
        dropped=dropped,
        cautions=tuple(_concerning(backend, compute_capability, tensor_parallel_size)),
    )


def check_backend(
    backend: str, compute_capability: str, tensor_parallel_size: int, refused: Mapping[str, str] | None = None
) -> None:
    """ConfigError when ``backend`` was asked for and is known, or in ``refused``, not to work here."""
    if why := (refused or {}).get(backend):
        raise ConfigError(
            f"{backend} {why}",
            where="--moe-backend",
            next_step="leave it out for the first that is right, or test again with `decideploy probe`",
        )
    known = backends().get(backend)
    if known is not None and not known.runs_on(compute_capability):
        fitting = kernel_path(compute_capability, tensor_parallel_size=tensor_parallel_size)
        raise ConfigError(
            f"{backend} does not run on compute capability {compute_capability}, "
            f"only on {', '.join(known.compute_capability)}",
            where="--moe-backend",
            next_step=f"leave it out, or ask for --moe-backend {fitting.backend}",
        )
    for entry in _concerning(backend, compute_capability, tensor_parallel_size):
        if entry.verdict == "avoid":
            others = kernel_path(compute_capability, tensor_parallel_size=tensor_parallel_size)
            raise ConfigError(
                f"{backend} {entry.why} ({', '.join(entry.references)})",
                where="--moe-backend",
                next_step=f"ask for --moe-backend {others.backend}, "
                "or run one replica a GPU with --tensor-parallel-size 1",
            )


def _none_usable(against: Mapping[str, str]) -> ProbeError:
    return ProbeError(
        f"no expert kernel can be used here: {'; '.join(f'{name} {why}' for name, why in against.items())}",
        where="expert kernels",
        next_step="mend what is named, then test again with `decideploy probe` (docs/probe.md)",
    )


def _row(compute_capability: str) -> Mapping[str, Any]:
    rows: list[Mapping[str, Any]] = _table()["path"]
    for row in rows:
        if compute_capability in row["compute_capability"]:
            return row
    known = [name for row in rows for name in row["compute_capability"]]
    raise ProbeError(
        f"no FP4 path is known for compute capability {compute_capability}",
        where=_WHERE,
        next_step=f"use a GPU of compute capability {', '.join(known)}, or add a row after a numeric test",
    )


def _concerning(backend: str, compute_capability: str, tensor_parallel_size: int) -> Iterator[KnownBad]:
    for entry in known_bad():
        if entry.concerns(backend, compute_capability, tensor_parallel_size):
            yield entry


def _against(name: str, compute_capability: str, packages: Packages, tensor_parallel_size: int) -> str:
    """Why ``name`` cannot be planned here, empty when it can."""
    package = backends()[name].package
    if package is not None and packages is not None and packages.get(package) is None:
        return f"needs {package}, which is not installed"
    concerns = _concerning(name, compute_capability, tensor_parallel_size)
    return next((entry.why for entry in concerns if entry.verdict == "avoid"), "")


def _reason(text: str, patched: bool, dropped: Mapping[str, str]) -> str:
    if not patched:
        return "LoRA restricts every expert kernel without the kernel-choice patch: Marlin"
    return "; ".join((text, *(f"{name} {why}" for name, why in dropped.items())))
