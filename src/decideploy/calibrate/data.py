"""Labelled decisions: JSONL, each line a request of ``/v1/decide`` and its ``label``."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from decideploy.counted import counted
from decideploy.decide.batch import json_object
from decideploy.decide.schema import DecideRequest, parse_request
from decideploy.decide.slots import MAX_READ_OPTIONS
from decideploy.errors import ConfigError, Diagnostic
from decideploy.texts import decoded

LABEL: Final = "label"
MAX_TOLD_FAULTS: Final = 20


class DataError(ConfigError):
    """Lines of the data cannot be used; ``faults`` holds one for each."""

    def __init__(self, what: str, *, faults: Sequence[Diagnostic], where: str) -> None:
        super().__init__(what, where=where)
        self.faults = tuple(faults)

    def diagnostics(self) -> Sequence[Diagnostic]:
        """The first twenty faults and the number of the rest."""
        rest = len(self.faults) - MAX_TOLD_FAULTS
        told = self.faults[:MAX_TOLD_FAULTS]
        return (
            (*told, Diagnostic(what=f"and {counted(rest, 'more line')}", where=self.where))
            if rest > 0
            else told
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class Example:
    """One labelled decision: ``label`` is the index of the right option."""

    line: int
    request: DecideRequest
    label: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Excluded:
    """A line that is right but says nothing about a temperature, and why."""

    line: int
    reason: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Dataset:
    """The examples of one file, and the ``sha256`` (hex) of its bytes."""

    path: Path
    sha256: str
    examples: tuple[Example, ...]
    excluded: tuple[Excluded, ...]


def read_dataset(path: Path) -> Dataset:
    """The labelled decisions in ``path``.

    DataError names every line at fault, ConfigError the first that is not UTF-8; OSError as for any file.
    """
    content = path.read_bytes()
    entries, faults = [], []
    for number, line in enumerate(decoded(content, str(path)).split("\n"), start=1):
        if not line.strip():
            continue
        try:
            entries.append(read_example(number, line))
        except ConfigError as error:
            faults.append(_fault(path, number, error.what))
    if faults or not entries:
        faults = faults or [Diagnostic(what="the file holds no labelled decision", where=str(path))]
        raise DataError("the data cannot be used", faults=faults, where=str(path))
    return Dataset(
        path=path,
        sha256=hashlib.sha256(content).hexdigest(),
        examples=tuple(entry for entry in entries if isinstance(entry, Example)),
        excluded=tuple(entry for entry in entries if isinstance(entry, Excluded)),
    )


def read_example(number: int, line: str) -> Example | Excluded:
    """One line; ConfigError says what is wrong with it."""
    fields = json_object(line)
    if LABEL not in fields:
        raise ConfigError(f'the line has no "{LABEL}": the text of the right option, or its index from 0')
    label = fields.pop(LABEL)
    request = parse_request(fields)
    index = label_index(label, request.answer_options)
    if request.thinking != "off":
        return Excluded(line=number, reason=f"thinking {request.thinking}: System 2 has no temperature")
    # More are answered by several passes, which no temperature fits.
    if len(request.answer_options) > MAX_READ_OPTIONS:
        passes = f"several passes ({request.strategy}) made the probabilities"
        reason = f"more than {MAX_READ_OPTIONS} options: {passes}"
        return Excluded(line=number, reason=reason)
    return Example(line=number, request=request, label=index)


def label_index(label: object, options: Sequence[str]) -> int:
    """The index of the option that ``label`` names by text or index; ``true`` and ``false`` are texts."""
    if isinstance(label, bool):
        label = str(label).lower()
    if isinstance(label, str) and label in options:
        return options.index(label)
    if isinstance(label, int) and 0 <= label < len(options):
        return label
    raise ConfigError(
        f"the label {label!r} is neither the text of an option nor an index from 0 to {len(options) - 1}"
    )


def _fault(path: Path, number: int, what: str) -> Diagnostic:
    return Diagnostic(
        code="data-line",
        what=what,
        where=f"{path}: line {number}",
        next_step="each line is a /v1/decide request with a label; docs/calibrate.md has the schema",
    )
