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


@dataclass(frozen=True, kw_only=True, slots=True)
class Card:
    """A GPU model; ``memory_bytes`` is its total memory."""

    name: str
    compute_capability: str
    memory_bytes: int


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
    offline = unknown("offline: no host was probed")
    gpu = Gpu(
        index=0,
        name=Reading(value=card.name, source=source),
        compute_capability=Reading(value=card.compute_capability, source=source),
        total_bytes=Reading(value=card.memory_bytes, source=source),
        free_bytes=unknown("offline: an empty card is assumed by the plan"),
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


def larger_card(available_bytes: int, missing_bytes: int) -> str:
    """The smallest known card that gives ``missing_bytes`` more than ``available_bytes``, or nothing."""
    needed = (available_bytes + missing_bytes) * 100 // 92
    fitting = [(card.memory_bytes, key) for key, card in known_cards().items() if card.memory_bytes >= needed]
    return f"such as {min(fitting)[1]}" if fitting else ""
