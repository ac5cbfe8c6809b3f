"""Prove over HTTP that a running server answers rightly, not only that it answers."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from typing import Any

import httpx
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from decideploy.decide import ADAPTER_NAME, DecideRequest, DecideResponse, render
from decideploy.decide.client import PATH as DECIDE_PATH
from decideploy.decide.client import read_reply
from decideploy.decide.slots import SLOT_LABELS
from decideploy.errors import Diagnostic, EngineError, Error
from decideploy.serve.questions import batch, one_of_each_kind, widest_choice

SCHEMA_VERSION = 1

# Batching changes the order of bf16 sums, which moves less than this; a wrong LoRA index moves much more.
_BATCH_TOLERANCE = 0.05
_BASE_TOLERANCE = 0.02
# Adapter and base differ by whole nats; identical weights differ by nothing at all.
_MOVED_NATS = 0.05
_SUM_TOLERANCE = 1e-3
_CONCURRENCY = 16


@dataclass(frozen=True, kw_only=True, slots=True)
class Check:
    """One check: what was seen, what a failure means and what to do then."""

    name: str
    passed: bool
    detail: str
    meaning: str
    remedy: str


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
    """Every check of one run."""

    url: str
    checks: tuple[Check, ...]

    @property
    def failures(self) -> tuple[Check, ...]:
        """The checks that failed."""
        return tuple(check for check in self.checks if not check.passed)

    def raise_for_failures(self) -> None:
        """SelfTestError with every failure, if there is one."""
        if self.failures:
            raise SelfTestError(self.url, self.failures)

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready values with ``schema_version``."""
        return {"schema_version": SCHEMA_VERSION, "passed": not self.failures, **asdict(self)}


