"""Mixed load with hostile clients against a running server, and what must hold under it.

python tests/integration/soak.py URL [--seconds 600] [--clients 64] [--pid PID]

Good questions are compared with their answers alone, asked before the load. Prints one JSON document; exits 1
when an answer was wrong, a status was not among those declared, or memory grew.
"""

import argparse
import asyncio
import json
import random
import sys
import time
from collections import Counter
from dataclasses import dataclass, field

import httpx
import numpy as np
import psutil

from decideploy.api.json_body import MAX_BODY_BYTES

# bf16 sums in another order; see the parity test.
TOLERANCE = 0.06
# A tenth of an hour of this growth is less than the size of one large body.
MAX_GROWTH_BYTES_PER_S = 128 * 1024
PNG_CUT_SHORT = "data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAAAEAAAAB"

QUESTIONS = [
    {"kind": "noul", "state": "The parcel came two weeks late.", "question": "Is the customer served well?"},
    {"kind": "score", "state": {"order": 17, "late_days": 14}, "question": "How urgent is it?"},
    {
        "kind": "choice",
        "state": ["The box was torn.", {"text": "The lamp works."}],
        "question": "What should we offer?",
        "options": ["an apology", "a refund", "a replacement"],
    },
    {
        "kind": "choice",
        "state": "A letter about a bill.",
        "question": "Which department?",
        "options": [f"department {number}" for number in range(40)],
    },
]
SYSTEM_ONE = {
    "state": "The parcel came two weeks late.",
    "questions": {"late": {"type": "noul", "instructions": "Is it late?"}},
}


@dataclass
class Outcome:
    """What happened so far."""

    statuses: Counter = field(default_factory=Counter)
    undeclared: list = field(default_factory=list)
    wrong: list = field(default_factory=list)
    largest_difference: float = 0.0
    compared: int = 0
    memory: list = field(default_factory=list)


