"""Temperatures per kind, as the model's authors fitted them."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Annotated, Final, Self, TypeAlias

from pydantic import BaseModel, ConfigDict, Field, FiniteFloat

from decideploy.decide.documents import parse_document, read_bytes
from decideploy.decide.slots import Kind

FILE_NAME = "calibration.json"
GOLD_FILE_NAME = "calibration_gold.json"

# No fit lies beyond: at either end the options are one certain answer or all alike.
MIN_TEMPERATURE: Final = 0.01
MAX_TEMPERATURE: Final = 100.0

Temperature: TypeAlias = Annotated[FiniteFloat, Field(ge=MIN_TEMPERATURE, le=MAX_TEMPERATURE)]


class Temperatures(BaseModel):
    """One divisor of the slot scores for each kind; 1 leaves them as they are."""

    model_config = ConfigDict(extra="ignore", frozen=True, strict=True)

    noul: Temperature
    choice: Temperature
    score: Temperature


class CalibrationDocument(BaseModel):
    """The content of ``calibration.json``."""

    model_config = ConfigDict(extra="ignore", frozen=True, strict=True)

    per_kind: Temperatures


class Calibration(BaseModel):
    """``temperatures`` and the ``sha256`` (hex) of the file that they came from."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    temperatures: Temperatures
    sha256: str

    @classmethod
    def read(cls, path: Path) -> Self:
        """The calibration in ``path``; VerificationError names the file and every key at fault."""
        content = read_bytes(path)
        document = parse_document(content, path, CalibrationDocument)
        return cls(temperatures=document.per_kind, sha256=hashlib.sha256(content).hexdigest())

    def temperature(self, kind: Kind) -> float:
        """The divisor for ``kind``, from 0.01 to 100."""
        return float(getattr(self.temperatures, kind))
