"""The ASGI layer in front of every route of the served application, the engine's own routes included.

``vllm serve --middleware decideploy.gateway.Gateway`` loads it, outermost because vLLM adds it last. It asks
for a key, bounds and times the work, tells whether the server is ready, drains it, counts and logs. Its
settings are a file that the environment variable DECIDEPLOY_SETTINGS names.
"""

from typing import TYPE_CHECKING, Any

from decideploy.gateway.settings import SETTINGS_VARIABLE, ServerSettings, read_settings

if TYPE_CHECKING:
    from decideploy.gateway.metrics import GatewayMetrics, shared_metrics
    from decideploy.gateway.middleware import Gateway

__all__ = [
    "SETTINGS_VARIABLE",
    "Gateway",
    "GatewayMetrics",
    "ServerSettings",
    "read_settings",
    "shared_metrics",
]

# Loaded when they are asked for: whoever writes the settings needs no prometheus_client.
_SERVED = {"Gateway": "middleware", "GatewayMetrics": "metrics", "shared_metrics": "metrics"}


def __getattr__(name: str) -> Any:
    """What only the served application needs."""
    if name not in _SERVED:
        raise AttributeError(name)
    import importlib  # noqa: PLC0415

    return getattr(importlib.import_module(f"{__name__}.{_SERVED[name]}"), name)
