"""The whole of ``decideploy calibrate``: ask, recover the scores, fit, report."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

from decideploy.calibrate.data import DataError, Dataset, Example, Excluded, read_dataset
from decideploy.calibrate.kinds import KindReport, Scored, fit_kind
from decideploy.decide.client import PATIENT, Outcome, Patience, ask_all, fetch_info
from decideploy.decide.schema import DecideResponse, InfoResponse
from decideploy.decide.slots import KINDS, Kind
from decideploy.errors import Diagnostic, EngineError
from decideploy.intervals import without_nan

SCHEMA_VERSION: Final = 1
MIN_EXAMPLES: Final = 100
FOLDS: Final = 5


@dataclass(frozen=True, kw_only=True, slots=True)
class CalibrationReport:
    """Every kind's fit and figures, and what they were made from."""

    url: str
    model: str
    model_sha256: str
    served_sha256: str
    data_sha256: str
    folds: int
    seed: int
    kinds: tuple[KindReport, ...]
    excluded: tuple[Excluded, ...]

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready values with ``schema_version``; NaN, of a bin without examples, is None."""
        document: dict[str, Any] = without_nan({"schema_version": SCHEMA_VERSION, **asdict(self)})
        return document


def calibrate(
    url: str,
    data: Path,
    *,
    folds: int = FOLDS,
    min_examples: int = MIN_EXAMPLES,
    seed: int = 0,
    concurrency: int = 8,
    timeout_s: float = 60.0,
    api_key: str | None = None,
    patience: Patience = PATIENT,
    started: Callable[[int], None] = lambda _count: None,
    advance: Callable[[], None] = lambda: None,
) -> CalibrationReport:
    """Fit the temperatures of the server at ``url`` to the labelled decisions in ``data``.

    ``started`` hears how many questions there are, ``advance`` is called after each. Raises DataError with
    every line that cannot be used, EngineError when the server fails or changes meanwhile.
    """
    dataset = read_dataset(data)
    info = fetch_info(url, timeout_s=timeout_s, api_key=api_key)
    started(len(dataset.examples))
    answers: dict[int, Outcome] = {}

    def done(index: int, outcome: Outcome) -> None:
        answers[index] = outcome
        advance()

    requests = [example.request for example in dataset.examples]
    asyncio.run(
        ask_all(
            url,
            requests,
            done=done,
            concurrency=concurrency,
            timeout_s=timeout_s,
            api_key=api_key,
            patience=patience,
        )
    )
    check_unchanged(info, fetch_info(url, timeout_s=timeout_s, api_key=api_key), url)
    responses = answered(dataset, answers)
    scored, lost = scores_by_kind(dataset.examples, responses, info)
    return CalibrationReport(
        url=url,
        model=info.model,
        model_sha256=info.model_sha256,
        served_sha256=info.calibration_sha256,
        data_sha256=dataset.sha256,
        folds=folds,
        seed=seed,
        kinds=tuple(
            fit_kind(
                kind,
                scored[kind],
                served=info.temperatures[kind],
                folds=folds,
                min_examples=min_examples,
                seed=seed,
            )
            for kind in KINDS
        ),
        excluded=(*dataset.excluded, *lost),
    )


def check_unchanged(before: InfoResponse, after: InfoResponse, url: str) -> None:
    """Raise EngineError when the server was restarted with other files between the first and last answer."""
    if (before.calibrations, before.model_sha256) != (after.calibrations, after.model_sha256):
        raise EngineError(
            "the server's model or calibration changed while it was asked",
            status=502,
            where=url,
            next_step="run again against a server that stays",
        )


def answered(dataset: Dataset, answers: Mapping[int, Outcome]) -> list[DecideResponse]:
    """The decisions in the order of the examples; DataError with every one that failed."""
    faults, responses = [], []
    for index, example in enumerate(dataset.examples):
        outcome = answers[index]
        if isinstance(outcome, DecideResponse):
            responses.append(outcome)
        else:
            where = f"{dataset.path}: line {example.line}"
            faults.append(
                Diagnostic(code="not-answered", what=outcome.what, where=where, next_step=outcome.next_step)
            )
    if faults:
        raise DataError("the server did not answer every line", faults=faults, where=str(dataset.path))
    return responses


def scores_by_kind(
    examples: Sequence[Example], responses: Sequence[DecideResponse], info: InfoResponse
) -> tuple[dict[Kind, Scored], tuple[Excluded, ...]]:
    """Scores and labels of each kind, and the examples whose scores are lost."""
    rows: dict[Kind, list[tuple[list[float], int]]] = {kind: [] for kind in KINDS}
    lost = []
    for example, response in zip(examples, responses, strict=True):
        request = example.request
        temperature = info.calibrations[request.calibration].temperatures[request.kind]
        scores = recovered_scores(response.probabilities, temperature)
        if scores is None:
            reason = "an option's probability underflowed to 0, so that its score is lost"
            lost.append(Excluded(line=example.line, reason=reason))
        else:
            rows[request.kind].append((scores, example.label))
    return {kind: as_arrays(entries) for kind, entries in rows.items()}, tuple(lost)


def recovered_scores(probabilities: Sequence[float], temperature: float) -> list[float] | None:
    """The scores that ``softmax(score / temperature)`` made into ``probabilities``, up to one constant.

    ln p is score / temperature less the logarithm of the row's sum, which all options share. None when a
    probability is 0 or so small that it lost digits.
    """
    if min(probabilities) < sys.float_info.min:
        return None
    return [temperature * float(np.log(probability)) for probability in probabilities]


def as_arrays(rows: Sequence[tuple[list[float], int]]) -> Scored:
    """Rows of different lengths as one array, -inf where an option is not there."""
    scores = np.full((len(rows), max((len(values) for values, _ in rows), default=0)), -np.inf)
    for row, (values, _) in zip(scores, rows, strict=True):
        row[: len(values)] = values
    return Scored(scores=scores, labels=np.array([label for _, label in rows], dtype=np.int64))
