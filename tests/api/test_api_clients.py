"""The real clients over the routes in this process: what they raise, parse and wait for."""

import logging
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import httpx2
import openai
import pytest
import typesafe_sdk
from api_fakes import make_app, run
from decide_fakes import FakeEngine

from decideploy.api import errors
from decideploy.api.errors import DECISIONS, SYSTEMONE, Failure
from decideploy.decide import PromptEncoder
from decideploy.errors import EngineError
from decideploy.gateway import refusals
from decideploy.gateway.refusals import Refusal

logging.getLogger("typesafe_sdk").setLevel(logging.ERROR)

NOUL = {"q": {"type": "noul", "instructions": "?"}}
PREDICATE: Any = [{"type": "predicate", "instructions": "?"}]
App = Callable[[Any, Any, Any], Awaitable[None]]


def failing(failure: Failure) -> App:
    """Every route tells ``failure``."""

    async def app(scope: Any, receive: Any, send: Any) -> None:
        dialect = SYSTEMONE if scope["path"] == "/v1/systemone" else DECISIONS
        await dialect.answer(failure)(scope, receive, send)

    return app


def refusing(refusal: Refusal) -> App:
    """The gateway tells ``refusal`` and lets nothing through."""

    async def app(scope: Any, receive: Any, send: Any) -> None:
        content = refusals.body(refusal, scope["path"])
        headers = refusals.headers(refusal, content)
        await send({"type": "http.response.start", "status": refusal.status, "headers": headers})
        await send({"type": "http.response.body", "body": content})

    return app


@asynccontextmanager
async def typesafe(app: App, *, retries: int = 0) -> AsyncIterator[typesafe_sdk.AsyncTypeSafeClient]:
    async with typesafe_sdk.AsyncTypeSafeClient(
        api_key="k",
        base_url="http://server",
        model="demo",
        transport=httpx2.ASGITransport(app, raise_app_exceptions=False),
        retry=typesafe_sdk.RetryPolicy(max_retries=retries, backoff_initial=60.0, backoff_max=60.0),
    ) as client:
        yield client


@asynccontextmanager
async def openai_client(app: App, *, retries: int = 0) -> AsyncIterator[openai.AsyncOpenAI]:
    http = httpx2.AsyncClient(transport=httpx2.ASGITransport(app, raise_app_exceptions=False))
    async with openai.AsyncOpenAI(
        api_key="k", base_url="http://server/v1", http_client=http, max_retries=retries
    ) as client:
        yield client


async def ask_typesafe(app: App, questions: Any = None, *, retries: int = 0, **fields: Any) -> Any:
    async with typesafe(app, retries=retries) as client:
        return await client.system_one(fields.pop("state", "s"), questions or NOUL, **fields)


async def ask_openai(app: App, questions: Any = PREDICATE, *, retries: int = 0, **fields: Any) -> Any:
    async with openai_client(app, retries=retries) as client:
        fields = {"model": "demo", "input": "s", **fields}
        return await client.decisions.create(questions=questions, **fields)


CLIENT_ERRORS: dict[int, tuple[type[Exception], type[Exception]]] = {
    400: (typesafe_sdk.TypeSafeBadRequestError, openai.BadRequestError),
    401: (typesafe_sdk.TypeSafeAuthenticationError, openai.AuthenticationError),
    403: (typesafe_sdk.TypeSafePermissionDeniedError, openai.PermissionDeniedError),
    404: (typesafe_sdk.TypeSafeNotFoundError, openai.NotFoundError),
    413: (typesafe_sdk.TypeSafeAPIError, openai.APIStatusError),
    415: (typesafe_sdk.TypeSafeAPIError, openai.APIStatusError),
    422: (typesafe_sdk.TypeSafeUnprocessableEntityError, openai.UnprocessableEntityError),
    429: (typesafe_sdk.TypeSafeRateLimitError, openai.RateLimitError),
    500: (typesafe_sdk.TypeSafeInternalServerError, openai.InternalServerError),
    502: (typesafe_sdk.TypeSafeInternalServerError, openai.InternalServerError),
    503: (typesafe_sdk.TypeSafeInternalServerError, openai.InternalServerError),
    504: (typesafe_sdk.TypeSafeInternalServerError, openai.InternalServerError),
}


def errors_of_clients(app: App, status: int, message: str) -> tuple[Any, Any]:
    """What both clients raise, each its own class for ``status`` with ``message``."""
    typesafe_error, openai_error = CLIENT_ERRORS[status]
    with pytest.raises(typesafe_error, match=re.escape(message)) as told:
        run(ask_typesafe(app))
    with pytest.raises(openai_error, match=re.escape(message)) as failed:
        run(ask_openai(app))
    assert (type(told.value), type(failed.value)) == (typesafe_error, openai_error)
    return told.value, failed.value