class Client:
    """The questions that the checks put to one server."""

    def __init__(self, url: str, *, api_key: str | None = None, timeout_s: float = 120.0) -> None:
        self.url = url.rstrip("/").removesuffix("/v1")
        headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        self._http = httpx.Client(base_url=self.url, headers=headers, timeout=timeout_s, trust_env=False)

    def close(self) -> None:
        """Close the connections."""
        self._http.close()

    def reach(self) -> None:
        """EngineError 503 unless something answers, whatever it says."""
        try:
            self._send("GET", "/health", None)
        except EngineError as error:
            raise EngineError(
                f"the server cannot be reached: {error.what}",
                where=self.url,
                next_step="check that `decideploy serve` says ready there, or give its address with --url",
            ) from error

    def decide(self, request: DecideRequest) -> DecideResponse:
        """One answer of ``/v1/decide``."""
        body = request.model_dump(mode="json", exclude_none=True)
        return read_reply(self._send("POST", DECIDE_PATH, body), f"{self.url}{DECIDE_PATH}")

    def base_model(self) -> str:
        """The base model's served name."""
        names = [entry["id"] for entry in self._json("GET", "/v1/models")["data"] if not entry.get("parent")]
        if not names:
            raise EngineError("/v1/models lists no base model", status=502, where=self.url)
        return str(names[0])

    def tokens(self, text: str, *, special: bool) -> list[int]:
        """``text`` as the server's tokenizer reads it, with BOS when ``special``."""
        body = {"prompt": text, "add_special_tokens": special}
        return [int(token) for token in self._json("POST", "/tokenize", body)["tokens"]]

    def slot_logprobs(self, model: str, prompt: list[int], slots: list[int]) -> Mapping[int, float]:
        """Log-probabilities (nats) of ``slots`` as the next token of ``model``, as far as they came back."""
        body = {
            "model": model,
            "prompt": prompt,
            "max_tokens": 1,
            "temperature": 1.0,
            "top_k": 0,
            "top_p": 1.0,
            "allowed_token_ids": slots,
            "logprobs": len(slots),
            "return_tokens_as_token_ids": True,
        }
        logprobs = self._json("POST", "/v1/completions", body)["choices"][0]["logprobs"]
        entries = logprobs["top_logprobs"][0] if logprobs else {}
        return {int(key.removeprefix("token_id:")): float(value) for key, value in entries.items()}

    def _json(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> Any:
        reply = self._send(method, path, body)
        if reply.is_error:
            what = f"HTTP {reply.status_code}: {reply.text[:300]}"
            raise EngineError(what, status=502, where=f"{self.url}{path}")
        return reply.json()

    def _send(self, method: str, path: str, body: Mapping[str, Any] | None) -> httpx.Response:
        try:
            return self._http.request(method, path, json=body)
        except httpx.TimeoutException as error:
            raise EngineError("no answer in time", status=504, where=f"{self.url}{path}") from error
        except httpx.HTTPError as error:
            raise EngineError(f"no answer: {error}", where=f"{self.url}{path}") from error


def selftest(url: str, *, api_key: str | None = None, timeout_s: float = 120.0) -> SelfTestReport:
    """Run every check against the server at ``url``; a check that cannot be run has failed.

    EngineError 503 when nothing answers at ``url``.
    """
    client = Client(url, api_key=api_key, timeout_s=timeout_s)
    try:
        client.reach()
        return SelfTestReport(url=client.url, checks=tuple(_run(client, *row) for row in _CHECKS))
    finally:
        client.close()


def _run(
    client: Client, name: str, check: Callable[[Client], tuple[bool, str]], meaning: str, remedy: str
) -> Check:
    try:
        passed, detail = check(client)
    except Error as error:
        return _not_run(name, f"{error.what} ({error.where})", error.next_step)
    except (KeyError, IndexError, TypeError, ValueError) as error:
        return _not_run(name, f"unexpected answer: {error!r}")
    return Check(name=name, passed=passed, detail=detail, meaning=meaning, remedy=remedy)


def _not_run(name: str, detail: str, remedy: str = "") -> Check:
    """A check that raised proves nothing of what it looks for, so it does not claim that."""
    return Check(
        name=name,
        passed=False,
        detail=detail,
        meaning="the check could not be run",
        remedy=remedy or "look at the engine's log for what happened to the request",
    )


def _kinds(client: Client) -> tuple[bool, str]:
    answers = [(request, client.decide(request)) for request in one_of_each_kind()]
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
    if not abs(total - 1.0) <= _SUM_TOLERANCE:
        faults.append(f"probabilities sum to {total:.6f}")
    if answer.choice != answer.options[answer.choice_index]:
        faults.append(f"choice {answer.choice!r} is not option {answer.choice_index}")
    return faults


def _slots(client: Client) -> tuple[bool, str]:
    slots = _slot_ids(client)
    prompt = client.tokens(render(widest_choice()), special=True)
    got = client.slot_logprobs(ADAPTER_NAME, prompt, slots)
    lost = [
        label
        for label, slot in zip(SLOT_LABELS, slots, strict=True)
        if not math.isfinite(got.get(slot, math.nan))
    ]
    placeholders = [
        label for label, slot in zip(SLOT_LABELS, slots, strict=True) if got.get(slot, 0.0) <= -9000
    ]
    if lost or placeholders:
        return False, f"missing: {lost or 'none'}; placeholders: {placeholders or 'none'}"
    return True, f"all {len(slots)} slots came back"


def _slot_ids(client: Client) -> list[int]:
    tokens = [client.tokens(label, special=False) for label in SLOT_LABELS]
    split = [label for label, ids in zip(SLOT_LABELS, tokens, strict=True) if len(ids) != 1]
    if split:
        raise EngineError(
            f"labels {split} are not single tokens of the served tokenizer", status=502, where=client.url
        )
    return [ids[0] for ids in tokens]


def _adapter_moves(client: Client) -> tuple[bool, str]:
    slots, base = _slot_ids(client), client.base_model()
    moved = [_distance_nats(client, base, request, slots) for request in one_of_each_kind()]
    return max(moved) > _MOVED_NATS, f"slots move by up to {max(moved):.3f} nats from the base model"


def _distance_nats(client: Client, base: str, request: DecideRequest, slots: list[int]) -> float:
    prompt = client.tokens(render(request), special=True)
    with_adapter = client.slot_logprobs(ADAPTER_NAME, prompt, slots)
    without = client.slot_logprobs(base, prompt, slots)
    return max(abs(with_adapter[slot] - without[slot]) for slot in slots)


def _base_stays(client: Client) -> tuple[bool, str]:
    slots, base = _slot_ids(client), client.base_model()
    prompt = client.tokens(render(one_of_each_kind()[0]), special=True)
    before = client.slot_logprobs(base, prompt, slots)
    with ThreadPoolExecutor(_CONCURRENCY) as pool:
        traffic = [pool.submit(client.decide, request) for request in batch()]
        during = pool.submit(client.slot_logprobs, base, prompt, slots).result()
        for answer in traffic:
            answer.result()
    after = client.slot_logprobs(base, prompt, slots)
    moved = max(_difference(before, during), _difference(before, after))
    return moved <= _BASE_TOLERANCE, f"base probabilities moved by {moved:.4f} (at most {_BASE_TOLERANCE})"


def _difference(one: Mapping[int, float], other: Mapping[int, float]) -> float:
    return max(abs(math.exp(one[slot]) - math.exp(other[slot])) for slot in one)


def _batch_agrees(client: Client) -> tuple[bool, str]:
    requests = batch()
    alone = [client.decide(request).probabilities for request in requests]
    with ThreadPoolExecutor(_CONCURRENCY) as pool:
        together = [answer.probabilities for answer in pool.map(client.decide, requests)]
    moved = max(
        abs(a - b)
        for one, other in zip(alone, together, strict=True)
        for a, b in zip(one, other, strict=True)
    )
    detail = f"{len(requests)} decisions alone and at once differ by {moved:.4f} (at most {_BATCH_TOLERANCE})"
    return moved <= _BATCH_TOLERANCE, detail


def _nothing_truncated(client: Client) -> tuple[bool, str]:
    answer = client.decide(widest_choice())
    cut = [o for o, p in zip(answer.options, answer.probabilities, strict=True) if not p > 0.0]
    if cut:
        return False, f"{len(cut)} of {len(answer.options)} options have probability 0"
    return True, f"all {len(answer.options)} options keep some probability"


_CHECKS: tuple[tuple[str, Callable[[Client], tuple[bool, str]], str, str], ...] = (
    (
        "kinds",
        _kinds,
        "a kind of decision does not answer, or not with a distribution over its options",
        "look at the engine's log; `decideploy verify MODEL` checks head and calibration",
    ),
    (
        "slots",
        _slots,
        "the engine does not return every slot's log-probability",
        "start with `decideploy serve`, which sets --logprobs-mode processed_logprobs and --max-logprobs",
    ),
    (
        "adapter-moves",
        _adapter_moves,
        "the System 1 adapter is loaded but has no effect: decisions are the base model's",
        "`decideploy verify MODEL` accounts for every adapter tensor; `decideploy doctor` checks the patches",
    ),
    (
        "base-stays",
        _base_stays,
        "System 1 traffic changes the base model's answers",
        "`decideploy doctor` checks the patches; report it with the engine's log",
    ),
    (
        "batch-agrees",
        _batch_agrees,
        "answers depend on what else is in the batch",
        "`decideploy doctor` checks the patches; report it with the engine's log",
    ),
    (
        "not-truncated",
        _nothing_truncated,
        "sampling defaults of generation_config.json cut options off",
        "the server in front of the engine must pin top_k 0 and top_p 1: serve with this release's routes",
    ),
)


def print_selftest(report: SelfTestReport, console: Console | None = None) -> None:
    """Print one row a check, and what failures mean."""
    console = console or Console()
    table = Table("check", "result", "detail", title=f"Self-test of {report.url}")
    for check in report.checks:
        result = "[green]passed[/]" if check.passed else "[red]failed[/]"
        table.add_row(check.name, result, escape(check.detail))
    console.print(table)
    for check in report.failures:
        console.print(
            f"{check.name}: {check.meaning}\n  next:  {check.remedy}", markup=False, highlight=False
        )
