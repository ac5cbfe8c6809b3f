"""Many decisions from JSONL: one request a line in, one result a line out, in the order of the input."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, TextIO

from decideploy.decide.client import PATIENT, Outcome, Patience, RefusedError, UnservedError, ask_all
from decideploy.decide.schema import DecideRequest, DecideResponse, parse_request
from decideploy.errors import ConfigError, EngineError
from decideploy.texts import parse_json


@dataclass(frozen=True, kw_only=True, slots=True)
class Line:
    """One line that is not blank: its ``number`` from 1, and the request on it or what is wrong with it."""

    number: int
    request: DecideRequest | ConfigError


def read_lines(lines: Sequence[str], given: Mapping[str, object]) -> list[Line]:
    """The requests of a JSONL text; ``given`` are the fields of those lines that leave them out."""
    return [
        Line(number=number, request=read_line(line, given))
        for number, line in enumerate(lines, start=1)
        if line.strip()
    ]


def read_line(line: str, given: Mapping[str, object]) -> DecideRequest | ConfigError:
    """The request that one line holds, or its fault."""
    try:
        return parse_request({**given, **json_object(line)})
    except ConfigError as error:
        return error


def json_object(line: str) -> dict[str, Any]:
    """``line`` as a JSON object; ConfigError when it is none."""
    try:
        document = parse_json(line)
    except ValueError as error:
        raise ConfigError(f"the line is not JSON: {error}") from error
    if not isinstance(document, dict):
        raise ConfigError("the line is not a JSON object")
    return document


def error_document(error: ConfigError | EngineError) -> dict[str, Any]:
    """What the server said with its HTTP ``status``; of a fault on this side the message and its type."""
    if isinstance(error, RefusedError | UnservedError):
        said = asdict(error.answer)
        return {name: value for name, value in said.items() if value is not None}
    return {"message": error.what, "type": type(error).__name__}


@dataclass(kw_only=True, slots=True)
class Results:
    """Writes outcomes to ``out`` as JSONL in the order of the input, each as soon as that order allows.

    A result is ``{"line": number, …the answer}``, a failure ``{"line": number, "error": {…}}``; ``failed``
    hears of every failure by its line number.
    """

    out: TextIO
    numbers: Sequence[int]
    failed: Callable[[int, ConfigError | EngineError], None]
    exit_code: int = 0
    failures: int = 0
    _early: dict[int, Outcome] = field(default_factory=dict)
    _next: int = 0

    def add(self, index: int, outcome: Outcome) -> None:
        """Take the outcome of the line ``numbers[index]``."""
        self._early[index] = outcome
        while self._next in self._early:
            self._write(self._next)
            self._next += 1

    def finish(self) -> None:
        """Write what came early and still waits for a line that will not come."""
        for index in sorted(self._early):
            self._write(index)

    def _write(self, index: int) -> None:
        outcome, number = self._early.pop(index), self.numbers[index]
        if isinstance(outcome, DecideResponse):
            document = outcome.model_dump(mode="json", exclude_none=True)
        else:
            document = {"error": error_document(outcome)}
            self._failure(number, outcome)
        # Flushed, so that an interrupted batch keeps what was paid for.
        print(json.dumps({"line": number, **document}, ensure_ascii=False), file=self.out, flush=True)

    def _failure(self, number: int, error: ConfigError | EngineError) -> None:
        self.failures += 1
        # A server's failure outweighs a wrong line: the batch is then worth repeating as it is.
        self.exit_code = max(self.exit_code, error.exit_code)
        self.failed(number, error)


def run_batch(
    url: str,
    lines: Sequence[Line],
    results: Results,
    *,
    concurrency: int = 8,
    timeout_s: float = 60.0,
    api_key: str | None = None,
    patience: Patience = PATIENT,
    advance: Callable[[], None] = lambda: None,
    transport: Any = None,
) -> None:
    """Ask for every line and give each outcome to ``results``; ``advance`` is called once a line.

    ``results.numbers`` are those of ``lines``. KeyboardInterrupt leaves in ``results`` what was answered.
    """
    asked: list[tuple[int, DecideRequest]] = []

    def done(index: int, outcome: Outcome) -> None:
        results.add(index, outcome)
        advance()

    try:
        for index, line in enumerate(lines):
            if isinstance(line.request, DecideRequest):
                asked.append((index, line.request))
            else:
                done(index, line.request)
        asyncio.run(
            ask_all(
                url,
                [request for _, request in asked],
                done=lambda position, outcome: done(asked[position][0], outcome),
                concurrency=concurrency,
                timeout_s=timeout_s,
                api_key=api_key,
                patience=patience,
                transport=transport,
            )
        )
    finally:
        results.finish()
