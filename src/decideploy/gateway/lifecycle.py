"""From the first self-test to the last answer: what the gateway does when nobody asks it."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import signal
import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Final, Protocol

from decideploy.gateway.canary import Canary
from decideploy.gateway.keys import KeyFile
from decideploy.gateway.metrics import GatewayMetrics
from decideploy.gateway.readiness import Proof, Readiness
from decideploy.gateway.refusals import DRAINED, ENGINE_DEAD, Refusal
from decideploy.gateway.settings import ServerSettings

logger = logging.getLogger(__name__)

Prove = Callable[[str, str], Proof]

_TICK_S: Final = 0.25
_IDLE_POLL_S: Final = 0.05
# A loop that was away for longer serves nobody.
_STUCK_S: Final = 10.0
_CUT_S: Final = 3.0
_CLOSE_S: Final = 2


class Cuttable(Protocol):
    """Work in flight."""

    def cut(self, refusal: Refusal) -> None:
        """Stop it."""
        ...


class Lifecycle:
    """Proves, watches and drains one application; every method is called on its event loop."""

    def __init__(
        self,
        settings: ServerSettings,
        readiness: Readiness,
        keys: KeyFile,
        metrics: GatewayMetrics,
        in_flight: Iterable[Cuttable],
        *,
        token: str,
        prove: Prove | None = None,
    ) -> None:
        self._settings, self._readiness, self._keys, self._metrics = settings, readiness, keys, metrics
        self._in_flight = in_flight
        self._token = token
        self._prove = prove or functools.partial(_selftest, golden=settings.golden)
        self._engine: Any = None
        self._server: Any = None
        self._url: str = ""
        self._canary: Canary | None = None
        self._asking: asyncio.Task[None] | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._ticked_at = time.monotonic()
        self._draining = False
        self._hurry = False
        self._failing_at: float | None = None
        self.engine_is_dead = False

    @property
    def live(self) -> bool:
        """Whether the event loop turns."""
        return time.monotonic() - self._ticked_at < _STUCK_S

    def start(self, app: Any) -> None:
        """The application's routes are up. Its signals are taken here, after the engine took them."""
        _log_with_the_engine()
        state = getattr(app, "state", None)
        self._engine = getattr(state, "engine_client", None)
        self._server = getattr(state, "server", None)
        self._url = own_url(getattr(state, "args", None))
        self._canary = Canary(app, token=self._token, timeout_s=self._settings.stall_s)
        self._tasks.append(asyncio.create_task(self._tick()))
        if self._server is not None and threading.current_thread() is threading.main_thread():
            for number in (signal.SIGTERM, signal.SIGINT):
                asyncio.get_running_loop().add_signal_handler(number, self.drain)

    async def stop(self) -> None:
        """End what runs in the background."""
        tasks = [task for task in (*self._tasks, self._asking) if task]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def drain(self) -> None:
        """Take nothing new, finish what is in flight, then end the server; asked again, finish nothing."""
        self._hurry = self._draining
        if self._draining:
            return
        self._draining = True
        self._readiness.drain()
        logger.info("draining: at most %g s for what is in flight", self._settings.drain_timeout_s)
        if self._asking:
            self._asking.cancel()
        self._tasks.append(asyncio.create_task(self._drain()))

    async def _drain(self) -> None:
        if not await self._idle_within(self._settings.drain_timeout_s):
            logger.warning("draining: %d requests are cut off", len(list(self._in_flight)))
            self._cut_all(DRAINED)
            self._hurry = False
            await self._idle_within(_CUT_S)
        logger.info("drained")
        self._exit()

    async def _idle_within(self, timeout_s: float) -> bool:
        deadline = time.monotonic() + timeout_s
        while busy := any(True for _ in self._in_flight):
            if self._hurry or time.monotonic() > deadline:
                break
            await asyncio.sleep(_IDLE_POLL_S)
        return not busy

    def _cut_all(self, refusal: Refusal) -> None:
        for exchange in list(self._in_flight):
            exchange.cut(refusal)

    def _exit(self) -> None:
        """End the HTTP server; the engine is stopped after it, by the process that holds both."""
        if self._server is not None:
            self._server.config.timeout_graceful_shutdown = _CLOSE_S
            self._server.should_exit = True

    async def _tick(self) -> None:
        while True:
            self._ticked_at = time.monotonic()
            self.check_engine()
            self._check_failing()
            if fault := self._keys.refresh():
                logger.error("the API keys stay as they were: %s", fault)
            if self._readiness.phase == "starting" and getattr(self._server, "started", True):
                self._test()
            if self._readiness.wants_canary and (self._asking is None or self._asking.done()):
                self._asking = asyncio.create_task(self._ask())
            await asyncio.sleep(_TICK_S)

    def check_engine(self) -> None:
        """Refuse everything from the moment that the engine is dead, and end soon after."""
        if not self.engine_is_dead and self._engine is not None and self._engine.errored:
            self._bury("the engine has died")

    def _check_failing(self) -> None:
        """An engine that hangs does not die by itself: whoever waits for that waits for ever."""
        if self._readiness.phase != "failing":
            self._failing_at = None
            return
        self._failing_at = self._failing_at or time.monotonic()
        if time.monotonic() - self._failing_at > self._settings.give_up_s:
            self._bury(f"the engine has failed for {self._settings.give_up_s:g} s")

    def _bury(self, reason: str) -> None:
        self.engine_is_dead = True
        logger.error(reason)
        self._readiness.fail(reason)
        self._cut_all(ENGINE_DEAD)
        asyncio.get_running_loop().call_later(self._settings.dead_linger_s, self._exit)

    def _test(self) -> None:
        self._readiness.test()
        loop = asyncio.get_running_loop()
        # A daemon: a self-test that hangs must not keep the process from ending.
        threading.Thread(target=self._run_test, args=(loop,), name="self-test", daemon=True).start()

    def _run_test(self, loop: asyncio.AbstractEventLoop) -> None:
        try:
            tell = functools.partial(self._tested, self._prove(self._url, self._token))
        except Exception as error:
            logger.exception("the self-test could not be run")
            tell = functools.partial(self._readiness.fail, f"the self-test could not be run: {error}")
        # The server may have ended meanwhile.
        with contextlib.suppress(RuntimeError):
            loop.call_soon_threadsafe(tell)

    def _tested(self, proof: Proof) -> None:
        for check in proof.failures:
            logger.error("self-test: %s: %s (%s)", check.name, check.meaning, check.detail)
        self._readiness.tested(proof)
        logger.info("self-test: %s", "failed" if proof.failures else "passed")

    async def _ask(self) -> None:
        assert self._canary is not None
        self._readiness.canary_sent()
        try:
            fault = await self._canary.fault()
        except Exception as error:
            logger.exception("the canary's answer cannot be read")
            fault = repr(error)
        self._metrics.canaries.labels("failed" if fault else "ok").inc()
        if fault:
            logger.warning("canary: %s", fault)
            self._readiness.canary_failed()
        else:
            self._readiness.progress()


def _log_with_the_engine() -> None:
    """Our loggers have no output of their own: where the engine's lines go, ours go."""
    ours, theirs = logging.getLogger("decideploy"), logging.getLogger("vllm")
    if theirs.handlers and not ours.handlers:
        ours.handlers, ours.propagate = list(theirs.handlers), False
        ours.setLevel(theirs.level or logging.INFO)


def own_url(args: Any) -> str:
    """Where the server of vLLM's ``args`` reaches itself."""
    from decideploy.serve.launch import reachable_host  # noqa: PLC0415

    return f"http://{reachable_host(getattr(args, 'host', None) or '')}:{getattr(args, 'port', None) or 8000}"


def _selftest(url: str, token: str, *, golden: Path | None) -> Proof:
    from decideploy.serve.selftest import selftest  # noqa: PLC0415

    return selftest(url, api_key=token, golden=golden)
