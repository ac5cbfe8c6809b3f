"""Takes the place of ``decideploy serve`` in a test's checkout: the self-test's routes, and one behaviour.

FAKE_SERVE is ``serves``, ``dies`` (before it is ready), ``loads`` (never ready) or a fault of fake_server
that a self-test finds. FAKE_SERVE_PID names a file for the process id. POST /slow is answered when the server
is asked to stop.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from pathlib import Path

from decideploy.fake_server import Routes, Server


class SlowRoutes(Routes):
    server: DrainingServer

    def do_POST(self) -> None:  # noqa: N802 - http.server's name
        if self.path == "/die":
            os._exit(9)
        if self.path == "/slow":
            print("answering slowly", flush=True)
            self.answer({"slow": self.server.stopping.wait(120)})
            return
        super().do_POST()


class DrainingServer(Server):
    # Closing waits for the requests in flight, as the gateway does.
    daemon_threads = False
    block_on_close = True

    def __init__(self, port: int, fault: str) -> None:
        super().__init__(port, fault)
        self.stopping = threading.Event()

    def stop(self) -> None:
        self.stopping.set()
        threading.Thread(target=self.shutdown).start()


def main() -> None:
    behaviour = os.environ.get("FAKE_SERVE", "serves")
    Path(os.environ["FAKE_SERVE_PID"]).write_text(str(os.getpid()))
    Path(os.environ["FAKE_SERVE_PID"]).with_suffix(".argv").write_text(json.dumps(sys.argv[1:]))
    print("verify     as if", flush=True)
    if behaviour == "dies":
        print("the cause of it", flush=True)
        sys.exit(5)
    if behaviour == "loads":
        time.sleep(600)
    serve(int(sys.argv[sys.argv.index("--port") + 1]), behaviour)


def serve(port: int, fault: str) -> None:
    server = DrainingServer(port, fault)
    server.RequestHandlerClass = SlowRoutes
    signal.signal(signal.SIGTERM, lambda *_: server.stop())
    print(json.dumps({"base_url": f"http://127.0.0.1:{port}", "ready_s": 1.0}), flush=True)
    server.serve_forever(poll_interval=0.05)
    server.server_close()
    print("drained", flush=True)


if __name__ == "__main__":
    main()
