"""The server under load: one HTTP session, and requests that no cache has seen.

aiohttp, because its client costs a fraction of the processor time of httpx's: on a small machine the load
generator must not compete with what it measures.
"""

from __future__ import annotations

import importlib.util
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

from decideploy.decide.client import endpoint_of, headers
from decideploy.errors import ConfigError, EngineError

if TYPE_CHECKING:
    from aiohttp import ClientSession


class Target:
    """Sends to the server at the base URL ``url``."""

    def __init__(self, url: str, session: ClientSession) -> None:
        self._url = url
        self._session = session

    async def status_of(self, path: str, body: Mapping[str, Any]) -> str:
        """The status of the answer, read to its end; ``timeout`` or ``no answer`` when there is none."""
        # Imported late: an optional part.
        import aiohttp  # noqa: PLC0415

        try:
            async with self._session.post(endpoint_of(self._url, path), json=body) as reply:
                await reply.read()
                return str(reply.status)
        except TimeoutError:
            return "timeout"
        except aiohttp.ClientError:
            return "no answer"

    async def ask(self, path: str, body: Mapping[str, Any] | None = None) -> Any:
        """The answer as JSON, by GET without ``body``; EngineError or ConfigError when it is none."""
        import aiohttp  # noqa: PLC0415

        endpoint, method = endpoint_of(self._url, path), "GET" if body is None else "POST"
        try:
            async with self._session.request(method, endpoint, json=body) as reply:
                content = await reply.read()
        except (TimeoutError, aiohttp.ClientError) as error:
            raise EngineError(
                f"the server cannot be reached: {error or type(error).__name__}",
                where=endpoint,
                next_step="start it with `decideploy serve`, or correct --url",
            ) from error
        if reply.status != HTTPStatus.OK:
            where = f"{endpoint}: HTTP {reply.status}"
            kind = ConfigError if reply.status < HTTPStatus.INTERNAL_SERVER_ERROR else EngineError
            raise kind(content[:300].decode(errors="replace"), where=where)
        return json.loads(content)

    async def serves(self, path: str) -> bool:
        """Whether the server has a POST route at ``path``."""
        return await self.status_of(path, {}) != str(HTTPStatus.NOT_FOUND.value)


def check_aiohttp() -> None:
    """Raise ConfigError when aiohttp is absent."""
    if importlib.util.find_spec("aiohttp") is None:
        raise ConfigError(
            "aiohttp is not installed, so no load can be made",
            next_step="install the extra: `pip install 'decideploy[bench]'`",
        )


@asynccontextmanager
async def connected(url: str, *, api_key: str | None, timeout_s: float) -> AsyncIterator[Target]:
    """A target with as many connections as requests are under way."""
    check_aiohttp()
    import aiohttp  # noqa: PLC0415

    async with aiohttp.ClientSession(
        # Idle connections end here before the server ends them, which vLLM by itself does after 5 s: a
        # request that meets the server's end of a connection would count as unanswered.
        connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=2.0),
        timeout=aiohttp.ClientTimeout(total=timeout_s),
        headers=headers(api_key),
    ) as session:
        yield Target(url, session)
