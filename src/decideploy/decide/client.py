"""Ask a running server: one decision, or many at once, and the answer as a table."""

from __future__ import annotations

import asyncio
import base64
import json
import mimetypes
import os
import random
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeAlias
from urllib.parse import urlsplit

from pydantic import ValidationError
from rich.console import Console
from rich.markup import escape
from rich.progress_bar import ProgressBar
from rich.table import Table

from decideploy.decide.schema import (
    DecideRequest,
    DecideResponse,
    ErrorEnvelope,
    ErrorType,
    InfoResponse,
    State,
    parse_request,
)
from decideploy.errors import ConfigError, EngineError
from decideploy.texts import parse_json, read_text

if TYPE_CHECKING:
    import httpx

PATH: Final = "/v1/decide"
INFO_PATH: Final = "/v1/decide/info"
API_KEY_VARIABLE: Final = "DECIDEPLOY_API_KEY"
BAR_WIDTH: Final = 32
# What a server answers that is alive and has too much to do.
BUSY: Final = (HTTPStatus.TOO_MANY_REQUESTS, HTTPStatus.SERVICE_UNAVAILABLE)


@dataclass(frozen=True, kw_only=True, slots=True)
class ErrorAnswer:
    """A reply other than 200: its HTTP ``status``, and what the error in it says, as far as it is one."""

    status: int
    message: str
    type: ErrorType | None = None
    param: str | None = None
    code: str | None = None


class RefusedError(ConfigError):
    """The server refused the request; ``answer`` is what it said."""

    def __init__(self, what: str, *, answer: ErrorAnswer, where: str, next_step: str = "") -> None:
        super().__init__(what, where=where, next_step=next_step)
        self.answer = answer


class UnservedError(EngineError):
    """The server answered without a decision, and not for the request's sake; ``answer`` is what it said."""

    def __init__(
        self, what: str, *, answer: ErrorAnswer, status: int, where: str, next_step: str = ""
    ) -> None:
        super().__init__(what, status=status, where=where, next_step=next_step)
        self.answer = answer


Outcome: TypeAlias = DecideResponse | ConfigError | EngineError


@dataclass(frozen=True, kw_only=True, slots=True)
class Patience:
    """How often a busy server (429, 503) is asked again, and how long is waited in between.

    Its ``Retry-After`` is kept to, unless it is longer than ``longest_s``: then the request has failed.
    Without one the wait doubles from ``first_s`` up to ``longest_s``, less a random part.
    """

    attempts: int = 8
    first_s: float = 0.25
    longest_s: float = 60.0


PATIENT: Final = Patience()


def post_decision(
    url: str,
    request: DecideRequest,
    *,
    timeout_s: float = 60.0,
    api_key: str | None = None,
    transport: httpx.BaseTransport | None = None,
) -> DecideResponse:
    """The answer of the server at base URL ``url`` (with or without a final ``/v1``) to ``request``.

    Raises ConfigError when ``url`` is none, and with the server's words when it refuses the request,
    EngineError when it does not answer or is busy (503), not in ``timeout_s`` seconds (504), or with
    something else than a decision (502).
    """
    # Imported late: the artifact checks import this package and need no network.
    import httpx  # noqa: PLC0415

    endpoint = endpoint_of(url, PATH)
    with (
        http_faults(endpoint, timeout_s),
        httpx.Client(timeout=timeout_s, transport=transport, headers=headers(api_key)) as client,
    ):
        reply = client.post(endpoint, json=body_of(request))
    return read_reply(reply, endpoint)


def ask(
    url: str,
    *,
    kind: str,
    question: str,
    state: object,
    options: Sequence[str] | None = None,
    timeout_s: float = 60.0,
    api_key: str | None = None,
    **fields: object,
) -> DecideResponse:
    """One decision from plain values; RequestError before anything is sent when they make no request.

    ``fields`` are the request's others by their names in the API. Everything else as in
    :func:`post_decision`.
    """
    asked = {"kind": kind, "state": state, "question": question, **fields}
    request = parse_request(asked if options is None else {**asked, "options": list(options)})
    return post_decision(url, request, timeout_s=timeout_s, api_key=api_key)


