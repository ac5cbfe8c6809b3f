"""Requests made from a server's own description, valid and invalid, and what it answers to them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from hypothesis import HealthCheck, Phase, given, reject, settings
from hypothesis import strategies as st
from schemathesis import Case, CheckFunction, GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.core.errors import InvalidSchema
from schemathesis.schemas import APIOperation, BaseSchema
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    negative_data_rejection,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
)

Operation: TypeAlias = APIOperation[Any, Any, Any, Any]

ROUTES = (
    ("POST", "/v1/decide"),
    ("POST", "/v1/systemone"),
    ("POST", "/v1/decisions"),
    ("GET", "/v1/decide/info"),
    ("GET", "/v1/models"),
)
CHECKS: Sequence[CheckFunction] = (
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Fuzzer:
    """Sends ``examples`` requests to a route of ``schema``.

    A valid request names ``model``, which the description does not know. A ``negative`` one breaks the
    description, and must be refused.
    """

    schema: BaseSchema
    model: str
    examples: int

    def send(self, method: str, path: str, *, negative: bool) -> Counter[int]:
        """The answers' statuses; the first answer that is undeclared or a server error is an exception."""
        operation = self.schema[path][method.lower()]
        checks = [*CHECKS, negative_data_rejection] if negative else [*CHECKS]
        statuses: Counter[int] = Counter()

        @settings(
            max_examples=self.examples,
            deadline=None,
            database=None,
            derandomize=True,
            phases=[Phase.generate, Phase.shrink],
            suppress_health_check=list(HealthCheck),
        )
        @given(case=_queries(operation) if method == "GET" else _bodies(operation, negative))
        def send(case: Case) -> None:
            if not negative:
                self._name_model(case.body)
            response = case.call()
            statuses[response.status_code] += 1
            case.validate_response(response, checks=checks)

        send()
        return statuses

    def _name_model(self, body: Any) -> None:
        document = body.get("request", body) if isinstance(body, dict) else None
        if isinstance(document, dict) and "model" in document:
            document["model"] = self.model


@st.composite
def _bodies(draw: st.DrawFn, operation: Operation, negative: bool) -> Case:
    mode = GenerationMode.NEGATIVE if negative else GenerationMode.POSITIVE
    try:
        return draw(operation.as_strategy(mode))
    except InvalidSchema:
        # The generator cannot make every mutation that it chooses.
        reject()


def _queries(operation: Operation) -> st.SearchStrategy[Case]:
    """A route without a body has one valid request; every other adds a query that it does not read."""
    return st.dictionaries(st.text(), st.text()).map(lambda query: operation.Case(query=query))
