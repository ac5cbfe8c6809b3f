"""Ask a running server: one POST, and the answer as a table."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING, Final

from pydantic import ValidationError
from rich.console import Console
from rich.progress_bar import ProgressBar
from rich.table import Table

from decideploy.decide.schema import DecideRequest, DecideResponse, ErrorEnvelope, State, parse_request
from decideploy.errors import ConfigError, EngineError

if TYPE_CHECKING:
    import httpx

PATH: Final = "/v1/decide"
BAR_WIDTH: Final = 32


def post_decision(
    url: str,
    request: DecideRequest,
    *,
    timeout_s: float = 60.0,
    api_key: str | None = None,
    transport: httpx.BaseTransport | None = None,
) -> DecideResponse:
    """The answer of the server at base URL ``url`` (with or without a final ``/v1``) to ``request``.

    Raises ConfigError with the server's words when it refuses the request, EngineError when it does not
    answer (503), not in ``timeout_s`` seconds (504), or with something else than a decision (502).
    """
    # Imported late: the artifact checks import this package and need no network.
    import httpx  # noqa: PLC0415

    endpoint = url.rstrip("/").removesuffix("/v1") + PATH
    headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
    body = request.model_dump(mode="json", exclude_none=True)
    try:
        with httpx.Client(timeout=timeout_s, transport=transport) as client:
            reply = client.post(endpoint, json=body, headers=headers)
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
) -> DecideResponse:
    """One decision from plain values; RequestError before anything is sent when they make no request.

    Everything else as in :func:`post_decision`.
    """
    fields = {"kind": kind, "state": state, "question": question}
    request = parse_request(fields if options is None else {**fields, "options": list(options)})
    return post_decision(url, request, timeout_s=timeout_s, api_key=api_key)


def read_reply(reply: httpx.Response, endpoint: str) -> DecideResponse:
    """The decision in ``reply``; errors as in :func:`post_decision`."""
    if reply.status_code == HTTPStatus.OK:
        try:
            return DecideResponse.model_validate_json(reply.content)
        except ValidationError as error:
            raise EngineError("the answer is not a decision", status=502, where=endpoint) from error
    message = error_message(reply)
    if reply.status_code == HTTPStatus.NOT_FOUND:
        raise EngineError(
            f"the server has no {PATH}: {message}",
            status=502,
            where=endpoint,
            next_step="start it with `decideploy serve`, or with VLLM_PLUGINS=decideploy",
        )
    if reply.is_client_error:
        raise ConfigError(message, where=f"{endpoint}: HTTP {reply.status_code}")
    status = reply.status_code if reply.status_code in (502, 503, 504) else 502
    raise EngineError(message, status=status, where=f"{endpoint}: HTTP {reply.status_code}")


def error_message(reply: httpx.Response) -> str:
    """The message in the error envelope, or the first of the body when it is none."""
    try:
        return ErrorEnvelope.model_validate_json(reply.content).error.message
    except ValidationError:
        return f"HTTP {reply.status_code} {reply.text[:200]}".strip()


def read_state(argument: str) -> State:
    """The state that a command line names: ``-`` is standard input, ``@file`` a file, the rest itself.

    A file whose name ends in ``.json`` is sent as JSON, every other as text.
    """
    if argument == "-":
        return sys.stdin.read()
    if not argument.startswith("@"):
        return argument
    path = Path(argument[1:])
    try:
        text = path.read_text(encoding="utf-8")
        state: State = json.loads(text) if path.suffix == ".json" else text
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"the state cannot be read: {error}", where=str(path), next_step="name a readable UTF-8 file"
        ) from error
    return state


def print_decision(response: DecideResponse, console: Console | None = None) -> None:
    """Print one row an option: its text, its probability, a bar; the choice in bold."""
    table = Table(box=None, pad_edge=False)
    table.add_column("option", overflow="fold")
    table.add_column("probability", justify="right")
    table.add_column("")
    for index, (option, probability) in enumerate(zip(response.options, response.probabilities, strict=True)):
        bar = ProgressBar(total=1.0, completed=probability, width=BAR_WIDTH)
        style = "bold" if index == response.choice_index else ""
        table.add_row(option, f"{probability:.4f}", bar, style=style)
    (console or Console()).print(table)
