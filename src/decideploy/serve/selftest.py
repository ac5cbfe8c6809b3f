"""Prove over HTTP that a running server answers rightly, not only that it answers."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final, TypeAlias

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from decideploy.counted import counted
from decideploy.decide import ADAPTER_NAME, DecideRequest, DecideResponse
from decideploy.decide.readout import slot_faults, softmax
from decideploy.decide.slots import KIND_RANGES, SLOT_LABELS
from decideploy.errors import Diagnostic, EngineError, Error
from decideploy.serve.golden import (
    Golden,
    GoldenBuild,
    GoldenDecision,
    Tolerance,
    distance,
)
from decideploy.serve.http_client import Client, Logprobs, at_once
from decideploy.serve.questions import batch, golden_questions, one_of_each_kind, widest_choice

SCHEMA_VERSION: Final = 2

# Batching changes the order of bf16 sums; a row that is read with another row's adapter moves all of them.
BATCH_TOLERANCE: Final = Tolerance()
# As for a batch, but one prompt and no adapter.
BASE_TOLERANCE: Final = 0.02
# Adapter and base differ by whole nats; identical weights differ by nothing at all.
MOVED_NATS: Final = 0.05
SUM_TOLERANCE: Final = 1e-3
# One prompt read twice, once through the server's read-out and once through this one.
READ_OUT_TOLERANCE: Final = 0.02
BASE_READINGS: Final = 8
DRAFT_STREAMS: Final = 4
DRAFT_TOKENS: Final = 48
DRAFT_STEPS: Final = 8

Outcome: TypeAlias = tuple[bool, str]


@dataclass(frozen=True, kw_only=True, slots=True)
class Check:
    """One check: what was seen, what a failure means and what to do then.

    One that is not ``configured`` had nothing to look at: it has passed, and proves nothing.
    """

    name: str
    passed: bool
    detail: str
    meaning: str
    remedy: str
    configured: bool = True


class SelfTestError(EngineError):
    """The server's answers are wrong; ``failures`` are the checks that say so."""

    def __init__(self, url: str, failures: Sequence[Check]) -> None:
        names = ", ".join(check.name for check in failures)
        super().__init__(f"self-test failed: {names}", status=502, where=url)
        self.failures = tuple(failures)

    def diagnostics(self) -> Sequence[Diagnostic]:
        """One for each failed check."""
        return tuple(
            Diagnostic(
                code=f"selftest-{check.name}",
                what=f"{check.meaning}: {check.detail}",
                where=self.where,
                next_step=check.remedy,
            )
            for check in self.failures
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class SelfTestReport:
    """Every check of one run, in the order of docs/self-test.md."""

    url: str
    checks: tuple[Check, ...]

    @property
    def failures(self) -> tuple[Check, ...]:
        """The checks that failed."""
        return tuple(check for check in self.checks if not check.passed)

    @property
    def summary(self) -> str:
        """How many checks passed and which had nothing to look at, in one line."""
        idle = [check.name for check in self.checks if not check.configured]
        passed = len(self.checks) - len(self.failures) - len(idle)
        return f"{counted(passed, 'check')} passed" + (f", not configured: {', '.join(idle)}" if idle else "")

    def raise_for_failures(self) -> None:
        """SelfTestError with every failure, if there is one."""
        if self.failures:
            raise SelfTestError(self.url, self.failures)

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready values with ``schema_version``."""
        return {"schema_version": SCHEMA_VERSION, "passed": not self.failures, **asdict(self)}


class NotConfiguredError(Exception):
    """The server does not have what a check looks at; the text says what that is."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Subject:
    """What the checks look at: a server, and what its model answered once."""

    client: Client
    golden: Golden | None


@dataclass(frozen=True, kw_only=True, slots=True)
class Examination:
    """A check before it is run."""

    name: str
    ask: Callable[[Subject], Outcome]
    meaning: str
    remedy: str


def selftest(
    url: str, *, api_key: str | None = None, timeout_s: float = 120.0, golden: Path | None = None
) -> SelfTestReport:
    """Run every check against the server at ``url``; a check that cannot be run has failed.

    ``golden`` is a file of golden decisions to compare with. ConfigError when it cannot be read,
    EngineError 503 when nothing answers at ``url``.
    """
    known = Golden.read(golden) if golden else None
    with Client(url, api_key=api_key, timeout_s=timeout_s) as client:
        client.reach()
        subject = Subject(client=client, golden=known)
        return SelfTestReport(url=client.url, checks=tuple(run_check(subject, one) for one in EXAMINATIONS))


def record_golden(
    url: str, *, api_key: str | None = None, timeout_s: float = 120.0, source: str = ""
) -> Golden:
    """Ask the golden questions at ``url``; EngineError when the server's answers fail the self-test.

    The answers become what later servers are measured by, so nothing wrong may be recorded.
    """
    selftest(url, api_key=api_key, timeout_s=timeout_s).raise_for_failures()
    with Client(url, api_key=api_key, timeout_s=timeout_s) as client:
        build = client.info["build"]
        return Golden(
            model_sha256=client.info["model_sha256"],
            source=source or f"the server of {client.info['model']}, vllm {build['version']}",
            build=GoldenBuild(**{name: build[name] for name in GoldenBuild.model_fields}),
            decisions=tuple(_recorded(client, request) for request in golden_questions()),
        )


def _recorded(client: Client, request: DecideRequest) -> GoldenDecision:
    return GoldenDecision(
        kind=request.kind,
        state=str(request.state),
        question=request.question,
        options=request.options,
        probabilities=client.decide(request).probabilities,
        base_probabilities=_base_probabilities(client, request),
    )


def run_check(subject: Subject, one: Examination) -> Check:
    """Run ``one`` check; never raises for what the server did."""
    try:
        passed, detail = one.ask(subject)
    except NotConfiguredError as reason:
        return _check(one, passed=True, detail=f"not configured: {reason}", configured=False)
    except Error as error:
        return _not_run(one, f"{error.what} ({error.where})", error.next_step)
    except (KeyError, IndexError, TypeError, ValueError) as error:
        return _not_run(one, f"unexpected answer: {error!r}")
    return _check(one, passed=passed, detail=detail)


def _check(one: Examination, *, passed: bool, detail: str, configured: bool = True) -> Check:
    return Check(
        name=one.name,
        passed=passed,
        detail=detail,
        meaning=one.meaning,
        remedy=one.remedy,
        configured=configured,
    )


def _not_run(one: Examination, detail: str, remedy: str = "") -> Check:
    """A check that raised proves nothing of what it looks for, so it does not claim that."""
    return Check(
        name=one.name,
        passed=False,
        detail=detail,
        meaning="the check could not be run",
        remedy=remedy or "look at the engine's log for what happened to the request",
    )


def _kinds(subject: Subject) -> Outcome:
    answers = [(request, subject.client.decide(request)) for request in one_of_each_kind()]
    faults = [f"{request.kind}: {fault}" for request, answer in answers for fault in _faults(request, answer)]
    return not faults, "; ".join(faults) or "noul, score and choice answered"


def _faults(request: DecideRequest, answer: DecideResponse) -> list[str]:
    total = math.fsum(answer.probabilities)
    faults = []
    if tuple(answer.options) != tuple(request.answer_options):
        faults.append(f"options came back as {answer.options}")
    if len(answer.probabilities) != len(answer.options):
        faults.append(f"{len(answer.probabilities)} probabilities for {len(answer.options)} options")
    # Written so that NaN, which compares false with everything, is a fault.
    if not abs(total - 1.0) <= SUM_TOLERANCE:
        faults.append(f"probabilities sum to {total:.6f}")
    if answer.choice != answer.options[answer.choice_index]:
        faults.append(f"choice {answer.choice!r} is not option {answer.choice_index}")
    return faults


def _slots(subject: Subject) -> Outcome:
    client = subject.client
    got = client.logprobs(ADAPTER_NAME, client.prompt(widest_choice()), client.label_ids)
    lost = slot_faults(got, zip(SLOT_LABELS, client.label_ids, strict=True))
    return not lost, "; ".join(lost) or f"all {len(SLOT_LABELS)} slots came back"


def _verbalizers(subject: Subject) -> Outcome:
    served = subject.client.info["head"]["verbalizer_ids"]
    faults = [
        f"slot {slot} reads token {served_id}, but {label!r} is token {label_id}"
        for slot, (label, served_id, label_id) in enumerate(
            zip(SLOT_LABELS, served, subject.client.label_ids, strict=True)
        )
        if served_id != label_id
    ]
    return not faults, "; ".join(faults) or f"all {len(served)} labels are single tokens, in slot order"


def _read_out(subject: Subject) -> Outcome:
    moved = [
        difference
        for request in (*one_of_each_kind(), widest_choice())
        for difference in _read_out_differences(subject.client, request)
    ]
    detail = f"/v1/decide and its own log-probabilities differ by {max(moved):.4f}"
    return max(moved) <= READ_OUT_TOLERANCE, f"{detail} (at most {READ_OUT_TOLERANCE})"


def _read_out_differences(client: Client, request: DecideRequest) -> list[float]:
    """Served probabilities against a read-out of this side, with the head and temperatures that are told."""
    head, temperature = client.info["head"], client.info["temperatures"][request.kind]
    first, _ = KIND_RANGES[request.kind]
    slots = range(first, first + len(request.answer_options))
    ids = [head["verbalizer_ids"][slot] for slot in slots]
    logprobs = client.logprobs(ADAPTER_NAME, client.prompt(request), ids)
    scores = [
        (logprobs[token] + head["bias"][slot]) / temperature for token, slot in zip(ids, slots, strict=True)
    ]
    served = client.decide(request).probabilities
    return [abs(one - other) for one, other in zip(served, softmax(scores), strict=True)]


def _nothing_truncated(subject: Subject) -> Outcome:
    client, request = subject.client, widest_choice()
    ids = client.active_ids(request)
    got = client.logprobs(ADAPTER_NAME, client.prompt(request), ids)
    whole = len(got) == len(ids) and all(math.isfinite(value) for value in got.values())
    try:
        answer = client.decide(request)
    except EngineError as error:
        if whole and "log-probabilities" in error.what:
            return False, f"with sampling pinned every slot comes back, but /v1/decide says: {error.what}"
        raise
    cut = sum(not probability > 0.0 for probability in answer.probabilities)
    if cut:
        return False, f"{cut} of {len(answer.options)} options have probability 0"
    return True, f"all {len(answer.options)} options keep some probability"


def _adapter_moves(subject: Subject) -> Outcome:
    moved = [_distance_nats(subject.client, request) for request in one_of_each_kind()]
    return max(moved) > MOVED_NATS, f"slots move by up to {max(moved):.3f} nats from the base model"


def _distance_nats(client: Client, request: DecideRequest) -> float:
    prompt, slots = client.prompt(request), client.label_ids
    with_adapter = client.logprobs(ADAPTER_NAME, prompt, slots)
    without = client.logprobs(client.base_model, prompt, slots)
    return max(abs(with_adapter[slot] - without[slot]) for slot in slots)


def _base_stays(subject: Subject) -> Outcome:
    client, slots = subject.client, subject.client.label_ids
    prompt, requests = client.prompt(one_of_each_kind()[0]), batch(_width(client), case=_case())
    before = client.logprobs(client.base_model, prompt, slots)
    with ThreadPoolExecutor(len(requests) + BASE_READINGS) as pool:
        traffic = [pool.submit(client.decide, request) for request in requests]
        beside = [
            pool.submit(client.logprobs, client.base_model, prompt, slots) for _ in range(BASE_READINGS)
        ]
        during = [reading.result() for reading in beside]
        for answer in traffic:
            answer.result()
    after = client.logprobs(client.base_model, prompt, slots)
    moved = max(_difference(before, reading) for reading in (*during, after))
    return moved <= BASE_TOLERANCE, f"base probabilities moved by {moved:.4f} (at most {BASE_TOLERANCE})"


def _difference(one: Logprobs, other: Logprobs) -> float:
    return max(abs(math.exp(one[slot]) - math.exp(other[slot])) for slot in one)


def _batch_agrees(subject: Subject) -> Outcome:
    requests = batch(_width(subject.client), case=_case())
    # At once first: read alone, a prompt leaves its prefix in the cache, and the batch would read the rest.
    together = [answer.probabilities for answer in at_once(subject.client.decide, requests)]
    alone = [subject.client.decide(request).probabilities for request in requests]
    found = distance(together, alone)
    return found.within(BATCH_TOLERANCE), (
        f"{found.count} decisions, as many as the server batches, at once and alone differ by "
        f"{_told(found.mean, found.largest, BATCH_TOLERANCE)}"
    )


def _told(mean: float, largest: float, bound: Tolerance) -> str:
    return f"{mean:.4f} in the mean and {largest:.4f} at most (bounds {bound.mean:g} and {bound.largest:g})"


def _width(client: Client) -> int:
    return int(client.info["engine"]["max_num_seqs"])


def _case() -> int:
    """A number that no earlier run had, so that its prompts are in no cache."""
    return time.time_ns() // 1000 % 10**9


def _draft_agrees(subject: Subject) -> Outcome:
    client = subject.client
    draft = client.info["engine"]["draft"]
    if draft is None:
        raise NotConfiguredError("the engine has no draft model")
    moved = max(_moved_beside_drafts(client), _moved_between_steps(client))
    detail = f"readings with draft {draft['method']} differ by {moved:.4f} from those without drafted tokens"
    return moved <= BATCH_TOLERANCE.largest, f"{detail} (at most {BATCH_TOLERANCE.largest})"


def _moved_beside_drafts(client: Client) -> float:
    """How far decisions move while the base model writes, which is when the draft runs."""
    requests = one_of_each_kind()
    alone = [client.decide(request).probabilities for request in requests]
    prompt = client.prompt(requests[0])
    with ThreadPoolExecutor(DRAFT_STREAMS) as pool:
        writing = [
            pool.submit(client.generate, client.base_model, prompt, count=DRAFT_TOKENS)
            for _ in range(DRAFT_STREAMS)
        ]
        moved = [_distance_from(client, requests, alone)]
        # A decision that came before the first token, or after the last, would show nothing.
        while not all(stream.done() for stream in writing):
            moved.append(_distance_from(client, requests, alone))
        for stream in writing:
            stream.result()
    return max(moved)


def _distance_from(
    client: Client, requests: Sequence[DecideRequest], alone: Sequence[Sequence[float]]
) -> float:
    return distance([client.decide(request).probabilities for request in requests], alone).largest


def _moved_between_steps(client: Client) -> float:
    """How far the log-probabilities of written tokens are from those of one reading of the same prefix."""
    slots, prompt = client.label_ids, client.prompt(one_of_each_kind()[0])
    written = client.steps(client.base_model, prompt, slots, count=DRAFT_STEPS)
    moved = []
    for token, logprobs in written:
        moved.append(_difference(logprobs, client.logprobs(client.base_model, prompt, slots)))
        prompt = [*prompt, token]
    return max(moved)


def _golden_model(subject: Subject) -> Outcome:
    golden = _known(subject)
    served = subject.client.info["model_sha256"]
    if served != golden.model_sha256:
        return False, f"the decisions are of model {golden.model_sha256}, the server serves {served}"
    return True, f"model {served[:16]}…, answers of {golden.source}"


def _known(subject: Subject) -> Golden:
    if subject.golden is None:
        raise NotConfiguredError("no golden decisions were given")
    return subject.golden


def _compared(subject: Subject) -> Golden:
    golden = _known(subject)
    if subject.client.info["model_sha256"] != golden.model_sha256:
        raise NotConfiguredError("the golden decisions are of another model")
    return golden


def _golden_decisions(subject: Subject) -> Outcome:
    golden = _compared(subject)
    found = [subject.client.decide(decision.request).probabilities for decision in golden.decisions]
    return _judged(found, [decision.probabilities for decision in golden.decisions], golden)


def _golden_base(subject: Subject) -> Outcome:
    golden = _compared(subject)
    pairs = [
        (_base_probabilities(subject.client, decision.request), decision.base_probabilities)
        for decision in golden.decisions
        if decision.base_probabilities is not None
    ]
    if not pairs:
        raise NotConfiguredError("the golden decisions hold none of the base model")
    found, expected = zip(*pairs, strict=True)
    return _judged(found, expected, golden)


def _base_probabilities(client: Client, request: DecideRequest) -> tuple[float, ...]:
    """What the base model alone says on the slots of ``request``, in option order."""
    ids = client.active_ids(request)
    logprobs = client.logprobs(client.base_model, client.prompt(request), ids)
    return softmax([logprobs[token] for token in ids])


def _judged(found: Sequence[Sequence[float]], expected: Sequence[Sequence[float]], golden: Golden) -> Outcome:
    far = distance(found, expected)
    worst = golden.decisions[far.worst]
    return far.within(golden.tolerance), (
        f"{far.count} decisions differ by {_told(far.mean, far.largest, golden.tolerance)}; "
        f"farthest: {worst.kind}, {worst.question!r}"
    )


_PATCHES = "`decideploy doctor` checks the patches; report it with the engine's log"

EXAMINATIONS: Final = (
    Examination(
        name="kinds",
        ask=_kinds,
        meaning="a kind of decision does not answer, or not with a distribution over its options",
        remedy="look at the engine's log; `decideploy verify MODEL` checks head and calibration",
    ),
    Examination(
        name="slots",
        ask=_slots,
        meaning="the engine does not return every slot's log-probability",
        remedy="start with `decideploy serve`, which sets --logprobs-mode processed_logprobs "
        "and --max-logprobs",
    ),
    Examination(
        name="verbalizers",
        ask=_verbalizers,
        meaning="slots are read from tokens that are not their labels: answers belong to other options",
        remedy="use head and tokenizer of one revision; `decideploy verify MODEL` compares them",
    ),
    Examination(
        name="not-truncated",
        ask=_nothing_truncated,
        meaning="sampling defaults of generation_config.json cut options off",
        remedy="the server in front of the engine must pin top_k 0 and top_p 1: "
        "serve with this release's routes",
    ),
    Examination(
        name="read-out",
        ask=_read_out,
        meaning="the server's answer is not what its head and temperatures make of its log-probabilities",
        remedy="the server reads with other files or another template than it tells: "
        "start it anew with `decideploy serve`",
    ),
    Examination(
        name="adapter-moves",
        ask=_adapter_moves,
        meaning="the System 1 adapter is loaded but has no effect: decisions are the base model's",
        remedy="`decideploy verify MODEL` accounts for every adapter tensor; "
        "`decideploy doctor` checks the patches",
    ),
    Examination(
        name="base-stays",
        ask=_base_stays,
        meaning="System 1 traffic changes the base model's answers",
        remedy=_PATCHES,
    ),
    Examination(
        name="batch-agrees",
        ask=_batch_agrees,
        meaning="answers depend on what else is in the batch",
        remedy=_PATCHES,
    ),
    Examination(
        name="draft-agrees",
        ask=_draft_agrees,
        meaning="readings change when the draft model runs",
        remedy="start the engine without --speculative-config; report it with the engine's log",
    ),
    Examination(
        name="golden-model",
        ask=_golden_model,
        meaning="the golden decisions are of another model than the one served",
        remedy="serve the model that they were recorded for, or record new ones with "
        "`decideploy selftest --record FILE` once you trust this model",
    ),
    Examination(
        name="golden-decisions",
        ask=_golden_decisions,
        meaning="decisions are not those that were recorded for this very model",
        remedy="`decideploy verify MODEL --deep` checks adapter, K=V copies and weights; "
        "`decideploy doctor` checks the build",
    ),
    Examination(
        name="golden-base",
        ask=_golden_base,
        meaning="the base model's answers are not those that were recorded for this very model",
        remedy="`decideploy verify MODEL --deep` checks the weights; `decideploy doctor` checks the patches",
    ),
)


def print_selftest(report: SelfTestReport, console: Console | None = None) -> None:
    """Print one row a check, and what failures mean."""
    console = console or Console()
    table = Table("check", "result", "detail", title=f"Self-test of {report.url}")
    for check in report.checks:
        table.add_row(check.name, _result(check), escape(check.detail))
    console.print(table)
    for check in report.failures:
        console.print(
            f"{check.name}: {check.meaning}\n  next:  {check.remedy}", markup=False, highlight=False
        )


def _result(check: Check) -> str:
    if not check.configured:
        return "[yellow]not run[/]"
    return "[green]passed[/]" if check.passed else "[red]failed[/]"
