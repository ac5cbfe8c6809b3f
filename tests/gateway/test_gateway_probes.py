import asyncio
from typing import Any

import fastapi
import jsonschema
import pytest
from fastapi.testclient import TestClient
from gateway_harness import App, Check, Proof, served

from decideploy.gateway import probes


class DescribedApp(App):
    """One that describes a route of its own, as FastAPI does: the same document each time."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.document: dict[str, Any] = {"paths": {"/own": {}}}
        self.openapi = lambda: self.document


@pytest.mark.parametrize("proof", [Proof(), Proof((Check(),))])
def test_the_description_tells_the_probes_and_they_answer_as_it_says(proof: Proof) -> None:
    async def story() -> None:
        app = DescribedApp()
        async with served(app, proof=lambda _url, _token: proof) as server:
            paths = app.openapi()["paths"]
            assert set(paths) == {"/own", "/live", "/ready"}
            for path in ("/live", "/ready"):
                reply = await server.ask(path, method="GET")
                answer = paths[path]["get"]["responses"][str(reply.status)]
                jsonschema.validate(reply.json(), answer["content"]["application/json"]["schema"])
            assert (reply.status == 200) is not bool(proof.failures)

    asyncio.run(story())


def test_the_document_of_fastapi_is_extended() -> None:
    app = fastapi.FastAPI()
    probes.describe_probes(app)
    with TestClient(app) as client:
        assert "/ready" in client.get("/openapi.json").json()["paths"]
