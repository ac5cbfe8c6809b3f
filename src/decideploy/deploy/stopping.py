"""How long ``decideploy serve`` takes to stop: every road gives it more."""

from __future__ import annotations

from typing import Final

_ENGINE_END_S: Final = 30
_MARGIN_S: Final = 10


def serve_stop_s(drain_s: int) -> int:
    """Seconds that ``serve`` may take after SIGTERM: ``drain_s`` for what is in flight, then the end."""
    return drain_s + _ENGINE_END_S


def stop_timeout_s(drain_s: int) -> int:
    """Seconds after which whoever stops ``serve`` may kill it: less would cut the drain short."""
    return serve_stop_s(drain_s) + _MARGIN_S
