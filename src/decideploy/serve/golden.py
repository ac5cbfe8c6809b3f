"""Golden decisions: what a model answered once, to compare a server's answers with."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Final, Literal, Self, TypeAlias

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from decideploy.decide import DecideRequest
from decideploy.decide.documents import key_path
from decideploy.decide.slots import Kind
from decideploy.errors import ConfigError

FILE_NAME: Final = "golden.json"

# Measured against the float32 reference over 300 decisions of the demo model: mean 0.0081, largest 0.059.
MEAN_TOLERANCE: Final = 0.02
LARGEST_TOLERANCE: Final = 0.12

Sha256: TypeAlias = Annotated[str, Field(pattern="^[0-9a-f]{64}$")]
Probability: TypeAlias = Annotated[float, Field(ge=0.0, le=1.0)]
Distribution: TypeAlias = Annotated[tuple[Probability, ...], Field(min_length=2)]


class GoldenBuild(BaseModel):
    """The engine build whose answers were recorded."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    version: str
    recipe: str
    files_sha256: Sha256


class Tolerance(BaseModel):
    """How far answers may be off: the mean over decisions of the largest difference, and the largest of all.

    Both are differences of probabilities. Two bounds, because one decision that noise tips over may be far
    off while the others are not, and a fault of the model moves all of them.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    mean: Annotated[float, Field(gt=0.0, lt=1.0)] = MEAN_TOLERANCE
    largest: Annotated[float, Field(gt=0.0, lt=1.0)] = LARGEST_TOLERANCE


class GoldenDecision(BaseModel):
    """One question with the probabilities of its options.

    ``base_probabilities``, where recorded, are the base model's for the same prompt: over the same slots,
    without adapter, bias and temperature.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    kind: Kind
    state: str
    question: str
    options: tuple[str, ...] | None = None
    probabilities: Distribution
    base_probabilities: Distribution | None = None

    @property
    def request(self) -> DecideRequest:
        """The question as ``/v1/decide`` takes it."""
        return DecideRequest(kind=self.kind, state=self.state, question=self.question, options=self.options)


class Golden(BaseModel):
    """``golden.json``: decisions of the model whose digest is ``model_sha256``.

    ``source`` says in words what answered; ``build`` is None when it was no build of the engine.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    schema_version: Literal[1] = 1
    model_sha256: Sha256
    source: str
    build: GoldenBuild | None = None
    tolerance: Tolerance = Tolerance()
    decisions: Annotated[tuple[GoldenDecision, ...], Field(min_length=1)]

    @classmethod
    def read(cls, path: Path) -> Self:
        """The golden decisions in the file ``path``; ConfigError names the first fault."""
        try:
            return cls.model_validate_json(path.read_bytes())
        except OSError as error:
            raise _unusable(path, error.strerror or str(error)) from error
        except ValidationError as error:
            fault = error.errors(include_url=False, include_context=False)[0]
            raise _unusable(path, f"{key_path(fault['loc'])}: {fault['msg']}".removeprefix(": ")) from error

    def write(self, path: Path) -> None:
        """Write the file, and the folder that it lies in; equal decisions give equal bytes."""
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(self.model_dump_json(indent=1, exclude_none=True) + "\n", "utf-8")


def _unusable(path: Path, what: str) -> ConfigError:
    return ConfigError(
        f"the golden decisions cannot be used: {what}",
        where=str(path),
        next_step="record them with `decideploy selftest --record FILE` against a server that you trust",
    )


def golden_of(model: Path, golden: Path | None = None) -> Path | None:
    """The file to compare with: ``golden``, else the model's own, else None."""
    if golden is not None:
        return golden
    own = model / FILE_NAME
    return own if own.is_file() else None


@dataclass(frozen=True, kw_only=True, slots=True)
class Distance:
    """How far answers are from the golden ones; ``worst`` is the place of the farthest decision."""

    count: int
    mean: float
    largest: float
    worst: int

    def within(self, tolerance: Tolerance) -> bool:
        """Whether both bounds hold; a distance that is no number holds none."""
        return self.mean <= tolerance.mean and self.largest <= tolerance.largest


def distance(found: Iterable[Sequence[float]], golden: Iterable[Sequence[float]]) -> Distance:
    """How far distributions ``found`` are from as many ``golden`` ones; ValueError when they do not pair."""
    each = [
        max(abs(one - other) for one, other in zip(answer, expected, strict=True))
        for answer, expected in zip(found, golden, strict=True)
    ]
    return Distance(
        count=len(each), mean=sum(each) / len(each), largest=max(each), worst=each.index(max(each))
    )
