"""The application with every route of ours over a fake engine, and clients of it in this process."""

from __future__ import annotations

import asyncio
import functools
import struct
import zlib
from collections.abc import Coroutine
from types import SimpleNamespace
from typing import Any, TypeVar

import httpx
from decide_fakes import FakeEngine, make_service
from fastapi import FastAPI, Request
from starlette.responses import JSONResponse

from decideploy.api import attach
from decideploy.decide import PromptEncoder

Result = TypeVar("Result")
CREATED_UNIX_S = 1_700_000_000  # 2023-11-14


class FakeModels:
    """The engine's list of models: the base model under two names, the adapter, and another adapter."""

    base_model_paths = (SimpleNamespace(name="demo"), SimpleNamespace(name="decide"))

    async def show_available_models(self) -> Any:
        names = ("demo", "decide", "system1", "other")
        cards = [
            {"id": name, "object": "model", "created": CREATED_UNIX_S, "owned_by": "vllm", "root": "/m"}
            for name in names
        ]
        return SimpleNamespace(model_dump=lambda: {"object": "list", "data": cards})


def make_app(encoder: PromptEncoder, engine: FakeEngine | None = None, **changes: Any) -> FastAPI:
    """The one application with another service; it serves until the next call."""
    app = routes_over_foreign_app()
    app.state.openai_serving_models = FakeModels()
    app.state.decideploy = make_service(encoder, engine or FakeEngine(), **changes)
    return app


@functools.cache
def routes_over_foreign_app() -> FastAPI:
    """An application like the engine's: with a list of models and exception answers of its own."""
    app = FastAPI()

    @app.get("/v1/models")
    async def theirs(request: Request) -> JSONResponse:
        served = await request.app.state.openai_serving_models.show_available_models()
        return JSONResponse(served.model_dump())

    @app.exception_handler(Exception)
    @app.exception_handler(ValueError)
    async def foreign(_: Request, error: Exception) -> JSONResponse:
        return JSONResponse({"foreign": str(error)}, status_code=418)

    attach(app)
    return app


def send(app: Any, method: str, path: str, **request: Any) -> httpx.Response:
    async def once() -> httpx.Response:
        transport = httpx.ASGITransport(app=app, raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://server") as client:
            return await client.request(method, path, **request)

    return run(once())


def run(work: Coroutine[Any, Any, Result]) -> Result:
    return asyncio.run(work)


def png(width: int = 2, height: int = 2) -> bytes:
    """A black RGB image."""

    def chunk(kind: bytes, content: bytes) -> bytes:
        return (
            struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))
        )

    rows = (b"\0" + b"\0\0\0" * width) * height
    header = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + header + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")
