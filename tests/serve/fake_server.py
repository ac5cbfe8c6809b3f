"""A stand-in for a served model that answers the routes of the self-test, with one fault when told.

python fake_server.py PORT [FAULT]
"""

import http.server
import json
import math
import signal
import sys
import threading
import time

SLOTS = list(range(100, 124))
LABELS = ["false", "true", *"012345", *"ABCDEFGHIJKLMNOP"]
FIRST = {"noul": 0, "score": 2, "choice": 8}
BIAS = [0.1 * (slot % 3) for slot in range(24)]
TEMPERATURES = {"noul": 1.25, "score": 0.8, "choice": 1.0}
MODEL_SHA256 = "a" * 64
BUILD = {"version": "0.30.0+test", "recipe": "cpu", "files_sha256": "b" * 64, "patches": []}
CROWD = 12


class Server(http.server.ThreadingHTTPServer):
    """``crowd`` counts the decisions being answered now."""

    daemon_threads = True
    request_queue_size = 64

    def __init__(self, port: int, fault: str, host: str = "127.0.0.1") -> None:
        super().__init__((host, port), Routes)
        self.fault = fault
        self.crowd = 0
        self.posts = 0
        self.crowded = False
        self.writing = False
        self.decided_beside = threading.Event()
        self.lock = threading.Lock()
        self.readiness: dict[str, object] = {"phase": "testing"}

    def is_full(self) -> bool:
        """Whether the next request is one too many: with "always-full" all are, with "full" every other."""
        with self.lock:
            self.posts += 1
            return self.fault == "always-full" or (self.fault == "full" and self.posts % 2 == 1)

    def test_itself(self) -> None:
        """As the gateway does: a thread asks the server's own routes."""
        from decideploy.serve.selftest import selftest

        report = selftest(f"http://127.0.0.1:{self.server_port}")
        phase = "failed" if report.failures else "ready"
        self.readiness = {"phase": phase, "selftest": report.to_dict()}


class Routes(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: Server

    def do_GET(self) -> None:
        models = [{"id": "demo", "parent": None}, {"id": "system1", "parent": "demo"}]
        documents = {
            "/v1/models": {"data": models},
            "/v1/decide/info": info(self.server),
            "/ready": self.server.readiness,
        }
        self.answer(documents.get(self.path, {}))

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        routes = {"/tokenize": tokenize, "/v1/completions": complete, "/v1/decide": decide}
        if self.server.is_full():
            error = {"message": "as many requests wait as may", "type": "rate_limit_error"}
            self.answer({"error": error}, 429, {"Retry-After": "0"})
            return
        document = routes[self.path](self.server, body)
        self.answer(document, 502 if "error" in document else 200)

    def answer(self, document: object, status: int = 200, headers: dict[str, str] | None = None) -> None:
        content = json.dumps(document).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_args: object) -> None:
        pass


def info(server: Server) -> dict:
    ids = list(SLOTS)
    if server.fault == "swapped-verbalizers":
        ids[0], ids[1] = ids[1], ids[0]
    drafts = server.fault in ("draft", "draft-moves", "draft-steps")
    return {
        "model": "demo",
        "temperatures": TEMPERATURES,
        "model_sha256": "c" * 64 if server.fault == "other-model" else MODEL_SHA256,
        "head": {"verbalizer_ids": ids, "bias": BIAS},
        "engine": {
            "max_num_seqs": CROWD,
            "draft": {"method": "mtp", "num_speculative_tokens": 4} if drafts else None,
        },
        "build": BUILD,
    }


def tokenize(server: Server, body: dict) -> dict:
    if body["prompt"] in LABELS:
        ids = [SLOTS[LABELS.index(body["prompt"])]]
        return {"tokens": ids * 2 if server.fault == "split-label" else ids}
    return {"tokens": [2, len(body["prompt"])]}


