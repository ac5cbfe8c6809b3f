"""``POST /v1/systemone``: named questions over one state."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from fastapi import APIRouter, Request

from decideploy.api.asking import Asked, ask
from decideploy.api.assets import ASSETS, Placeholders, asset_urls
from decideploy.api.confidence import choice_confidence, expected_level, score_confidence
from decideploy.api.content import Content, Location, content_text
from decideploy.api.errors import ASKING_STATUSES, SYSTEMONE
from decideploy.api.faults import Fault, RequestFaults
from decideploy.api.models import check_model
from decideploy.api.multipart import MEDIA_TYPE
from decideploy.api.route import SystemOneRoute, request_id, unless_client_leaves
from decideploy.api.systemone_wire import (
    Answer,
    ChoiceAnswer,
    ChoiceQuestion,
    NoulAnswer,
    NoulQuestion,
    Question,
    ScoreAnswer,
    SystemOneRequest,
    SystemOneResponse,
    SystemOneUsage,
)
from decideploy.api.wording import WHICH_LEVEL, WHICH_OPTION, described, option_lines, score_question
from decideploy.decide import DecideService, Decision, TokenCounts

STATE: Final[Location] = ("body", "state")
PATH: Final = "/v1/systemone"
DIALECT: Final = "systemone"
MULTIPART: Final = {
    "schema": {
        "type": "object",
        "properties": {"request": {"$ref": "#/components/schemas/SystemOneRequest"}},
        "required": ["request"],
        "additionalProperties": {"type": "string", "format": "binary"},
        "description": "The request as JSON, and a part for each asset that names one.",
    },
    "encoding": {"request": {"contentType": "application/json"}},
}

router = APIRouter(route_class=SystemOneRoute, tags=["systemone"])


@router.post(  # type: ignore[untyped-decorator]
    PATH,
    responses=SYSTEMONE.responses(ASKING_STATUSES),
    openapi_extra={"requestBody": {"content": {MEDIA_TYPE: MULTIPART}}},
)
async def post_systemone(body: SystemOneRequest, raw_request: Request) -> SystemOneResponse:
    """Answers by name to questions over one state."""
    service: DecideService = raw_request.app.state.decideploy
    check_model(body.model, raw_request.app.state)
    work = ask(
        service,
        core_state(body, raw_request.state.parts),
        [asked(name, question) for name, question in body.questions.items()],
        state_location=STATE,
        request_id=request_id(raw_request),
        dialect=DIALECT,
    )
    return response(service.model, body.questions, await unless_client_leaves(raw_request, work))


def core_state(request: SystemOneRequest, parts: Mapping[str, bytes]) -> Any:
    """The state as the core reads it; RequestFaults when an asset is at fault or stands where none can."""
    placeholders = Placeholders(urls=asset_urls(request.assets or {}, parts))
    state = placeholders.state(request.state)
    faults = [
        Fault(location=location, message="an image may stand in state only")
        for location, content in _contents(request.questions)
        if placeholders.are_in(content)
    ]
    faults += [
        Fault(location=(*ASSETS, name), message="the placeholder stands nowhere in state")
        for name in placeholders.urls.keys() - placeholders.seen
    ]
    if faults:
        raise RequestFaults(faults)
    return state


def _contents(questions: Mapping[str, Question]) -> Iterable[tuple[Location, Content]]:
    for name, question in questions.items():
        if question.instructions is not None:
            yield place(name, question, "instructions"), question.instructions
        for content in _criteria(question):
            if content is not None:
                yield place(name, question, "criteria"), content


def _criteria(question: Question) -> Sequence[Content | None]:
    if isinstance(question, NoulQuestion):
        return (question.criteria.true, question.criteria.false) if question.criteria else ()
    return list(question.criteria.values()) if isinstance(question, ChoiceQuestion) else question.criteria


def place(name: str, question: Question, key: str) -> Location:
    """Where ``key`` of the question stands, in the form in which validation tells it."""
    return ("body", "questions", name, question.type, key)


def asked(name: str, question: Question) -> Asked:
    """``question`` in the core's words."""
    places = {
        "question": place(name, question, "instructions"),
        "options": place(name, question, "criteria"),
    }
    instructions = _text(question.instructions)
    if isinstance(question, NoulQuestion):
        return Asked(kind="noul", question=noul_text(instructions, question), places=places)
    if isinstance(question, ChoiceQuestion):
        descriptions = [_text(content) for content in question.criteria.values()]
        options = option_lines(list(question.criteria), descriptions)
        return Asked(kind="choice", question=instructions or WHICH_OPTION, options=options, places=places)
    levels = [content_text(level) for level in question.criteria]
    return score_question(instructions or WHICH_LEVEL, levels, places)


def noul_text(instructions: str, question: NoulQuestion) -> str:
    """The question and a line for each outcome that is described."""
    lines = [instructions] if instructions else []
    for outcome in ("true", "false"):
        description = _text(getattr(question.criteria, outcome, None))
        if description:
            lines.append(described(outcome, description))
    return "\n".join(lines)


def _text(content: Content | None) -> str:
    """The text of ``content``, empty where there is none to read."""
    text = "" if content is None else content_text(content)
    return text if text.strip() else ""


def answer(question: Question, decision: Decision) -> Answer:
    """``decision`` as the answer to ``question``."""
    probabilities = decision.probabilities
    if isinstance(question, NoulQuestion):
        return NoulAnswer(noul=probabilities[1])
    if isinstance(question, ChoiceQuestion):
        names = list(question.criteria)
        return ChoiceAnswer(
            choice=names[decision.choice_index],
            confidence=choice_confidence(probabilities),
            probabilities=dict(zip(names, probabilities, strict=True)),
        )
    return ScoreAnswer(
        score=expected_level(probabilities),
        confidence=score_confidence(probabilities),
        legend={str(level): content for level, content in enumerate(question.criteria)},
        probabilities={str(level): probability for level, probability in enumerate(probabilities)},
    )


def response(
    model: str, questions: Mapping[str, Question], decisions: Sequence[Decision]
) -> SystemOneResponse:
    """All answers, and the tokens that they cost together."""
    usage = sum((decision.usage for decision in decisions), TokenCounts())
    return SystemOneResponse(
        model=model,
        answers={
            name: answer(question, decision)
            for (name, question), decision in zip(questions.items(), decisions, strict=True)
        },
        usage=SystemOneUsage(input_tokens=usage.prompt_tokens, output_tokens=usage.completion_tokens),
    )
