import asyncio
from typing import Any

import fastapi
import jsonschema
import pytest
from fastapi.testclient import TestClient
from gateway_harness import KEY, App, Check, Proof, served

from decideploy import __version__
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
            assert {} in app.openapi()["security"]
            assert set(paths) == {"/own", "/live", "/ready"}
            for path in ("/live", "/ready"):
                reply = await server.ask(path, method="GET")
                answer = paths[path]["get"]["responses"][str(reply.status)]
                jsonschema.validate(reply.json(), answer["content"]["application/json"]["schema"])
            assert (reply.status == 200) is not bool(proof.failures)

    asyncio.run(story())


GATE = {"401", "405", "429", "503", "504"}


def described_fastapi(*, closed: bool = True) -> dict[str, Any]:
    app = fastapi.FastAPI()

    @app.get("/tokens", responses={503: {"description": "its own"}})
    async def read() -> None: ...

    @app.post("/v1/chat/completions")
    @app.post("/v1/messages")
    @app.post("/v1/systemone")
    async def write(body: dict[str, Any]) -> None: ...

    probes.describe_gateway(app, closed=closed)
    with TestClient(app) as client:
        client.get("/openapi.json")
        # Asked twice: FastAPI gives the document out that it has made before.
        return dict(client.get("/openapi.json").json())


def test_every_operation_declares_what_the_gateway_may_answer() -> None:
    paths = described_fastapi()["paths"]
    assert set(paths["/tokens"]["get"]["responses"]) == {"200", *GATE}
    assert paths["/tokens"]["get"]["responses"]["503"] == {"description": "its own"}
    for path in ("/v1/chat/completions", "/v1/messages", "/v1/systemone"):
        assert set(paths[path]["post"]["responses"]) == {"200", "422", "408", "413", *GATE}
    assert set(paths["/live"]["get"]["responses"]) == {"200", "503"}


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/messages", "/v1/systemone"])
def test_a_refusal_is_as_it_is_declared(path: str) -> None:
    document = described_fastapi()

    async def refused() -> Any:
        async with served(keys=KEY) as server:
            return await server.ask(path)

    reply = asyncio.run(refused())
    content = document["paths"][path]["post"]["responses"][str(reply.status)]["content"]
    schema = {**content["application/json"]["schema"], "components": document["components"]}
    jsonschema.validate(reply.json(), schema)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({}, schema)


def test_every_operation_but_the_probes_needs_a_key() -> None:
    document = described_fastapi()
    (name,) = document["components"]["securitySchemes"]
    assert document["components"]["securitySchemes"][name]["scheme"] == "bearer"
    assert document["security"] == [{name: []}]
    (_, none) = described_fastapi(closed=False)["security"]
    assert none == {}, "a server without keys says that it needs one"
    operations = [(path, item) for path, methods in document["paths"].items() for item in methods.values()]
    assert {path for path, item in operations if item.get("security") == []} == {"/live", "/ready"}


def test_the_description_says_what_it_describes() -> None:
    """Else it is headed "FastAPI", as the application behind is."""
    told = described_fastapi()["info"]
    assert (told["title"], told["version"]) == ("decideploy", __version__)
    assert "/v1/decide" in told["description"]