async def ask_all(
    url: str,
    requests: Sequence[DecideRequest],
    *,
    done: Callable[[int, Outcome], None],
    concurrency: int = 8,
    timeout_s: float = 60.0,
    api_key: str | None = None,
    patience: Patience = PATIENT,
    transport: httpx.AsyncBaseTransport | None = None,
) -> None:
    """Put all ``requests`` to the server at ``url``, at most ``concurrency`` at a time.

    ``done(index, outcome)`` is called once for each, in the order of the answers; an outcome is the decision
    or the error that :func:`post_decision` would raise. Cancelling stops what is under way.
    """
    import httpx  # noqa: PLC0415

    endpoint = endpoint_of(url, PATH)
    waiting = iter(enumerate(requests))

    async def work(client: httpx.AsyncClient) -> None:
        for index, request in waiting:
            done(index, await outcome_of(client, endpoint, request, timeout_s, patience))

    limits = httpx.Limits(max_connections=concurrency, max_keepalive_connections=concurrency)
    async with (
        httpx.AsyncClient(
            timeout=timeout_s, limits=limits, transport=transport, headers=headers(api_key)
        ) as client,
        asyncio.TaskGroup() as group,
    ):
        for _ in range(min(concurrency, len(requests))):
            group.create_task(work(client))


async def outcome_of(
    client: httpx.AsyncClient, endpoint: str, request: DecideRequest, timeout_s: float, patience: Patience
) -> Outcome:
    """The decision or the error, after as many attempts as ``patience`` allows."""
    try:
        with http_faults(endpoint, timeout_s):
            return read_reply(await patiently_post(client, endpoint, request, patience), endpoint)
    except (ConfigError, EngineError) as error:
        return error


async def patiently_post(
    client: httpx.AsyncClient, endpoint: str, request: DecideRequest, patience: Patience
) -> httpx.Response:
    """The first reply that is not "busy", or the last one."""
    body = body_of(request)
    for attempt in range(1, patience.attempts):
        reply = await client.post(endpoint, json=body)
        if reply.status_code not in BUSY:
            return reply
        wait_s = pause_s(reply.headers.get("retry-after"), attempt, patience)
        if wait_s > patience.longest_s:
            return reply
        await asyncio.sleep(wait_s)
    return await client.post(endpoint, json=body)


def pause_s(retry_after: str | None, attempt: int, patience: Patience) -> float:
    """Seconds to wait after the busy answer number ``attempt`` (from 1)."""
    told = seconds_told(retry_after)
    if told is not None:
        return told
    ceiling = min(patience.first_s * 2.0 ** (attempt - 1), patience.longest_s)
    # Clients that were refused together must not come back together.
    return ceiling * random.uniform(0.5, 1.0)


def seconds_told(retry_after: str | None) -> float | None:
    """``Retry-After`` in seconds, whether it is a number or a date; None when it is neither."""
    if retry_after is None:
        return None
    if retry_after.strip().isdecimal():
        return float(retry_after)
    try:
        date = parsedate_to_datetime(retry_after)
    except ValueError:
        return None
    return max(0.0, date.timestamp() - time.time())


def fetch_info(
    url: str,
    *,
    timeout_s: float = 60.0,
    api_key: str | None = None,
    transport: httpx.BaseTransport | None = None,
) -> InfoResponse:
    """What the server at ``url`` serves; errors as in :func:`post_decision`."""
    import httpx  # noqa: PLC0415

    endpoint = endpoint_of(url, INFO_PATH)
    with (
        http_faults(endpoint, timeout_s),
        httpx.Client(timeout=timeout_s, transport=transport, headers=headers(api_key)) as client,
    ):
        reply = client.get(endpoint)
    if reply.status_code != HTTPStatus.OK:
        raise refusal(reply, endpoint)
    try:
        return InfoResponse.model_validate_json(reply.content)
    except ValidationError as error:
        raise EngineError(
            "the answer is not the information of a decision server of this release",
            status=502,
            where=endpoint,
            next_step="use the decideploy release that the server runs",
        ) from error


