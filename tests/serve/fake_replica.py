"""A stand-in for one engine behind the gateway: proven at once, it answers, drains and ends as they do.

python fake_replica.py PORT [MODEL [HOST]]

MODEL ``refused`` fails its self-test, ``dies`` ends before it answers. A question's state ``slow`` is
answered when ``/go`` is asked, ``turn`` after 20 ms in which no other of them is, and anything else at once.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from pathlib import Path

# An engine is started without its script's folder.
sys.path.insert(0, str(Path(__file__).parent))
import fake_server

CHECK = {
    "name": "golden",
    "detail": "as told",
    "meaning": "the answers are others",
    "remedy": "another model",
}


class Replica(fake_server.Server):
    # Closing waits for the requests in flight, as the gateway does.
    daemon_threads = False
    block_on_close = True

    def __init__(self, port: int, model: str, host: str) -> None:
        super().__init__(port, "", host)
        self.RequestHandlerClass = Routes
        self.model = model
        self.draining = False
        self.go = threading.Event()
        self.turn = threading.Lock()
        self.in_flight = 0
        checks = [{**CHECK, "passed": model != "refused"}]
        self.proof = {"url": "", "checks": checks}

    def drain(self) -> None:
        """Refuse what is new until nothing is in flight, then end."""
        self.draining = True
        threading.Thread(target=self.end).start()

    def end(self) -> None:
        while self.in_flight:
            time.sleep(0.01)
        self.shutdown()

    def handle_error(self, _request: object, _client: object) -> None:
        """HAProxy ends its checks by a reset."""


class Routes(fake_server.Routes):
    server: Replica
    # Ends what keeps a connection open and is idle.
    timeout = 0.2
    # An answer goes out whole: one that is cut in two by a kill cannot be taken back.
    wbufsize = 1 << 16

    def do_GET(self) -> None:  # noqa: N802 - http.server's name
        server = self.server
        if self.path == "/ready":
            phase = "draining" if server.draining else "failed" if server.model == "refused" else "ready"
            document = {"phase": phase, "ready": phase == "ready", "selftest": server.proof}
            self.answer(document, 200 if phase == "ready" else 503)
        elif self.path == "/go":
            # Those that wait now; the next ones wait for the next.
            server.go.set()
            server.go = threading.Event()
            self.answer({})
        else:
            self.answer({"port": server.server_port, "model": server.model, "headers": dict(self.headers)})

    def do_POST(self) -> None:  # noqa: N802 - http.server's name
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if self.server.draining:
            self.close_connection = True
            self.answer({"error": {"code": "draining"}}, 503, {"Retry-After": "5"})
            return
        with self.server.lock:
            self.server.in_flight += 1
        try:
            self.work(body)
        finally:
            with self.server.lock:
                self.server.in_flight -= 1

    def work(self, body: dict) -> None:
        if body.get("state") == "slow":
            self.server.go.wait(120)
        if body.get("state") == "turn":
            with self.server.turn:
                time.sleep(0.02)
        if body.get("state") == "die":
            os._exit(9)
        if body.get("state") == "bad":
            self.answer({"error": {"code": "unusable"}}, 502)
            return
        document = fake_server.decide(self.server, {"kind": "noul", **body})
        self.answer(document, headers={"X-Port": str(self.server.server_port), "X-Model": self.server.model})


def main(port: int, model: str = "old", host: str = "127.0.0.1") -> None:
    if model == "dies":
        print("ValueError: no such weights", flush=True)
        sys.exit(3)
    server = Replica(port, model, host)
    signal.signal(signal.SIGTERM, lambda *_: server.drain())
    server.serve_forever(poll_interval=0.02)
    server.server_close()


if __name__ == "__main__":
    main(int(sys.argv[1]), *sys.argv[2:])
