"""What the gateway adds to the description of the application behind it.

The two routes that need no key, the key that every other one needs, and the answers that any of them may have
from the gateway instead of its own.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final, Protocol, runtime_checkable

from pydantic import BaseModel

from decideploy import __version__
from decideploy.gateway import refusals
from decideploy.gateway.refusals import Refusal

LIVE_PATH: Final = "/live"
READY_PATH: Final = "/ready"

_INFO: Final = {
    "title": "decideploy",
    "version": __version__,
    "description": "System 1: typed decisions by `/v1/decide`, `/v1/systemone` and `/v1/decisions`. "
    "System 2: the base model by vLLM's own routes.",
}
_SCHEME: Final = "bearer"
_REFERENCE: Final = "#/components/schemas/{model}"
_METHODS: Final = ("get", "head", "options", "post", "put", "patch", "delete", "trace")
_BODY_REFUSALS: Final = (refusals.BODY_LATE, refusals.TOO_LARGE)
_REFUSALS: Final = (refusals.UNAUTHORIZED, refusals.QUEUE_FULL, refusals.NOT_READY, refusals.TIMEOUT)

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


def describe_gateway(app: Described, *, closed: bool) -> None:
    """Let the OpenAPI document of ``app`` tell what the gateway adds; ``closed``: a key is needed."""
    describe = app.openapi

    def openapi() -> dict[str, Any]:
        # The same document each time: what is added must be the same when it is added again.
        document = describe()
        document["info"] = _INFO
        components = document.setdefault("components", {})
        for path, operation in _operations(document):
            _declare_refusals(path, operation)
            _add_schema(components.setdefault("schemas", {}), refusals.envelope_model(path))
        document["paths"].update(_PATHS)
        components.setdefault("securitySchemes", {})[_SCHEME] = {
            "type": "http",
            "scheme": "bearer",
            "description": "An API key." if closed else "This server has no keys: it takes any, and none.",
        }
        document["security"] = [{_SCHEME: []}] if closed else [{_SCHEME: []}, {}]
        return document

    app.openapi = openapi  # type: ignore[method-assign]


def _operations(document: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    for path, item in document["paths"].items():
        if path not in _PATHS:
            yield from ((path, operation) for method, operation in item.items() if method in _METHODS)


def _declare_refusals(path: str, operation: dict[str, Any]) -> None:
    """Declare what the gateway may answer, wherever the route declares no answer of that status itself."""
    responses = operation.setdefault("responses", {})
    told = (*_REFUSALS, *_BODY_REFUSALS) if "requestBody" in operation else _REFUSALS
    for refusal in told:
        responses.setdefault(str(refusal.status), _refused(refusal, path))
    # In the words of the application behind, which has no common form of it.
    responses.setdefault("405", {"description": "another method than those of this path"})


def _refused(refusal: Refusal, path: str) -> dict[str, Any]:
    schema = {"$ref": _REFERENCE.format(model=refusals.envelope_model(path).__name__)}
    return {"description": refusal.message, "content": {"application/json": {"schema": schema}}}


def _add_schema(schemas: dict[str, Any], model: type[BaseModel]) -> None:
    """Add ``model`` and what it refers to, unless the application describes them already."""
    schema = model.model_json_schema(ref_template=_REFERENCE)
    for name, described in {**schema.pop("$defs", {}), model.__name__: schema}.items():
        schemas.setdefault(name, described)


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
