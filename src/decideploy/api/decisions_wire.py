"""Wire types of ``POST /v1/decisions``: request and answer."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Annotated, Any, Final, Literal, TypeAlias

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Discriminator,
    Field,
    FiniteFloat,
    JsonValue,
    StrictBool,
    StrictStr,
    Tag,
    field_validator,
)
from pydantic_core import PydanticCustomError

MAX_QUESTIONS: Final = 400
MAX_CHOICES: Final = 255
MAX_LEVELS: Final = 10
MAX_SAFETY_IDENTIFIER_CHARACTERS: Final = 128
MAX_JSON_DEPTH: Final = 32
MAX_JSON_VALUES: Final = 10_000
MAX_JSON_BYTES: Final = 256 * 2**10

# Tags stand in the locations of faults; these brackets tell them from fields.
TEXT: Final = "<text>"
LIST: Final = "<list>"


def _text_or_list(value: object) -> str | None:
    return TEXT if isinstance(value, str) else LIST if isinstance(value, list) else None


TEXT_OR_LIST: Final = Discriminator(
    _text_or_list,
    custom_error_type="text_or_list",
    custom_error_message="must be a string or an array",
)


def _checked_value(value: object) -> object:
    # The union below would refuse it once for each of its members.
    if not isinstance(value, str | bool):
        raise PydanticCustomError("choice_value", "must be a string or a boolean")
    return value


ChoiceValue: TypeAlias = Annotated[StrictStr | StrictBool, BeforeValidator(_checked_value)]


class Wire(BaseModel):
    """Base of the types: what is not served is refused by name."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class CacheBreakpoint(Wire):
    """A hint about caching; this server caches every prefix by itself."""

    mode: Literal["explicit"]


class InputText(Wire):
    """A text."""

    type: Literal["input_text"]
    text: str
    prompt_cache_breakpoint: CacheBreakpoint | None = None


class InputImage(Wire):
    """An image: a data URL, or an https URL of a host that the server allows."""

    type: Literal["input_image"]
    image_url: str
    detail: Literal["auto"] | None = None
    prompt_cache_breakpoint: CacheBreakpoint | None = None


class InputJson(Wire):
    """A JSON object or an array of objects, read as its text."""

    type: Literal["input_json"]
    data: Annotated[
        Annotated[dict[str, JsonValue], Tag("<object>")] | Annotated[list[dict[str, JsonValue]], Tag(LIST)],
        Discriminator(
            lambda value: (
                LIST if isinstance(value, list) else "<object>" if isinstance(value, dict) else None
            ),
            custom_error_type="object_or_list",
            custom_error_message="must be an object or an array of objects",
        ),
    ]

    @field_validator("data")
    @classmethod
    def _within_limits(cls, value: Any) -> Any:
        level, count = [value], 0
        for _ in range(MAX_JSON_DEPTH + 1):
            count += len(level)
            level = [inner for outer in level for inner in _members(outer)]
        if level:
            raise ValueError(f"nests more than {MAX_JSON_DEPTH} objects and arrays in each other")
        if count > MAX_JSON_VALUES:
            raise ValueError(f"has {count} values, more than {MAX_JSON_VALUES}")
        size_bytes = len(json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode())
        if size_bytes > MAX_JSON_BYTES:
            raise ValueError(f"has {size_bytes} bytes as JSON, more than {MAX_JSON_BYTES}")
        return value


def _members(value: Any) -> Iterator[Any]:
    if isinstance(value, dict):
        yield from value.values()
    elif isinstance(value, list):
        yield from value


class OutputText(Wire):
    """A text that the assistant wrote."""

    type: Literal["output_text"]
    text: str


class OutputRefusal(Wire):
    """The assistant's refusal."""

    type: Literal["refusal"]
    refusal: str


UserPart: TypeAlias = Annotated[InputText | InputImage | InputJson, Field(discriminator="type")]
AssistantPart: TypeAlias = Annotated[OutputText | OutputRefusal, Field(discriminator="type")]
ToolPart: TypeAlias = Annotated[InputText | InputImage, Field(discriminator="type")]


