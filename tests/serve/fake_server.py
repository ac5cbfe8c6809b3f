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
WIDTHS = {"noul": 2, "score": 6}


class Server(http.server.ThreadingHTTPServer):
    """``crowd`` counts the decisions being answered now."""

    daemon_threads = True
    request_queue_size = 64

    def __init__(self, port: int, fault: str) -> None:
        super().__init__(("127.0.0.1", port), Routes)
        self.fault = fault
        self.crowd = 0
        self.crowded = False
        self.lock = threading.Lock()


class Routes(http.server.BaseHTTPRequestHandler):
    server: Server

    def do_GET(self) -> None:
        models = [{"id": "demo", "parent": None}, {"id": "system1", "parent": "demo"}]
        self.answer({"data": models} if self.path == "/v1/models" else {})

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        routes = {"/tokenize": tokenize, "/v1/completions": complete, "/v1/decide": decide}
        self.answer(routes[self.path](self.server, body))

    def answer(self, document: object) -> None:
        content = json.dumps(document).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_args: object) -> None:
        pass


def tokenize(server: Server, body: dict) -> dict:
    if body["prompt"] in LABELS:
        ids = [SLOTS[LABELS.index(body["prompt"])]]
        return {"tokens": ids * 2 if server.fault == "split-label" else ids}
    return {"tokens": [2, len(body["prompt"])]}


def complete(server: Server, body: dict) -> dict:
    weights = [1.0 + slot % 5 for slot in SLOTS]
    if body["model"] == "system1" and server.fault != "adapter-is-base":
        weights = [weight * (1 + index % 3) for index, weight in enumerate(weights)]
    if body["model"] == "demo" and server.fault == "base-moves" and server.crowded:
        weights[0] *= 3
    total = sum(weights)
    logprobs = {f"token_id:{s}": math.log(w / total) for s, w in zip(SLOTS, weights, strict=True)}
    if server.fault == "slot-missing":
        logprobs.popitem()
    if server.fault == "placeholder":
        logprobs["token_id:123"] = -9999.0
    return {"choices": [{"logprobs": {"top_logprobs": [logprobs]}}]}


def decide(server: Server, body: dict) -> dict:
    with server.lock:
        server.crowd += 1
        server.crowded |= server.crowd > 1
    time.sleep(0.01)
    crowd = server.crowd
    options = body.get("options") or LABELS[:2] if body["kind"] != "score" else list("012345")
    weights = [1.0 + index for index in range(len(options))]
    if server.fault == "batch-dependent" and crowd > 1:
        weights[0] *= 5
    if server.fault == "truncated" and len(options) > 6:
        weights[0] = 0.0
    total = sum(weights) * (1.1 if server.fault == "bad-sum" else 1.0)
    with server.lock:
        server.crowd -= 1
    usage = {"prompt_tokens": 3, "completion_tokens": 1, "total_tokens": 4}
    return {
        "options": options,
        "probabilities": [weight / total for weight in weights],
        "choice": options[-1],
        "choice_index": len(options) - 1,
        "usage": usage,
    }


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    Server(int(sys.argv[1]), sys.argv[2] if len(sys.argv) > 2 else "").serve_forever()