def complete(server: Server, body: dict) -> dict:
    if "allowed_token_ids" not in body:
        server.writing = True
        # As long as a real one: decisions are made meanwhile.
        server.decided_beside.wait(120)
        server.writing = False
        return {"choices": [{"logprobs": None}]}
    step = logprobs(server, body["model"], body["allowed_token_ids"])
    told = {f"token_id:{slot}": value for slot, value in step.items()}
    rows = [dict(told) for _ in range(body["max_tokens"])]
    if server.fault == "slot-missing":
        rows[0].popitem()
    if server.fault == "placeholder":
        rows[0][f"token_id:{body['allowed_token_ids'][-1]}"] = -9999.0
    if server.fault == "draft-steps" and len(rows) > 1:
        rows[3] = {token: 0.0 if token == next(iter(told)) else -20.0 for token in told}
    tokens = [next(iter(told))] * len(rows)
    return {"choices": [{"logprobs": {"tokens": tokens, "top_logprobs": rows}}]}


def logprobs(server: Server, model: str, allowed: list[int]) -> dict[int, float]:
    """The distribution over ``allowed``, the base model's or the adapter's."""
    adapted = model == "system1" and server.fault != "adapter-is-base"
    weights = {slot: (1.0 + slot % 5) * (1 + slot % 3 if adapted else 1) for slot in allowed}
    if model == "demo" and server.fault == "base-moves" and server.crowded:
        weights[allowed[0]] *= 3
    if model == "demo" and server.fault == "base-is-other":
        weights[allowed[0]] *= 3
    total = sum(weights.values())
    return {slot: math.log(weight / total) for slot, weight in weights.items()}


def decide(server: Server, body: dict) -> dict:
    with server.lock:
        server.crowd += 1
        server.crowded |= server.crowd > 1
    # Long enough for those that were sent at once to meet, where the fault needs that.
    time.sleep(0.03 if server.fault in ("batch-dependent", "base-moves") else 0.002)
    crowd = server.crowd
    probabilities = decided(server, body, crowd)
    with server.lock:
        server.crowd -= 1
    if server.fault == "defaults" and len(probabilities) > 6:
        message = "the engine's log-probabilities are unusable: P is -inf"
        return {"error": {"message": message, "type": "server_error"}}
    options = body.get("options") or (LABELS[:2] if body["kind"] == "noul" else LABELS[2:8])
    if server.fault == "bad-sum":
        probabilities = [probability / 1.1 for probability in probabilities]
    index = probabilities.index(max(probabilities))
    return {
        "options": options,
        "probabilities": probabilities,
        "choice": options[index],
        "choice_index": index,
        "usage": {"prompt_tokens": 3, "completion_tokens": 1, "total_tokens": 4},
    }


def decided(server: Server, body: dict, crowd: int) -> list[float]:
    """The read-out over the adapter's distribution, spoiled where that is the fault."""
    first = FIRST[body["kind"]]
    count = {"noul": 2, "score": 6}.get(body["kind"]) or len(body["options"])
    step = logprobs(server, "system1", SLOTS[first : first + count])
    temperature = 1.0 if server.fault == "uncalibrated" else TEMPERATURES[body["kind"]]
    scores = [(step[SLOTS[slot]] + BIAS[slot]) / temperature for slot in range(first, first + count)]
    weights = [math.exp(score) for score in scores]
    writing = server.writing
    if writing:
        server.decided_beside.set()
    spoiled = (
        (server.fault == "batch-dependent" and crowd > 1)
        or (server.fault == "draft-moves" and writing)
        or server.fault == "other-decisions"
    )
    if spoiled:
        weights[0] *= 5
    if server.fault == "truncated" and count > 6:
        weights[0] = 0.0
    return [weight / sum(weights) for weight in weights]


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    server = Server(int(sys.argv[1]), sys.argv[2] if len(sys.argv) > 2 else "")
    threading.Thread(target=server.test_itself, daemon=True).start()
    server.serve_forever()