class UserMessage(Wire):
    """What the user wrote."""

    type: Literal["message"] = "message"
    role: Literal["user"]
    content: Annotated[Annotated[str, Tag(TEXT)] | Annotated[list[UserPart], Tag(LIST)], TEXT_OR_LIST]


class InstructionMessage(Wire):
    """What the developer or the system wrote."""

    type: Literal["message"] = "message"
    role: Literal["developer", "system"]
    content: Annotated[Annotated[str, Tag(TEXT)] | Annotated[list[InputText], Tag(LIST)], TEXT_OR_LIST]


class AssistantMessage(Wire):
    """What the assistant wrote."""

    type: Literal["message"] = "message"
    role: Literal["assistant"]
    content: Annotated[Annotated[str, Tag(TEXT)] | Annotated[list[AssistantPart], Tag(LIST)], TEXT_OR_LIST]
    phase: Literal["commentary", "final_answer"] | None = None


Status: TypeAlias = Literal["in_progress", "completed", "incomplete"] | None


class DecisionFunctionCall(Wire):
    """The assistant's call of a function."""

    type: Literal["function_call"]
    call_id: str
    name: str
    arguments: str
    id: str | None = None
    namespace: str | None = None
    status: Status = None


class CustomToolCall(Wire):
    """The assistant's call of a custom tool."""

    type: Literal["custom_tool_call"]
    call_id: str
    name: str
    input: str
    id: str | None = None
    namespace: str | None = None
    status: Status = None


class ToolOutput(Wire):
    """What the call ``call_id`` gave."""

    type: Literal["function_call_output", "custom_tool_call_output"]
    call_id: str
    output: Annotated[Annotated[str, Tag(TEXT)] | Annotated[list[ToolPart], Tag(LIST)], TEXT_OR_LIST]
    id: str | None = None
    status: Status = None


Message: TypeAlias = Annotated[
    UserMessage | InstructionMessage | AssistantMessage, Field(discriminator="role")
]
_MESSAGE: Final = "<message>"


def _item_type(value: object) -> str:
    # A message may leave its type out.
    kind = value.get("type", "message") if isinstance(value, dict) else getattr(value, "type", "message")
    return _MESSAGE if kind == "message" else f"<{kind}>"


Item: TypeAlias = Annotated[
    Annotated[Message, Tag(_MESSAGE)]
    | Annotated[DecisionFunctionCall, Tag("<function_call>")]
    | Annotated[CustomToolCall, Tag("<custom_tool_call>")]
    | Annotated[ToolOutput, Tag("<function_call_output>")]
    | Annotated[ToolOutput, Tag("<custom_tool_call_output>")],
    Discriminator(
        _item_type,
        custom_error_type="item_not_served",
        custom_error_message="is neither a message, a call nor an output",
    ),
]

QuestionPart: TypeAlias = Annotated[InputText | InputImage | InputJson, Field(discriminator="type")]
Instructions: TypeAlias = Annotated[
    Annotated[str, Tag(TEXT)] | Annotated[list[QuestionPart], Tag(LIST)], TEXT_OR_LIST
]


class PredicateQuestion(Wire):
    """How likely the statement is true of the input."""

    type: Literal["predicate"]
    instructions: Instructions
    name: str | None = None


class Choice(Wire):
    """One option; the text ``true`` and the truth value are two values."""

    value: ChoiceValue
    description: str | None = None


class DecisionChoiceQuestion(Wire):
    """Which of the choices applies."""

    type: Literal["choice"]
    instructions: Instructions
    choices: list[Choice] = Field(min_length=2, max_length=MAX_CHOICES)
    name: str | None = None

    @field_validator("choices")
    @classmethod
    def _distinct(cls, value: list[Choice]) -> list[Choice]:
        seen: dict[tuple[bool, str | bool], int] = {}
        for index, choice in enumerate(value):
            key = (isinstance(choice.value, bool), choice.value)
            if key in seen:
                raise ValueError(f"[{seen[key]}] and [{index}] have the same value")
            seen[key] = index
        return value


