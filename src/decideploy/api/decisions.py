"""``POST /v1/decisions``: questions over a text or a conversation."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

from fastapi import APIRouter, Request

from decideploy.api.asking import Asked, ask
from decideploy.api.confidence import choice_confidence, expected_level, score_confidence
from decideploy.api.content import Location, content_text
from decideploy.api.decisions_wire import (
    Answer,
    AssistantMessage,
    ChoiceProbability,
    CustomToolCall,
    DecisionChoiceAnswer,
    DecisionChoiceQuestion,
    DecisionFunctionCall,
    DecisionScoreAnswer,
    DecisionsRequest,
    DecisionsResponse,
    DecisionUsage,
    InputImage,
    InputJson,
    InputTokensDetails,
    Instructions,
    Item,
    LevelProbability,
    OutputRefusal,
    OutputTokensDetails,
    PredicateAnswer,
    PredicateQuestion,
    Question,
    ToolOutput,
    UserMessage,
)
from decideploy.api.errors import ASKING_STATUSES, DECISIONS
from decideploy.api.faults import Fault, RequestFaults
from decideploy.api.models import check_model
from decideploy.api.route import DecisionsRoute, request_id, unless_client_leaves
from decideploy.api.wording import described, option_lines, score_question
from decideploy.decide import DecideService, Decision, TokenCounts

STATE: Final[Location] = ("body", "input")
PATH: Final = "/v1/decisions"
DIALECT: Final = "decisions"

router = APIRouter(route_class=DecisionsRoute, tags=["decisions"])


@router.post(PATH, responses=DECISIONS.responses(ASKING_STATUSES))  # type: ignore[untyped-decorator]
async def post_decisions(body: DecisionsRequest, raw_request: Request) -> DecisionsResponse:
    """Answers to questions over one input, in their order."""
    service: DecideService = raw_request.app.state.decideploy
    check_model(body.model, raw_request.app.state)
    work = ask(
        service,
        core_state(body),
        [asked(index, question) for index, question in enumerate(body.questions)],
        state_location=STATE,
        request_id=request_id(raw_request),
        dialect=DIALECT,
    )
    return response(service.model, body.questions, await unless_client_leaves(raw_request, work))


def core_state(request: DecisionsRequest) -> Any:
    """The input as the core reads it; RequestFaults names what no input or question may hold.

    A single user message is its content. In a conversation each item begins with who or what it comes from.
    """
    items = [] if isinstance(request.input, str) else request.input
    faults = [*call_faults(items), *image_faults(request.questions)]
    if faults:
        raise RequestFaults(faults)
    if isinstance(request.input, str):
        return request.input
    match request.input:
        case [UserMessage(content=content)]:
            return content if isinstance(content, str) else [_part(part) for part in content]
    return [part for item in request.input for part in _item_parts(item)]


def call_faults(items: Sequence[Item]) -> Iterator[Fault]:
    """A fault for each output that follows no call of its kind with its id."""
    calls: set[tuple[str, str]] = set()
    for index, item in enumerate(items):
        if isinstance(item, DecisionFunctionCall | CustomToolCall):
            calls.add((f"{item.type}_output", item.call_id))
        elif isinstance(item, ToolOutput) and (item.type, item.call_id) not in calls:
            location = (*STATE, index, "call_id")
            yield Fault(location=location, message="no earlier call of this kind has this id")


def image_faults(questions: Sequence[Question]) -> Iterator[Fault]:
    """A fault for each image in a question's instructions."""
    for number, question in enumerate(questions):
        for index, part in enumerate(question.instructions):
            if isinstance(part, InputImage):
                location = (*place(number, "instructions"), index)
                yield Fault(location=location, message="an image may stand in input only")


def _item_parts(item: Item) -> Iterable[str | dict[str, str]]:
    if isinstance(item, DecisionFunctionCall | CustomToolCall):
        name = f"{item.namespace}.{item.name}" if item.namespace else item.name
        given = item.arguments if isinstance(item, DecisionFunctionCall) else item.input
        yield f"{_source(item)} {item.call_id}: {name}({given})"
        return
    source = f"{_source(item)} {item.call_id}" if isinstance(item, ToolOutput) else _source(item)
    content = item.output if isinstance(item, ToolOutput) else item.content
    if isinstance(content, str):
        yield f"{source}: {content}"
        return
    yield f"{source}:"
    for part in content:
        yield _part(part)


def _source(item: Item) -> str:
    if isinstance(item, DecisionFunctionCall | CustomToolCall | ToolOutput):
        return item.type
    phase = item.phase if isinstance(item, AssistantMessage) else None
    return f"{item.role} ({phase})" if phase else item.role


def _part(part: Any) -> str | dict[str, str]:
    if isinstance(part, InputImage):
        return {"image": part.image_url}
    if isinstance(part, InputJson):
        return content_text(part.data)
    return f"refusal: {part.refusal}" if isinstance(part, OutputRefusal) else str(part.text)


def place(index: int, key: str) -> Location:
    """Where ``key`` of the question stands."""
    return ("body", "questions", index, key)


def asked(index: int, question: Question) -> Asked:
    """``question`` in the core's words."""
    instructions = instructions_text(question.instructions)
    places = {"question": place(index, "instructions")}
    if isinstance(question, PredicateQuestion):
        return Asked(kind="noul", question=instructions, places=places)
    if isinstance(question, DecisionChoiceQuestion):
        places["options"] = place(index, "choices")
        options = option_lines(
            [choice.value for choice in question.choices],
            [choice.description for choice in question.choices],
        )
        return Asked(kind="choice", question=instructions, options=options, places=places)
    places["options"] = place(index, "levels")
    levels = [described(level.label, level.description) for level in question.levels]
    return score_question(instructions, levels, places)


def instructions_text(instructions: Instructions) -> str:
    """The text of ``instructions``, a line for each part."""
    if isinstance(instructions, str):
        return instructions
    return "\n".join(str(_part(part)) for part in instructions)


def answer(question: Question, decision: Decision) -> Answer:
    """``decision`` as the answer to ``question``."""
    probabilities = decision.probabilities
    if isinstance(question, PredicateQuestion):
        return PredicateAnswer(name=question.name, probability=probabilities[1])
    if isinstance(question, DecisionChoiceQuestion):
        return DecisionChoiceAnswer(
            name=question.name,
            choice=question.choices[decision.choice_index].value,
            confidence=choice_confidence(probabilities),
            probabilities=[
                ChoiceProbability(value=choice.value, probability=probability)
                for choice, probability in zip(question.choices, probabilities, strict=True)
            ],
        )
    return DecisionScoreAnswer(
        name=question.name,
        score=expected_level(probabilities),
        confidence=score_confidence(probabilities),
        probabilities=[
            LevelProbability(label=level.label, value=value, probability=probability)
            for value, (level, probability) in enumerate(zip(question.levels, probabilities, strict=True))
        ],
    )


def response(model: str, questions: Sequence[Question], decisions: Sequence[Decision]) -> DecisionsResponse:
    """All answers, and the tokens that they cost together."""
    usage = sum((decision.usage for decision in decisions), TokenCounts())
    return DecisionsResponse(
        model=model,
        answers=[answer(*pair) for pair in zip(questions, decisions, strict=True)],
        usage=DecisionUsage(
            input_tokens=usage.prompt_tokens,
            input_tokens_details=InputTokensDetails(cached_tokens=usage.cached_tokens),
            output_tokens=usage.completion_tokens,
            output_tokens_details=OutputTokensDetails(reasoning_tokens=usage.reasoning_tokens),
            total_tokens=usage.prompt_tokens + usage.completion_tokens,
        ),
    )
