"""Wire types of ``POST /v1/systemone``: request and answer."""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal, TypeAlias

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, FiniteFloat
from pydantic_core import PydanticCustomError

from decideploy.api.content import Content

MAX_QUESTIONS: Final = 400
MAX_CHOICES: Final = 255
MAX_LEVELS: Final = 10
SERVED_TYPES: Final = ("noul", "choice", "score")


class Wire(BaseModel):
    """Base of the types: what is not served is refused by name."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class NoulCriteria(Wire):
    """What counts as a yes and as a no."""

    true: Content | None = None
    false: Content | None = None


class NoulQuestion(Wire):
    """A yes/no question; its answer is the probability of yes."""

    type: Literal["noul"]
    instructions: Content | None = None
    criteria: NoulCriteria | None = None


class ChoiceQuestion(Wire):
    """Which one of ``criteria`` applies: name → description."""

    type: Literal["choice"]
    instructions: Content | None = None
    criteria: dict[str, Content | None] = Field(min_length=1, max_length=MAX_CHOICES)


class ScoreQuestion(Wire):
    """Which of the ordered levels in ``criteria`` applies; they count from 0."""

    type: Literal["score"]
    instructions: Content | None = None
    criteria: list[Content] = Field(min_length=1, max_length=MAX_LEVELS)


def _served(question: object) -> object:
    kind = question.get("type") if isinstance(question, dict) else None
    if isinstance(kind, str) and kind not in SERVED_TYPES:
        raise PydanticCustomError(
            "question_not_served",
            "this model answers noul, choice and score questions; {type} is not served",
            {"type": kind[:64]},
        )
    return question


Question: TypeAlias = Annotated[
    Annotated[NoulQuestion | ChoiceQuestion | ScoreQuestion, Field(discriminator="type")],
    BeforeValidator(_served),
]


class Asset(Wire):
    """An image, as base64 or as a part of the same multipart request; its format is read from its bytes."""

    type: Literal["image"] | None = None
    format: Literal["png", "jpg", "jpeg"] | None = None
    data_base64: str | None = None
    part: str | None = None


class SystemOneRequest(Wire):
    """Questions by name over one state.

    ``assets``: images by placeholder; each place in ``state`` where a placeholder stands becomes the image.
    """

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "model": "decide",
                    "state": "I was charged twice. Please help.",
                    "questions": {
                        "billing": {"type": "noul", "instructions": "Is this about billing?"},
                        "tone": {"type": "choice", "criteria": {"calm": None, "angry": "An upset message"}},
                        "urgency": {"type": "score", "criteria": ["Can wait", "This week", "Today"]},
                    },
                }
            ]
        }
    )

    model: str
    state: Content
    questions: dict[str, Question] = Field(min_length=1, max_length=MAX_QUESTIONS)
    assets: dict[str, Asset] | None = Field(default=None, min_length=1)


Probability: TypeAlias = Annotated[FiniteFloat, Field(ge=0, le=1)]


class NoulAnswer(Wire):
    """The probability of yes."""

    type: Literal["noul"] = "noul"
    noul: Probability


class ChoiceAnswer(Wire):
    """The likeliest choice and the probability of each, by name."""

    type: Literal["choice"] = "choice"
    choice: str
    confidence: Probability
    probabilities: dict[str, Probability]


class ScoreAnswer(Wire):
    """The expected level; ``legend`` and ``probabilities`` by level, from "0"."""

    type: Literal["score"] = "score"
    score: Annotated[FiniteFloat, Field(ge=0)]
    confidence: Probability
    legend: dict[str, str | dict[str, Any] | list[Any]]
    probabilities: dict[str, Probability]


Answer: TypeAlias = Annotated[NoulAnswer | ChoiceAnswer | ScoreAnswer, Field(discriminator="type")]


class SystemOneUsage(Wire):
    """Tokens over all questions; the model's input counts once for each reading of it."""

    input_tokens: int
    output_tokens: int


class SystemOneResponse(Wire):
    """Answers by the names of their questions."""

    model: str
    answers: dict[str, Answer]
    usage: SystemOneUsage


class Detail(Wire):
    """One fault: ``loc`` is where, ``type`` a word for programs."""

    loc: list[str | int]
    msg: str
    type: str


class DetailEnvelope(Wire):
    """The body of every answer that is not 200."""

    detail: list[Detail]
