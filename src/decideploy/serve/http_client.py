"""The questions that the self-test puts to one server, over HTTP as any client would."""

from __future__ import annotations

import itertools
import random
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from http import HTTPStatus
from typing import Any, Self, TypeVar

import httpx

from decideploy.decide import DecideRequest, DecideResponse, render
from decideploy.decide.client import INFO_PATH, PATIENT, endpoint_of, headers, pause_s, read_reply
from decideploy.decide.client import PATH as DECIDE_PATH
from decideploy.decide.slots import KIND_RANGES, SLOT_LABELS
from decideploy.errors import EngineError

Asked = TypeVar("Asked")
Answer = TypeVar("Answer")
Logprobs = Mapping[int, float]


class Client:
    """A context manager; every method raises EngineError when the server does not answer as it must.

    ``timeout_s`` bounds each answer, and how long a server that is too busy (429) is asked again.
    """

    def __init__(self, url: str, *, api_key: str | None = None, timeout_s: float = 120.0) -> None:
        self.url = endpoint_of(url, "")
        self._timeout_s = timeout_s
        # As many connections as decisions at once: a pool of fewer would make a narrower batch.
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=None)
        self._http = httpx.Client(
            base_url=self.url,
            headers=headers(api_key),
            timeout=timeout_s,
            trust_env=False,
            limits=limits,
            # Reading the certificate authorities takes longer than a check; plain HTTP needs none.
            verify=not self.url.startswith("http://"),
        )

    def close(self) -> None:
        """Close the connections."""
        self._http.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exception: object) -> None:
        self.close()

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
        body = request.model_dump(mode="json", exclude_none=True, exclude_defaults=True)
        return read_reply(self._send("POST", DECIDE_PATH, body), f"{self.url}{DECIDE_PATH}")

    @cached_property
    def info(self) -> Mapping[str, Any]:
        """What ``/v1/decide/info`` tells; KeyError on a field says that the server is of another release."""
        told: Mapping[str, Any] = self._json("GET", INFO_PATH)
        return told

    @cached_property
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

    @cached_property
    def label_ids(self) -> tuple[int, ...]:
        """Token ids of the 24 slot labels, in slot order; EngineError when one is not a single token."""
        tokens = [self.tokens(label, special=False) for label in SLOT_LABELS]
        split = [label for label, ids in zip(SLOT_LABELS, tokens, strict=True) if len(ids) != 1]
        if split:
            raise EngineError(
                f"labels {split} are not single tokens of the served tokenizer", status=502, where=self.url
            )
        return tuple(ids[0] for ids in tokens)

    def prompt(self, request: DecideRequest) -> list[int]:
        """The token ids that ``request`` is read with."""
        return self.tokens(render(request), special=True)

    def active_ids(self, request: DecideRequest) -> tuple[int, ...]:
        """The labels' token ids for the slots of ``request``, in option order."""
        first, _ = KIND_RANGES[request.kind]
        return self.label_ids[first : first + len(request.answer_options)]

    def logprobs(self, model: str, prompt: Sequence[int], allowed: Sequence[int]) -> Logprobs:
        """Log-probabilities (nats) of ``allowed`` as ``model``'s next token, as far as they came back."""
        return self.steps(model, prompt, allowed, count=1)[0][1]

    def steps(
        self, model: str, prompt: Sequence[int], allowed: Sequence[int], *, count: int
    ) -> list[tuple[int, Logprobs]]:
        """``count`` tokens out of ``allowed``, each with the log-probabilities that it was drawn from.

        Every setting that could reshape the distribution is sent; what is left out would be filled from
        the model's generation_config.json.
        """
        body = {
            "model": model,
            "prompt": list(prompt),
            "max_tokens": count,
            "ignore_eos": True,
            "temperature": 1.0,
            "top_k": 0,
            "top_p": 1.0,
            "min_p": 0.0,
            "repetition_penalty": 1.0,
            "allowed_token_ids": list(allowed),
            "logprobs": len(allowed),
            "return_tokens_as_token_ids": True,
        }
        told = self._json("POST", "/v1/completions", body)["choices"][0]["logprobs"]
        if not told:
            return [(-1, {})]
        tokens = map(_token_id, told["tokens"])
        return [(token, _by_id(row)) for token, row in zip(tokens, told["top_logprobs"], strict=True)]

    def generate(self, model: str, prompt: Sequence[int], *, count: int) -> None:
        """Let ``model`` write ``count`` tokens of its own."""
        body = {"model": model, "prompt": list(prompt), "max_tokens": count, "ignore_eos": True}
        self._json("POST", "/v1/completions", body)

    def _json(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> Any:
        reply = self._send(method, path, body)
        if reply.is_error:
            what = f"HTTP {reply.status_code}: {reply.text[:300]}"
            raise EngineError(what, status=502, where=f"{self.url}{path}")
        return reply.json()

    def _send(self, method: str, path: str, body: Mapping[str, Any] | None) -> httpx.Response:
        """The reply; a full queue (429) says nothing of the answers and is asked again while time is left."""
        give_up = time.monotonic() + self._timeout_s
        for attempt in itertools.count(1):
            reply = self._send_once(method, path, body)
            if reply.status_code != HTTPStatus.TOO_MANY_REQUESTS:
                break
            wait_s = spread_pause_s(reply.headers.get("retry-after"), attempt)
            if time.monotonic() + wait_s > give_up:
                break
            time.sleep(wait_s)
        return reply

    def _send_once(self, method: str, path: str, body: Mapping[str, Any] | None) -> httpx.Response:
        try:
            return self._http.request(method, path, json=body)
        except httpx.TimeoutException as error:
            raise EngineError("no answer in time", status=504, where=f"{self.url}{path}") from error
        except httpx.HTTPError as error:
            raise EngineError(f"no answer: {error}", where=f"{self.url}{path}") from error


def spread_pause_s(retry_after: str | None, attempt: int) -> float:
    """Seconds from what the server told to half as much again, so that a batch does not come back as one."""
    return pause_s(retry_after, attempt, PATIENT) * random.uniform(1.0, 1.5)


def _token_id(token: str) -> int:
    return int(token.removeprefix("token_id:"))


def _by_id(row: Mapping[str, float]) -> dict[int, float]:
    return {_token_id(token): float(value) for token, value in row.items()}


def at_once(ask: Callable[[Asked], Answer], asked: Iterable[Asked]) -> list[Answer]:
    """The answers to all of ``asked``, every question sent before the first answer is waited for."""
    questions = list(asked)
    with ThreadPoolExecutor(len(questions)) as pool:
        return list(pool.map(ask, questions))
