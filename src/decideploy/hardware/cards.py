"""Known cards, so that a plan can be made with no such card at hand; the table is ``cards.toml``."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import cache
from importlib.resources import files
from pathlib import Path

from decideploy.errors import ConfigError
from decideploy.hardware.report import Gpu, HardwareReport, Host, Reading, load_report, unknown

GIB = 1024**3
MIB = 1024**2
# Where nobody told how much a card keeps: more than any card keeps of which it is known, a test holds that.
_KEPT_SHARE, _KEPT_BYTES = 0.03, GIB
# Figures in GiB were rounded to hundredths.
_ROUNDING_GIB = 0.005


@dataclass(frozen=True, kw_only=True, slots=True)
class Card:
    """A GPU model: what the driver tells of its memory in MiB, and CUDA in GiB, where that is known.

    ``free_gib`` is set where the host shares the memory: then not even an idle machine leaves it all.
    """

    name: str
    compute_capability: str
    total_mib: int | None = None
    usable_gib: float | None = None
    free_gib: float | None = None
    source: str = ""

    @property
    def memory_bytes(self) -> int:
        """The total that the engine takes its share of: as CUDA tells it, else less than the driver does."""
        if self.usable_gib is not None:
            return round((self.usable_gib - _ROUNDING_GIB) * GIB)
        assert self.total_mib is not None
        told = self.total_mib * MIB
        return told - min(round(told * _KEPT_SHARE), _KEPT_BYTES)

    @property
    def memory_source(self) -> str:
        """Whence :attr:`memory_bytes`."""
        if self.usable_gib is not None:
            return self.source
        return "derived: 3 % less than the driver tells, at most 1 GiB"


@cache
def known_cards() -> Mapping[str, Card]:
    """Cards by short name ("rtx4090")."""
    text = files("decideploy.hardware").joinpath("cards.toml").read_text("utf-8")
    return {key: Card(**row) for key, row in tomllib.loads(text).items()}


def load_hardware(name: str) -> HardwareReport:
    """The report for a known card, or the one in a file of ``probe --json``; ConfigError for neither."""
    if name.lower() in known_cards():
        return card_report(name)
    path = Path(name)
    return load_report(path) if path.is_file() else card_report(name)


def card_report(name: str) -> HardwareReport:
    """A report for one empty card of that name; every host value is unknown. ConfigError for other names."""
    card = known_cards().get(name.lower())
    if card is None:
        raise ConfigError(
            f"unknown card {name!r}",
            where="--hardware",
            next_step=f"use one of {', '.join(sorted(known_cards()))}, or a file of `probe --json`",
        )
    source = f"cards.toml [{name.lower()}]"
    memory_source = f"{source}, {card.memory_source}"
    offline = unknown("offline: no host was probed")
    gpu = Gpu(
        index=0,
        name=Reading(value=card.name, source=source),
        compute_capability=Reading(value=card.compute_capability, source=source),
        total_bytes=Reading(value=card.memory_bytes, source=memory_source),
        free_bytes=_free(card, memory_source),
        uuid=offline,
        holders=offline,
        mig=offline,
        ecc=offline,
        power_limit_w=offline,
        power_default_w=offline,
        pcie=offline,
        nvlinks=offline,
    )
    host = Host(**dict.fromkeys((field.name for field in fields(Host)), offline))
    return HardwareReport(host=host, gpus=(gpu,), driver_version=offline, cuda_version=offline)


def _free(card: Card, source: str) -> Reading[int]:
    if card.free_gib is None:
        return unknown("offline: an empty card is assumed by the plan")
    return Reading(value=round((card.free_gib - _ROUNDING_GIB) * GIB), source=source)
