"""GPUs and regions that Modal offers; the table is ``offers.toml``."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING

from pydantic import BaseModel, ConfigDict, Field

if TYPE_CHECKING:
    from decideploy.hardware import Card


class _Table(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class GpuOffer(_Table):
    """``card`` is a key of the table of cards, ``max_count`` the GPUs that a container can have."""

    card: str
    max_count: int = Field(gt=0)

    def known_card(self) -> Card:
        """The card's compute capability and memory."""
        from decideploy.hardware import known_cards  # noqa: PLC0415

        return known_cards()[self.card]


class Regions(_Table):
    """``compute``: where containers may run; ``routing``: where requests may enter."""

    compute: tuple[str, ...]
    routing: tuple[str, ...]


class Offers(_Table):
    """All of ``offers.toml``; GPUs by the name that Modal gives them."""

    gpus: Mapping[str, GpuOffer]
    regions: Regions


@cache
def offers() -> Offers:
    """The table of this release."""
    text = files("decideploy.deploy.modal").joinpath("offers.toml").read_text("utf-8")
    return Offers.model_validate(tomllib.loads(text))
