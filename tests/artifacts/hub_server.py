"""A local server that speaks the hub's endpoints for one model: its metadata and ranged file reads."""

from __future__ import annotations

import hashlib
import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote

import huggingface_hub.constants
import huggingface_hub.hf_api
import pytest

REVISION = "0123456789abcdef0123456789abcdef01234567"
REPO = "owner/name"


class Handler(BaseHTTPRequestHandler):
    """Large files are redirected to another path, as the hub redirects to its storage."""

    protocol_version = "HTTP/1.1"
    server: HubServer

    def do_GET(self) -> None:
        path = unquote(self.path.partition("?")[0])
        resolve, storage = f"/{REPO}/resolve/{REVISION}/", "/storage/"
        if self.server.delay_s:
            time.sleep(self.server.delay_s)
        if self.server.refusal:
            self._refuse(*self.server.refusal)
        elif path == f"/api/models/{REPO}/revision/{REVISION}":
            self._answer(json.dumps(self.server.metadata()).encode())
        elif path.startswith(resolve) and path.endswith(".safetensors"):
            self._redirect(storage + path.removeprefix(resolve))
        elif path.startswith((resolve, storage)):
            self._file(self.server.model / path.removeprefix(resolve).removeprefix(storage))
        else:
            self.send_error(404)

    def _refuse(self, status: int, code: str) -> None:
        """Answer as the hub does: the reason is in a header."""
        self.send_response(status)
        self.send_header("X-Error-Code", code)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def _redirect(self, location: str) -> None:
        self.send_response(302)
        self.send_header("Location", location)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def _file(self, path: Path) -> None:
        wanted = self.headers.get("Range") if self.server.ranges else None
        if not path.is_file():
            self.send_error(404)
            return
        begin, end = 0, path.stat().st_size
        if wanted and self.server.short_ranges:
            first, _, last = wanted.removeprefix("bytes=").partition("-")
            begin, end = int(first), min((int(first) + int(last) + 1) // 2, end)
        elif wanted:
            first, _, last = wanted.removeprefix("bytes=").partition("-")
            begin, end = int(first), min(int(last) + 1, end)
        self.send_response(206 if wanted else 200)
        self.send_header("Content-Length", str(end - begin))
        self.end_headers()
        with path.open("rb") as file:
            file.seek(begin)
            self._send(file.read(end - begin))

    def _answer(self, content: bytes) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self._send(content)

    def _send(self, content: bytes) -> None:
        self.server.sent_bytes += len(content)
        try:
            self.wfile.write(content)
        except (BrokenPipeError, ConnectionResetError):
            self.close_connection = True

    def log_message(self, *arguments: object) -> None:
        """Quiet."""


class HubServer(ThreadingHTTPServer):
    """Serves the folder ``model`` as ``owner/name`` at REVISION."""

    daemon_threads = True

    def __init__(self, model: Path, *, ranges: bool = True) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.model = model
        self.ranges = ranges
        self.sent_bytes = 0
        self.delay_s = 0.0
        self.refusal: tuple[int, str] | None = None
        self.short_ranges = False
        self.extra_names: list[str] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def metadata(self) -> dict[str, object]:
        siblings = [self._sibling(path) for path in sorted(self.model.rglob("*")) if path.is_file()]
        extra = [{"rfilename": name, "size": 0} for name in self.extra_names]
        return {"id": REPO, "modelId": REPO, "sha": REVISION, "siblings": siblings + extra}

    def _sibling(self, path: Path) -> dict[str, object]:
        size = path.stat().st_size
        told: dict[str, object] = {"rfilename": path.relative_to(self.model).as_posix(), "size": size}
        if path.suffix == ".safetensors":
            # A sparse file of gigabytes is not hashed for a test that moves megabytes.
            digest = hashlib.sha256(path.read_bytes()).hexdigest() if size < 1 << 28 else "0" * 64
            told["lfs"] = {"size": size, "sha256": digest, "pointerSize": 135}
        return told


@contextmanager
def serving(model: Path, *, ranges: bool = True) -> Iterator[HubServer]:
    with HubServer(model, ranges=ranges) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def point_at(server: HubServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the hub's client ask ``server``."""
    for module in (huggingface_hub.constants, huggingface_hub.hf_api):
        for name in ("ENDPOINT", "HUGGINGFACE_CO_URL_TEMPLATE"):
            if hasattr(module, name):
                template = "/{repo_id}/resolve/{revision}/{filename}" if name != "ENDPOINT" else ""
                monkeypatch.setattr(module, name, server.url + template)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", False)