class Level(Wire):
    """One level of a score."""

    label: str
    description: str | None = None


class DecisionScoreQuestion(Wire):
    """Which of the levels applies, ordered from the lowest."""

    type: Literal["score"]
    instructions: Instructions
    levels: list[Level] = Field(min_length=2, max_length=MAX_LEVELS)
    name: str | None = None


Question: TypeAlias = Annotated[
    PredicateQuestion | DecisionChoiceQuestion | DecisionScoreQuestion, Field(discriminator="type")
]


class CacheOptions(Wire):
    """Hints about caching; this server caches every prefix by itself."""

    mode: Literal["implicit", "explicit"] | None = None
    ttl: Literal["30m"] | None = None


class DecisionsRequest(Wire):
    """Questions over one input.

    The fields about caching and ``safety_identifier`` change no answer here: they are taken and not used.
    """

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "model": "decide",
                    "input": "I was charged twice. Please help.",
                    "questions": [
                        {"type": "predicate", "name": "billing", "instructions": "It is about billing."},
                        {
                            "type": "choice",
                            "instructions": "What is the tone?",
                            "choices": [{"value": "calm"}, {"value": "angry", "description": "upset"}],
                        },
                        {
                            "type": "score",
                            "instructions": "How urgent is it?",
                            "levels": [{"label": "can wait"}, {"label": "this week"}, {"label": "today"}],
                        },
                    ],
                }
            ]
        }
    )

    model: str
    input: Annotated[
        Annotated[str, Tag(TEXT)] | Annotated[list[Item], Field(min_length=1), Tag(LIST)],
        TEXT_OR_LIST,
    ]
    questions: list[Question] = Field(min_length=1, max_length=MAX_QUESTIONS)
    prompt_cache_key: str | None = None
    prompt_cache_options: CacheOptions | None = None
    safety_identifier: str | None = Field(default=None, max_length=MAX_SAFETY_IDENTIFIER_CHARACTERS)


class PredicateAnswer(Wire):
    """The probability that the statement is true."""

    type: Literal["predicate"] = "predicate"
    name: str | None
    probability: FiniteFloat


class ChoiceProbability(Wire):
    """The probability of one choice."""

    value: ChoiceValue
    probability: FiniteFloat


class DecisionChoiceAnswer(Wire):
    """The likeliest choice, and all of them in the question's order."""

    type: Literal["choice"] = "choice"
    name: str | None
    choice: ChoiceValue
    confidence: FiniteFloat
    probabilities: list[ChoiceProbability]


class LevelProbability(Wire):
    """The probability of one level; ``value`` counts from 0."""

    label: str
    value: int
    probability: FiniteFloat


class DecisionScoreAnswer(Wire):
    """The expected level, and all levels in the question's order."""

    type: Literal["score"] = "score"
    name: str | None
    score: FiniteFloat
    confidence: FiniteFloat
    probabilities: list[LevelProbability]


class RefusalAnswer(Wire):
    """The model declined to answer this question; a model that is served here never does."""

    type: Literal["refusal"] = "refusal"
    name: str | None


Answer: TypeAlias = Annotated[
    PredicateAnswer | DecisionChoiceAnswer | DecisionScoreAnswer | RefusalAnswer, Field(discriminator="type")
]


class InputTokensDetails(Wire):
    """``cached_tokens`` came from the engine's prefix cache; no write to it is counted."""

    cached_tokens: int
    cache_write_tokens: int = 0


class OutputTokensDetails(Wire):
    """Tokens of reasoning; none where the adapter alone answers."""

    reasoning_tokens: int


class DecisionUsage(Wire):
    """Tokens over all questions; the model's input counts once for each reading of it."""

    input_tokens: int
    input_tokens_details: InputTokensDetails
    output_tokens: int
    output_tokens_details: OutputTokensDetails
    total_tokens: int


class DecisionsResponse(Wire):
    """Answers in the order of their questions."""

    model: str
    answers: list[Answer]
    usage: DecisionUsage
