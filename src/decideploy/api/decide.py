"""``POST /v1/decide`` and ``GET /v1/decide/info``."""

from __future__ import annotations

from typing import Annotated, Any, Final

from fastapi import APIRouter, Body, Request

from decideploy.api.errors import DECIDE, GATE_STATUSES, POST_STATUSES
from decideploy.api.route import DecideRoute, request_id, unless_client_leaves
from decideploy.decide import DecideRequest, DecideResponse, DecideService, Decision, InfoResponse
from decideploy.decide.schema import DebugReport, ThinkingReport, Usage

PARCEL: Final = "The parcel arrived two weeks late and the box was torn."
EXAMPLES: Final[dict[str, Any]] = {
    "noul": {"value": {"kind": "noul", "state": PARCEL, "question": "Was the box whole?"}},
    "score": {"value": {"kind": "score", "state": {"report": PARCEL}, "question": "How bad is it?"}},
    "choice": {
        "value": {
            "kind": "choice",
            "state": ["The report:", {"text": PARCEL}],
            "question": "What should we offer?",
            "options": ["an apology", "a refund", "a replacement"],
        }
    },
}

router = APIRouter(route_class=DecideRoute, tags=["decide"])


@router.post(  # type: ignore[untyped-decorator]
    "/v1/decide", responses=DECIDE.responses(POST_STATUSES), response_model_exclude_none=True
)
async def post_decide(
    body: Annotated[DecideRequest, Body(openapi_examples=EXAMPLES)], raw_request: Request
) -> DecideResponse:
    """Probabilities of the options, given the state and the question."""
    service: DecideService = raw_request.app.state.decideploy
    work = service.decide(body, request_id=request_id(raw_request))
    return response(await unless_client_leaves(raw_request, work), body)


@router.get("/v1/decide/info", responses=DECIDE.responses(GATE_STATUSES))  # type: ignore[untyped-decorator]
async def get_info(raw_request: Request) -> InfoResponse:
    """What this server serves and with which files."""
    service: DecideService = raw_request.app.state.decideploy
    return service.info()


def response(decision: Decision, request: DecideRequest) -> DecideResponse:
    """``decision`` as the answer to ``request``: what it asked for and no more."""
    usage = decision.usage
    return DecideResponse(
        options=decision.options,
        probabilities=decision.probabilities,
        choice=decision.choice,
        choice_index=decision.choice_index,
        usage=Usage(
            prompt_tokens=usage.prompt_tokens,
            completion_tokens=usage.completion_tokens,
            total_tokens=usage.prompt_tokens + usage.completion_tokens,
        ),
        thinking=None if request.thinking == "off" else thinking_report(decision, request),
        debug=debug_report(decision) if request.debug else None,
    )


def thinking_report(decision: Decision, request: DecideRequest) -> ThinkingReport:
    """What System 2 did for ``decision``; its reasoning when ``request`` wants it."""
    thought = decision.thought
    if thought is None:
        return ThinkingReport(used=False)
    return ThinkingReport(
        used=True,
        think_tokens=thought.tokens,
        think_seconds=thought.seconds,
        finished_within_budget=thought.finished,
        reasoning=thought.reasoning if request.return_reasoning else None,
    )


def debug_report(decision: Decision) -> DebugReport:
    """Both systems' distributions."""
    thought = decision.thought
    return DebugReport(
        system1=decision.system1, system2=thought.distribution.probabilities if thought else None
    )