class Soak:
    """``clients`` at once, each drawing one action after another until the time is over."""

    def __init__(self, url, *, seconds, clients, pid, seed):
        self.url, self.seconds, self.clients, self.pid = url, seconds, clients, pid
        self.random = random.Random(seed)
        self.outcome = Outcome()
        self.alone = []

    async def run(self):
        limits = httpx.Limits(max_connections=None, keepalive_expiry=1)
        async with httpx.AsyncClient(base_url=self.url, timeout=120, limits=limits) as self.http:
            self.model = (await self.http.get("/v1/decide/info")).json()["model"]
            self.alone = [(await self.http.post("/v1/decide", json=body)).json() for body in QUESTIONS]
            self.ends = time.monotonic() + self.seconds
            await asyncio.gather(self.watch_memory(), *(self.client() for _ in range(self.clients)))
        return self.summary()

    async def client(self):
        actions = (
            [self.good] * 8 + [self.leaves] * 3 + [self.bad_json, self.bad_image, self.large, self.dialect]
        )
        while time.monotonic() < self.ends:
            await self.random.choice(actions)()

    async def good(self):
        number = self.random.randrange(len(QUESTIONS))
        reply = await self.post("good", "/v1/decide", {200, 429, 503}, json=QUESTIONS[number])
        if reply is not None and reply.status_code == 200:
            self.compare(number, reply.json()["probabilities"])

    def compare(self, number, probabilities):
        expected = self.alone[number]["probabilities"]
        difference = max(abs(a - b) for a, b in zip(probabilities, expected, strict=True))
        self.outcome.compared += 1
        self.outcome.largest_difference = max(difference, self.outcome.largest_difference)
        if not difference <= TOLERANCE:
            self.outcome.wrong.append({"question": number, "difference": difference})

    async def leaves(self):
        """Ask, and go away before the answer."""
        body = self.random.choice(QUESTIONS)
        try:
            async with asyncio.timeout(self.random.uniform(0.0, 0.5)):
                await self.http.post("/v1/decide", json=body)
        except TimeoutError:
            self.outcome.statuses["left"] += 1

    async def bad_json(self):
        text = json.dumps(self.random.choice(QUESTIONS))
        cut = text[: self.random.randrange(len(text))]
        headers = {"content-type": "application/json"}
        await self.post("bad json", "/v1/decide", {400, 429, 503}, content=cut, headers=headers)

    async def bad_image(self):
        url = self.random.choice([PNG_CUT_SHORT, "data:,", "https://127.0.0.1/a.png", "file:///etc/passwd"])
        body = {**QUESTIONS[0], "state": ["look:", {"image": url}]}
        await self.post("bad image", "/v1/decide", {422, 429, 503}, json=body)

    async def large(self):
        """A body that is larger than the server reads, or a text longer than the model does."""
        if self.random.random() < 0.5:
            headers, body = {"content-type": "application/json"}, b" " * (MAX_BODY_BYTES + 1)
            await self.post("large", "/v1/decide", {413, 429, 503}, content=body, headers=headers)
        else:
            body = {**QUESTIONS[0], "state": "x" * 2_000_000}
            await self.post("long", "/v1/decide", {400, 429, 503}, json=body)

    async def dialect(self):
        body = {"model": self.model, **SYSTEM_ONE}
        await self.post("systemone", "/v1/systemone", {200, 429, 503}, json=body)

    async def post(self, action, path, declared, **request):
        try:
            reply = await self.http.post(path, **request)
        except (httpx.TransportError, httpx.LocalProtocolError) as error:
            # A refused large body may close the connection while it is still being sent.
            self.outcome.statuses[f"{action}: {type(error).__name__}"] += 1
            return None
        self.outcome.statuses[f"{action}: {reply.status_code}"] += 1
        if reply.status_code not in declared:
            self.outcome.undeclared.append(
                {"action": action, "status": reply.status_code, "body": reply.text[:200]}
            )
        return reply

    async def watch_memory(self):
        while self.pid and time.monotonic() < self.ends:
            self.outcome.memory.append((time.monotonic(), resident_bytes(self.pid)))
            await asyncio.sleep(2)

    def summary(self):
        outcome, growth = self.outcome, growth_bytes_per_s(self.outcome.memory)
        grew = sum(growth.values()) > MAX_GROWTH_BYTES_PER_S
        failed = outcome.undeclared or outcome.wrong or not outcome.compared or grew
        return {
            "passed": not failed,
            "seconds": self.seconds,
            "clients": self.clients,
            "statuses": dict(sorted(outcome.statuses.items())),
            "undeclared": outcome.undeclared[:10],
            "wrong": outcome.wrong[:10],
            "compared": outcome.compared,
            "largest_difference": outcome.largest_difference,
            "memory_bytes": [sizes for _, sizes in (outcome.memory[:1] + outcome.memory[-1:])],
            "growth_bytes_per_s": growth,
        }


def resident_bytes(pid):
    """The resident memory of a process and all that it started, by name."""
    process = psutil.Process(pid)
    sizes = Counter()
    for one in [process, *process.children(recursive=True)]:
        sizes[one.name()] += one.memory_info().rss
    return dict(sizes)


def growth_bytes_per_s(memory):
    """By process, the slope of a line through the second half: the first is warm-up. None of too little."""
    half = memory[len(memory) // 2 :]
    if len(half) <= 10:
        return {}
    times = np.array([at for at, _ in half])
    names = sorted({name for _, sizes in half for name in sizes})
    return {
        name: float(np.polyfit(times, [float(sizes.get(name, 0)) for _, sizes in half], 1)[0])
        for name in names
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("url")
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--pid", type=int, help="of `decideploy serve`, to watch its memory")
    parser.add_argument("--seed", type=int, default=0)
    options = vars(parser.parse_args())
    summary = asyncio.run(Soak(options.pop("url"), **options).run())
    print(json.dumps(summary, indent=1))
    return 0 if summary["passed"] else 1


if __name__ == "__main__":
    sys.exit(main())
