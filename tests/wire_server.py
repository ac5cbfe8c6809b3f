"""A real HTTP server on loopback that answers like a decision server, from one function in the test."""

from __future__ import annotations

import http.server
import json
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

Reply = tuple[int, Any]

TEMPERATURES = {"noul": 2.0, "score": 1.0, "choice": 0.5}
GOLD_TEMPERATURES = {"noul": 3.0, "score": 1.5, "choice": 1.1}


def info_document(**changes: object) -> dict[str, Any]:
    return {
        "model": "demo",
        "adapter": "system1",
        "kinds": ["noul", "score", "choice"],
        "max_options": 256,
        "max_model_len": 4096,
        "template_version": "bare-v1",
        "defaults": {},
        "temperatures": TEMPERATURES,
        "calibration_sha256": "0" * 64,
        "calibrations": {
            "default": {"temperatures": TEMPERATURES, "sha256": "0" * 64},
            "gold": {"temperatures": GOLD_TEMPERATURES, "sha256": "1" * 64},
        },
        "images": None,
        "model_sha256": "2" * 64,
        "head": {"verbalizer_ids": list(range(24)), "bias": [0.0] * 24},
        "engine": {"max_num_seqs": 64, "draft": None},
        "build": {"version": "1", "recipe": "cpu", "files_sha256": "3" * 64, "patches": []},
        **changes,
    }


def decision_document(
    options: list[str], probabilities: list[float], prompt_tokens: int = 9, **more: object
) -> dict[str, Any]:
    index = probabilities.index(max(probabilities))
    return {
        "options": options,
        "probabilities": probabilities,
        "choice": options[index],
        "choice_index": index,
        "usage": {
            "prompt_tokens": prompt_tokens,
            "completion_tokens": 1,
            "total_tokens": prompt_tokens + 1,
        },
        **more,
    }


@dataclass
class WireServer:
    """``seen`` holds every request as (path, headers, body)."""

    url: str = ""
    seen: list[tuple[str, Mapping[str, str], Any]] = field(default_factory=list)

    def bodies(self, path: str = "/v1/decide") -> list[Any]:
        return [body for seen_path, _, body in self.seen if seen_path == path]


@contextmanager
def wire_server(answer: Callable[[str, Any], Reply]) -> Iterator[WireServer]:
    """``answer(path, body)`` gives status and document; a document may hold ``headers`` beside ``body``."""
    wire = WireServer()

    class Routes(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True

        def do_GET(self) -> None:
            self.reply(None)

        def do_POST(self) -> None:
            self.reply(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))

        def reply(self, body: Any) -> None:
            wire.seen.append((self.path, dict(self.headers), body))
            status, document = answer(self.path, body)
            headers = document.pop("headers", {})
            content = json.dumps(document).encode()
            self.send_response(status)
            for name, value in {**headers, "Content-Length": str(len(content))}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_args: object) -> None:
            pass

    class Server(http.server.ThreadingHTTPServer):
        daemon_threads = True
        request_queue_size = 128

    with Server(("127.0.0.1", 0), Routes) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        wire.url = f"http://127.0.0.1:{server.server_address[1]}"
        try:
            yield wire
        finally:
            server.shutdown()
            thread.join()
