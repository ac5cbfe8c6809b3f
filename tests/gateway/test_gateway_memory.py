"""Nothing of a request stays once it is answered."""

import asyncio
import gc
from pathlib import Path

import httpx
import pytest
from api_fakes import make_app
from decide_fakes import FakeEngine, make_encoder
from gateway_harness import Proof
from prometheus_client import CollectorRegistry

from decideploy.gateway import Gateway, GatewayMetrics, ServerSettings

BODIES = (
    {"kind": "noul", "state": "The parcel came late.", "question": "Late?"},
    {"kind": "choice", "state": "A letter.", "question": "Which?", "options": [f"{n}" for n in range(40)]},
    {"kind": "noul", "state": 5},
)
# Fewer objects than one request makes.
SLACK = 40


def test_requests_leave_no_object_behind(tmp_path: Path) -> None:
    engine = FakeEngine()
    settings = ServerSettings(access_log=tmp_path / "access")
    gateway = Gateway(
        make_app(make_encoder(tmp_path), engine),
        settings=settings,
        environ={},
        metrics=GatewayMetrics(CollectorRegistry()),
    )
    gateway.readiness.tested(Proof())

    async def ask_all(client: httpx.AsyncClient, rounds: int) -> int:
        for _ in range(rounds):
            for body in BODIES:
                await client.post("/v1/decide", json=body)
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0):
                    await client.post("/v1/decide", json=BODIES[0])
        engine.calls.clear()
        gc.collect()
        return len(gc.get_objects())

    async def story() -> list[int]:
        transport = httpx.ASGITransport(app=gateway)
        async with httpx.AsyncClient(transport=transport, base_url="http://server") as client:
            await ask_all(client, 20)
            return [await ask_all(client, 20) for _ in range(2)]

    first, second = asyncio.run(story())
    assert second - first < SLACK
