"""The two routes that need no key and that no application behind the gateway answers."""

from __future__ import annotations

from typing import Any, Final, Protocol, runtime_checkable

LIVE_PATH: Final = "/live"
READY_PATH: Final = "/ready"

_LIVE: Final = {
    "type": "object",
    "required": ["live"],
    "properties": {"live": {"type": "boolean"}},
}
_CHECK: Final = {
    "type": "object",
    "required": ["name", "detail", "meaning", "remedy"],
    "properties": {name: {"type": "string"} for name in ("name", "detail", "meaning", "remedy")},
}
_READY: Final = {
    "type": "object",
    "required": ["schema_version", "ready", "phase", "reasons", "failures", "selftest"],
    "properties": {
        "schema_version": {"type": "integer"},
        "ready": {"type": "boolean"},
        "phase": {"enum": ["starting", "testing", "ready", "failing", "draining", "failed"]},
        "reasons": {"type": "array", "items": {"type": "string"}},
        "failures": {"type": "array", "items": _CHECK, "description": "the failed checks of the self-test"},
        "selftest": {"type": ["object", "null"], "description": "its report, once it has ended"},
    },
}


@runtime_checkable
class Described(Protocol):
    """An application that describes its routes, as FastAPI's do."""

    def openapi(self) -> dict[str, Any]:
        """The OpenAPI document."""
        ...


def describe_probes(app: Described) -> None:
    """Let the OpenAPI document of ``app`` tell the two routes as well."""
    describe = app.openapi

    def openapi() -> dict[str, Any]:
        document = describe()
        document["paths"].update(_PATHS)
        return document

    app.openapi = openapi  # type: ignore[method-assign]


def _operation(summary: str, schema: dict[str, Any], good: str, bad: str) -> dict[str, Any]:
    content = {"application/json": {"schema": schema}}
    return {
        "get": {
            "tags": ["gateway"],
            "summary": summary,
            "security": [],
            "responses": {
                "200": {"description": good, "content": content},
                "503": {"description": bad, "content": content},
            },
        }
    }


_PATHS: Final = {
    LIVE_PATH: _operation(
        "Whether the process serves",
        _LIVE,
        "It serves, ready or not",
        "Its event loop has stood still: start it anew",
    ),
    READY_PATH: _operation(
        "Whether requests should come here",
        _READY,
        "The self-test passed and the engine works",
        "Not ready, and why",
    ),
}