def endpoint_of(url: str, path: str) -> str:
    """The address of ``path`` at the server whose base URL is ``url``; errors as in :func:`check_url`."""
    check_url(url)
    return url.rstrip("/").removesuffix("/v1") + path


def check_url(url: str) -> None:
    """Raise ConfigError, which never shows ``url``, unless it is ``http(s)://HOST[:PORT][/PATH]``."""
    # A password in it would be printed with every error, and sent in the place of the key.
    if "@" in url:
        raise ConfigError(
            "the server's URL holds credentials, which are not sent from there",
            next_step=f"give http://HOST:PORT, and the key by {API_KEY_VARIABLE} or --api-key-file",
        )
    if not _is_address(url):
        raise ConfigError(
            "the server's URL is none of HTTP", next_step="give http://HOST:PORT or https://HOST[:PORT]"
        )


def _is_address(url: str) -> bool:
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        return False
    whole = url.isprintable() and " " not in url and not parts.query and not parts.fragment
    return whole and parts.scheme in ("http", "https") and bool(parts.hostname) and port != 0


def headers(api_key: str | None) -> dict[str, str]:
    """The request headers that carry ``api_key``."""
    return {"Authorization": f"Bearer {api_key}"} if api_key else {}


def body_of(request: DecideRequest) -> dict[str, Any]:
    """The JSON body: what the caller set, so that the server's defaults hold for the rest."""
    return request.model_dump(mode="json", exclude_unset=True, exclude_none=True)


def read_api_key(file: Path | None = None) -> str | None:
    """The key in ``file``, else that in the environment's DECIDEPLOY_API_KEY, else None.

    ConfigError when ``file`` does not hold one line of printable ASCII.
    """
    source = str(file) if file is not None else API_KEY_VARIABLE
    # What is no ASCII is replaced, so that no error about the bytes shows them.
    text = file.read_text("ascii", "replace") if file is not None else os.environ.get(API_KEY_VARIABLE, "")
    key = text.strip()
    if file is None and not key:
        return None
    if not key or not key.isascii() or not key.isprintable():
        raise ConfigError(
            "no API key: there must be one line of printable ASCII",
            where=source,
            next_step="put the key alone into the file or the variable",
        )
    return key


@contextmanager
def http_faults(endpoint: str, timeout_s: float) -> Iterator[None]:
    """Turn the HTTP client's errors into EngineError."""
    import httpx  # noqa: PLC0415

    try:
        yield
    except httpx.TimeoutException as error:
        raise EngineError(
            f"no answer within {timeout_s:g} s",
            status=504,
            where=endpoint,
            next_step="give it more time, or look at the server's log",
        ) from error
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        raise EngineError(
            f"the server cannot be reached: {error}",
            where=endpoint,
            next_step="start it with `decideploy serve`, or correct --url",
        ) from error


def read_reply(reply: httpx.Response, endpoint: str) -> DecideResponse:
    """The decision in ``reply``; errors as in :func:`post_decision`."""
    if reply.status_code != HTTPStatus.OK:
        raise refusal(reply, endpoint)
    try:
        return DecideResponse.model_validate_json(reply.content)
    except ValidationError as error:
        raise EngineError("the answer is not a decision", status=502, where=endpoint) from error


def refusal(reply: httpx.Response, endpoint: str) -> RefusedError | UnservedError:
    """The error that a reply other than 200 stands for."""
    answer = error_answer(reply)
    where = f"{endpoint}: HTTP {reply.status_code}"
    if reply.status_code == HTTPStatus.NOT_FOUND:
        return UnservedError(
            f"the server has no {endpoint[endpoint.index('/v1/') :]}: {answer.message}",
            answer=answer,
            status=502,
            where=endpoint,
            next_step="start it with `decideploy serve`, or with VLLM_PLUGINS=decideploy",
        )
    if reply.status_code in (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN):
        next_step = f"set {API_KEY_VARIABLE}, or name the key's file: --api-key-file"
        return RefusedError(answer.message, answer=answer, where=where, next_step=next_step)
    if reply.status_code == HTTPStatus.TOO_MANY_REQUESTS:
        next_step = "ask fewer at a time, or later"
        return UnservedError(answer.message, answer=answer, status=503, where=where, next_step=next_step)
    if reply.is_client_error:
        return RefusedError(answer.message, answer=answer, where=where)
    status = reply.status_code if reply.status_code in (502, 503, 504) else 502
    return UnservedError(answer.message, answer=answer, status=status, where=where)