@pytest.mark.parametrize("status", CLIENT_ERRORS)
def test_each_status_of_a_route_is_each_client_s_own_error(status: int) -> None:
    failure = Failure(status=status, message="the reason", code="a_code", param="model")
    _, error = errors_of_clients(failing(failure), status, "the reason")
    assert (error.code, error.param) == ("a_code", "model")


@pytest.mark.parametrize(
    "refusal",
    [
        refusals.UNAUTHORIZED,
        refusals.QUEUE_FULL.after(3),
        refusals.NOT_READY,
        refusals.DRAINING,
        refusals.ENGINE_DEAD,
        refusals.TOO_LARGE,
        refusals.BAD_LENGTH,
        refusals.TIMEOUT,
    ],
    ids=lambda refusal: refusal.code,
)
def test_each_refusal_of_the_gateway_is_each_client_s_own_error(refusal: Refusal) -> None:
    told, failed = errors_of_clients(refusing(refusal), refusal.status, refusal.message)
    assert failed.code == refusal.code
    if refusal.status == 429:
        assert told.retry_after_ms == 3000


def test_both_clients_wait_as_long_as_they_are_told(
    encoder: PromptEncoder, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The TypeSafe client's own backoff would be a minute; the OpenAI client logs how long it waits."""

    class ReadyAtLast(FakeEngine):
        async def _take(self, call: Any, prompt: Any, request_id: str) -> None:
            self.error = None if self.calls else EngineError("not ready", status=503)
            await super()._take(call, prompt, request_id)

    monkeypatch.setattr(errors, "RETRY_AFTER_S", 0.02)
    caplog.set_level(logging.INFO, "openai")
    assert run(ask_typesafe(make_app(encoder, ReadyAtLast()), retries=1)).answers["q"].noul > 0
    assert run(ask_openai(make_app(encoder, ReadyAtLast()), retries=1)).answers[0].probability > 0
    assert "in 0.020000 seconds" in caplog.text


@pytest.mark.parametrize(
    ("error", "typesafe_error", "openai_error"),
    [
        (
            EngineError("e", status=503),
            typesafe_sdk.TypeSafeInternalServerError,
            openai.InternalServerError,
        ),
        (KeyError("e"), typesafe_sdk.TypeSafeInternalServerError, openai.InternalServerError),
    ],
)
def test_what_fails_behind_the_routes_is_each_client_s_own_error(
    encoder: PromptEncoder,
    error: Exception,
    typesafe_error: type[Exception],
    openai_error: type[Exception],
) -> None:
    app = make_app(encoder, FakeEngine(error=error))
    with pytest.raises(typesafe_error):
        run(ask_typesafe(app))
    with pytest.raises(openai_error):
        run(ask_openai(app))


def test_each_client_s_own_error_for_a_wrong_request(encoder: PromptEncoder) -> None:
    app = make_app(encoder)
    with pytest.raises(typesafe_sdk.TypeSafeUnprocessableEntityError, match="box is not served") as told:
        run(ask_typesafe(app, {"b": typesafe_sdk.Box(instructions="the dog")}))
    assert told.value.request_id
    with pytest.raises(typesafe_sdk.TypeSafeNotFoundError, match="no model 'jev-latest'"):
        run(ask_typesafe(app, model="jev-latest"))
    with pytest.raises(openai.UnprocessableEntityError, match="does not serve") as refused:
        run(ask_openai(app, extra_body={"stream": True}))
    assert (refused.value.param, refused.value.request_id is not None) == ("stream", True)
    with pytest.raises(openai.NotFoundError, match="no model"):
        run(ask_openai(app, model="gpt-6-luna"))


def test_large_bodies_may_come_compressed(encoder: PromptEncoder) -> None:
    """As the TypeSafe client sends them by itself where Python has zstd."""

    async def ask() -> Any:
        async with typesafe_sdk.AsyncTypeSafeClient(
            api_key="k",
            base_url="http://server",
            model="demo",
            transport=httpx2.ASGITransport(make_app(encoder)),
            compression="zstd",
        ) as client:
            return await client.system_one("s" * 2000, NOUL)

    assert run(ask()).usage.output_tokens == 1


def test_both_clients_list_the_models(encoder: PromptEncoder) -> None:
    async def names() -> tuple[list[str], list[str]]:
        async with typesafe(make_app(encoder)) as client, openai_client(make_app(encoder)) as other:
            theirs = await client.models.list()
            ours = [model.id async for model in other.models.list()]
            return [model.name for model in theirs.models], ours

    assert run(names()) == (["demo", "decide", "system1"], ["demo", "decide", "system1", "other"])
