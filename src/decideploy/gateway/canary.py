"""A decision that the server asks itself, through its whole stack but without the network."""

from __future__ import annotations

import asyncio
from typing import Any, Final

import httpx

_PATH: Final = "/v1/decide"
_REQUEST: Final = {
    "kind": "noul",
    "state": "The door was open at noon.",
    "question": "Was the door open at noon?",
}
# As the self-test's: batching moves a probability less than this, a broken engine moves it much more.
_TOLERANCE: Final = 0.05


class Canary:
    """Asks ``app`` with the server's own ``token``, and remembers the first answer."""

    def __init__(self, app: Any, *, token: str, timeout_s: float) -> None:
        self._app, self._token, self._timeout_s = app, token, timeout_s
        self._first: tuple[float, ...] | None = None

    async def fault(self) -> str | None:
        """What is wrong with the answer, None when it is right."""
        try:
            async with asyncio.timeout(self._timeout_s):
                reply = await self._ask()
        except TimeoutError:
            return f"no answer within {self._timeout_s:g} s"
        if reply.status_code != httpx.codes.OK:
            return f"HTTP {reply.status_code}"
        return self._difference(tuple(reply.json()["probabilities"]))

    async def _ask(self) -> httpx.Response:
        transport = httpx.ASGITransport(app=self._app, raise_app_exceptions=False)
        headers = {"Authorization": f"Bearer {self._token}"}
        async with httpx.AsyncClient(
            transport=transport, base_url="http://canary", headers=headers, timeout=None, trust_env=False
        ) as client:
            return await client.post(_PATH, json=_REQUEST)

    def _difference(self, probabilities: tuple[float, ...]) -> str | None:
        self._first = self._first or probabilities
        moved = max(abs(a - b) for a, b in zip(self._first, probabilities, strict=True))
        # Written so that NaN, which compares false with everything, is a fault.
        return None if moved <= _TOLERANCE else f"the same question's answer moved by {moved:.3f}"