def error_answer(reply: httpx.Response) -> ErrorAnswer:
    """What the error envelope says, or the first of the body when it is none."""
    try:
        error = ErrorEnvelope.model_validate_json(reply.content).error
    except ValidationError:
        message = f"HTTP {reply.status_code} {reply.text[:200]}".strip()
        return ErrorAnswer(status=reply.status_code, message=message)
    return ErrorAnswer(
        status=reply.status_code, message=error.message, type=error.type, param=error.param, code=error.code
    )


def read_state(argument: str) -> State:
    """The state that a command line names: ``-`` is standard input, ``@file`` a file, the rest itself.

    A file whose name ends in ``.json`` is sent as JSON, every other as text.
    """
    if argument == "-":
        return read_text(argument)
    if not argument.startswith("@"):
        return argument
    path = Path(argument[1:])
    try:
        text = read_text(path)
        state: State = parse_json(text) if path.suffix == ".json" else text
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"the state cannot be read: {error}", where=str(path), next_step="name a readable UTF-8 file"
        ) from error
    return state


def with_images(state: object, images: Sequence[str]) -> list[object]:
    """``state`` (None: nothing) with ``images`` after it, each a file or a URL, as a list state."""
    if isinstance(state, dict):
        # A list state holds no object; this is the text that the object would have been rendered to.
        state = json.dumps(state, ensure_ascii=False)
    parts = list(state) if isinstance(state, list | tuple) else [state]
    return [part for part in parts if part is not None] + [{"image": image_url(image)} for image in images]


def image_url(argument: str) -> str:
    """A URL as it is, a file as a ``data:`` URL of the type that its name tells."""
    if argument.startswith(("https://", "http://", "data:")):
        return argument
    kind, _ = mimetypes.guess_type(argument)
    if kind is None or not kind.startswith("image/"):
        raise ConfigError(
            "the name tells no type of image",
            where=argument,
            next_step="name a file such as photo.png or photo.jpg, or a URL",
        )
    return f"data:{kind};base64,{base64.b64encode(Path(argument).read_bytes()).decode()}"


def print_decision(response: DecideResponse, console: Console | None = None) -> None:
    """Print one row an option: its text, its probability, a bar; the choice in bold.

    With ``debug`` each system's probabilities stand beside; what System 2 did follows the table.
    """
    console = console or Console()
    systems = debug_columns(response)
    table = Table(box=None, pad_edge=False)
    table.add_column("option", overflow="fold")
    for name in ("probability", *systems):
        table.add_column(name, justify="right")
    table.add_column("")
    for index, (option, probability) in enumerate(zip(response.options, response.probabilities, strict=True)):
        bar = ProgressBar(total=1.0, completed=probability, width=BAR_WIDTH)
        style = "bold" if index == response.choice_index else ""
        figures = [f"{values[index]:.4f}" for values in (response.probabilities, *systems.values())]
        table.add_row(escape(option), *figures, bar, style=style)
    console.print(table)
    print_thinking(response, console)


def debug_columns(response: DecideResponse) -> dict[str, Sequence[float]]:
    """The distributions of the systems that were used, by their names; empty without ``debug``."""
    if response.debug is None:
        return {}
    systems = {"system 1": response.debug.system1, "system 2": response.debug.system2}
    return {name: values for name, values in systems.items() if values is not None}


def print_thinking(response: DecideResponse, console: Console) -> None:
    """Print what System 2 did, when it was asked for, and its reasoning, when that came back."""
    thinking = response.thinking
    if thinking is None:
        return
    if not thinking.used:
        console.print("thinking: not needed")
        return
    end = "" if thinking.finished_within_budget else ", cut off by its budget"
    console.print(f"thinking: {thinking.think_tokens} tokens in {thinking.think_seconds:.2f} s{end}")
    if thinking.reasoning is not None:
        console.print(thinking.reasoning, markup=False, highlight=False)
