"""vLLM's own application and HTTP server over an engine made in code, behind the gateway.

Run with its port and the path of a file, ``release``. POST /kill makes the engine die as vLLM's monitor tells
it. POST /v1/wait works until it is cancelled; GET /counts tells how many of those began and how many were
cancelled. POST /v1/completions/stream streams until the file is there.
"""

import asyncio
import socket
import sys
from collections import Counter
from pathlib import Path
from types import SimpleNamespace

from fastapi import FastAPI, Request
from fastapi.responses import StreamingResponse
from vllm.entrypoints.launchers.app import build_app
from vllm.entrypoints.launchers.cli_args import make_arg_parser
from vllm.entrypoints.launchers.launcher import serve_http
from vllm.entrypoints.serve.utils.api_utils import with_cancellation
from vllm.utils.argparse_utils import FlexibleArgumentParser

COUNTS = Counter(started=0, stopped=0)


class Engine:
    """What vLLM's server and the gateway ask of an engine client."""

    errored = False
    vllm_config = SimpleNamespace(shutdown_timeout=1)

    @property
    def is_running(self) -> bool:
        return not self.errored

    async def check_health(self) -> None:
        return None

    def shutdown(self, timeout: float) -> None:
        print("vLLM's own stop", flush=True)


def add_routes(app: FastAPI, engine: Engine, release: Path) -> None:
    @app.post("/v1/decide")
    async def decide() -> dict:
        return {"probabilities": [0.25, 0.75]}

    @app.post("/kill")
    async def kill() -> dict:
        engine.errored = True
        return {}

    @app.post("/v1/wait")
    @with_cancellation
    async def wait(body: dict, raw_request: Request) -> dict:
        COUNTS["started"] += 1
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            COUNTS["stopped"] += 1
            raise
        return {}

    @app.get("/counts")
    async def counts() -> dict:
        return COUNTS

    @app.post("/v1/completions/stream")
    async def stream() -> StreamingResponse:
        async def events():
            yield "data: first\n\n"
            while not release.exists():
                await asyncio.sleep(0.05)
            yield "data: last\n\n"

        return StreamingResponse(events(), media_type="text/event-stream")


async def serve(port: int, release: Path) -> None:
    argv = ["model", "--port", str(port), "--host", "127.0.0.1", "--allowed-origins", "[]"]
    argv += ["--middleware", "decideploy.gateway.Gateway", "--disable-uvicorn-access-log"]
    args = make_arg_parser(FlexibleArgumentParser()).parse_args(argv)
    engine = Engine()
    app = build_app(args, ("generate",), None)
    app.state.engine_client, app.state.log_stats, app.state.args = engine, False, args
    add_routes(app, engine, release)
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    sock.bind(("127.0.0.1", port))
    await (await serve_http(app, sock, host=args.host, port=port, access_log=False))
    print("ended", flush=True)


def main() -> None:
    from decideploy.gateway import lifecycle

    # Its self-test needs a model.
    proof = SimpleNamespace(failures=(), to_dict=lambda: {"passed": True})
    lifecycle._selftest = lambda _url, _token, **_: proof
    port, release = sys.argv[1:]
    asyncio.run(serve(int(port), Path(release)))
