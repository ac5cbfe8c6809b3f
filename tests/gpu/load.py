"""Closed-loop clients of ``/v1/decide``, and prompts of an exact length in tokens."""

import http.client
import json
import random
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from threading import local

import numpy as np
from decisions import ADJECTIVES, NOUNS, Decision, bare_prompt

from decideploy.decide import PromptEncoder

QUESTION = "Is the parcel late?"
NOUL = ("false", "true")


@dataclass(frozen=True)
class Times:
    """Seconds of each request, and of all of them together."""

    seconds: np.ndarray
    wall_s: float

    @property
    def rate(self) -> float:
        return len(self.seconds) / self.wall_s

    def ms(self, quantile: float) -> float:
        return float(np.quantile(self.seconds, quantile)) * 1000

    def __str__(self) -> str:
        return (
            f"p50 {self.ms(0.5):6.1f} ms  p90 {self.ms(0.9):6.1f}  p99 {self.ms(0.99):6.1f}  "
            f"max {self.ms(1):6.1f}  {self.rate:6.1f}/s  n={len(self.seconds)}"
        )


class Prompts:
    """Bodies whose prompt has exactly the asked number of tokens; they part ways at the second word."""

    def __init__(self, model: Path, seed: int = 0) -> None:
        self._encoder = PromptEncoder.from_model(model)
        self._rng = random.Random(seed)
        first, *others = sorted({*NOUNS, *ADJECTIVES})
        self._first, self._frame = first, self._count(first)
        self._words = [word for word in others if self._count(f"{first} {word}") == self._frame + 1]
        assert len(self._words) > 20, "the tokenizer knows too few words"

    def _count(self, state: str) -> int:
        decision = Decision(kind="noul", state=state, question=QUESTION, options=NOUL)
        return len(self._encoder.encode(bare_prompt(decision)))

    def body(self, tokens: int) -> bytes:
        words = self._rng.choices(self._words, k=tokens - self._frame)
        fields = {"kind": "noul", "state": " ".join((self._first, *words)), "question": QUESTION}
        return json.dumps(fields).encode()


def closed_loop(url: str, bodies: list[bytes], clients: int) -> tuple[Times, list[dict]]:
    """Ask all ``bodies`` with ``clients`` at once, each on a connection that stays open.

    An answer has its ``status`` beside the body's fields.
    """
    host, port = url.removeprefix("http://").split(":")
    own = local()

    def ask(body: bytes) -> tuple[float, dict]:
        if not hasattr(own, "connection"):
            own.connection = http.client.HTTPConnection(host, int(port), timeout=300)
        begin = time.perf_counter()
        own.connection.request("POST", "/v1/decide", body, {"Content-Type": "application/json"})
        reply = own.connection.getresponse()
        content = reply.read()
        seconds = time.perf_counter() - begin
        return seconds, {"status": reply.status, **json.loads(content)}

    with ThreadPoolExecutor(clients) as pool:
        begin = time.perf_counter()
        answers = list(pool.map(ask, bodies))
        wall_s = time.perf_counter() - begin
    return Times(np.array([seconds for seconds, _ in answers]), wall_s), [answer for _, answer in answers]
