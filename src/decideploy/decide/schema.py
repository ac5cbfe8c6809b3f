"""Wire types of ``/v1/decide``: request, answer, information, error envelope."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Any, Final, Literal, TypeAlias

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    FiniteFloat,
    JsonValue,
    StrictBool,
    ValidationError,
    ValidationInfo,
    field_validator,
)

from decideploy.decide.documents import fault_message, key_path
from decideploy.decide.slots import CANONICAL_OPTIONS, Kind, fold_lines
from decideploy.errors import ConfigError

MIN_OPTIONS: Final = 2
MAX_OPTIONS: Final = 256
MAX_TEMPLATE_KWARGS: Final = 32
# Far below the depth at which the JSON writer and pydantic give up, each in its own words.
MAX_STATE_DEPTH: Final = 64
MAX_TOLD_FAULTS: Final = 10


class RequestError(ConfigError):
    """The request is at fault: ``param`` names its field, ``code`` the fault, ``status`` is the HTTP 4xx."""

    def __init__(self, what: str, *, param: str | None = None, code: str, status: int = 422) -> None:
        super().__init__(what, where=param or "")
        self.param = param
        self.code = code
        self.status = status


class TextPart(BaseModel):
    """A text in a list state."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    text: str


class ImagePart(BaseModel):
    """An image in a list state: a data URL, or an https URL of a host that the server allows."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    image: str


def _checked_state(value: object) -> object:
    """Refuse what the union below would refuse, in words that name the part at fault."""
    if isinstance(value, str):
        return _encodable(value)
    if isinstance(value, Mapping):
        return _checked_object(value)
    if isinstance(value, Sequence) and not isinstance(value, bytes | bytearray):
        if not value:
            raise ValueError("a list state needs at least one part")
        return [_checked_part(index, part) for index, part in enumerate(value)]
    raise ValueError(
        'must be a string, a JSON object, or a list of strings, {"text": …} and {"image": …} parts'
    )


def _checked_object(value: Mapping[str, object]) -> Mapping[str, object]:
    _check_depth(value)
    try:
        _encodable(json.dumps(value, ensure_ascii=False, allow_nan=False))
    except TypeError as error:
        raise ValueError(f"is not a JSON object: {error}") from error
    return value


def _check_depth(value: object) -> None:
    level = [value]
    for _ in range(MAX_STATE_DEPTH + 1):
        level = [inner for outer in level for inner in _members(outer)]
        if not level:
            return
    raise ValueError(f"nests more than {MAX_STATE_DEPTH} objects and lists in each other")


def _members(value: object) -> Iterable[object]:
    if isinstance(value, Mapping):
        return value.values()
    return value if isinstance(value, list | tuple) else ()


def _checked_part(index: int, part: object) -> object:
    if isinstance(part, str):
        return _encodable(part)
    if isinstance(part, TextPart | ImagePart):
        return part
    if isinstance(part, Mapping) and len(part) == 1:
        ((key, value),) = part.items()
        if key in ("text", "image") and isinstance(value, str):
            return {key: _encodable(value)}
    raise ValueError(f'part [{index}]: must be a string, {{"text": "…"}} or {{"image": "URL"}}')


def _encodable(text: str) -> str:
    """A lone surrogate is legal in JSON but is no text that a tokenizer could read."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ValueError("holds a lone surrogate, which is not valid Unicode text") from error
    return text


def _checked_text(value: object) -> object:
    return _encodable(value) if isinstance(value, str) else value


State: TypeAlias = Annotated[
    str | dict[str, JsonValue] | tuple[str | TextPart | ImagePart, ...], BeforeValidator(_checked_state)
]
Text: TypeAlias = Annotated[str, BeforeValidator(_checked_text)]
ThinkingMode: TypeAlias = Literal["off", "auto", "on"]
Strategy: TypeAlias = Literal["tournament", "single", "permute"]
CalibrationName: TypeAlias = Literal["default", "gold"]


class DecideRequest(BaseModel):
    """One decision: what is known (``state``), what is asked (``question``), what may be answered.

    ``options``: 2 to 256 distinct texts for ``choice``; ``noul`` and ``score`` have canonical ones, which
    may be left out. ``strategy`` says how more than 16 options are read. ``thinking``: ``on`` lets System 2
    reason, ``auto`` only when System 1's largest probability is below ``threshold``; ``think_budget`` is the
    most tokens of reasoning, None for what the context holds. ``calibration`` chooses the temperatures.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    kind: Kind
    state: State
    question: Text
    # The default is validated too: a choice without options must be refused.
    options: tuple[Text, ...] | None = Field(default=None, validate_default=True)
    strategy: Strategy = "tournament"
    thinking: ThinkingMode = "off"
    threshold: Annotated[float, Field(ge=0.0, le=1.0, strict=True)] = 0.8
    think_budget: Annotated[int, Field(ge=1, strict=True)] | None = None
    chat_template_kwargs: dict[str, JsonValue] = Field(default_factory=dict, max_length=MAX_TEMPLATE_KWARGS)
    return_reasoning: StrictBool = False
    debug: StrictBool = False
    calibration: CalibrationName = "default"

    @field_validator("chat_template_kwargs", mode="before")
    @classmethod
    def _checked_kwargs(cls, value: object) -> object:
        return _checked_object(value) if isinstance(value, Mapping) else value

    @field_validator("thinking")
    @classmethod
    def _thinkable(cls, value: ThinkingMode, info: ValidationInfo) -> ThinkingMode:
        if value != "off" and info.data.get("kind") == "score":
            raise ValueError('a score is answered by System 1 alone: leave thinking out or "off"')
        return value

    @field_validator("question")
    @classmethod
    def _not_blank(cls, value: str) -> str:
        if not value.strip():
            raise ValueError("must not be empty")
        return value

    @field_validator("options", mode="before")
    @classmethod
    def _few_enough(cls, value: object, info: ValidationInfo) -> object:
        # Before the items are looked at: each of a million wrong ones would be a fault of its own.
        if isinstance(value, list | tuple):
            check_option_count(len(value), info.data.get("kind"))
        return value

    @field_validator("options")
    @classmethod
    def _fit_the_kind(cls, value: tuple[str, ...] | None, info: ValidationInfo) -> tuple[str, ...] | None:
        kind = info.data.get("kind")
        if kind == "choice":
            check_choice_options(value)
        elif kind is not None and value is not None and value != CANONICAL_OPTIONS[kind]:
            raise _not_canonical(kind)
        return value

    @property
    def answer_options(self) -> tuple[str, ...]:
        """The options in answer order, as the caller wrote them."""
        return self.options if self.options is not None else CANONICAL_OPTIONS[self.kind]

    @property
    def image_urls(self) -> tuple[str, ...]:
        """The images of the state, in order."""
        if isinstance(self.state, str | dict):
            return ()
        return tuple(part.image for part in self.state if isinstance(part, ImagePart))


def check_option_count(count: int, kind: str | None) -> None:
    """Raise ValueError when ``kind`` does not have ``count`` options; a ``kind`` of None has at most 256."""
    if kind is not None and kind in CANONICAL_OPTIONS:
        if count != len(CANONICAL_OPTIONS[kind]):
            raise _not_canonical(kind)
    elif count > MAX_OPTIONS or (kind is not None and count < MIN_OPTIONS):
        raise _miscounted(count)


def _not_canonical(kind: str) -> ValueError:
    return ValueError(f"kind {kind} always answers {json.dumps(CANONICAL_OPTIONS[kind])}; leave options out")


def _miscounted(count: int | str) -> ValueError:
    return ValueError(f"this server answers a choice of {MIN_OPTIONS} to {MAX_OPTIONS} options, got {count}")


def check_choice_options(options: tuple[str, ...] | None) -> None:
    """Raise ValueError when ``options`` are not 2 to 256 distinct texts."""
    if options is None:
        raise _miscounted("none")
    check_option_count(len(options), "choice")
    seen: dict[str, int] = {}
    for index, option in enumerate(fold_lines(option).strip() for option in options):
        if not option:
            raise ValueError(f"option [{index}] is empty")
        # The probability of a text that stands twice is split between the two, silently.
        if option in seen:
            raise ValueError(f"options [{seen[option]}] and [{index}] are the same text")
        seen[option] = index


class Usage(BaseModel):
    """Token counts as the OpenAI API counts them."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int


class ThinkingReport(BaseModel):
    """What System 2 did; ``finished_within_budget`` is False for a thought that its budget cut off.

    ``reasoning`` is there when the request says ``return_reasoning`` and System 2 was used.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    used: bool
    think_tokens: int = 0
    think_seconds: float = 0.0
    finished_within_budget: bool = True
    reasoning: str | None = None


class DebugReport(BaseModel):
    """Both systems' distributions over the options; ``system2`` is None when it was not used."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    system1: tuple[FiniteFloat, ...]
    system2: tuple[FiniteFloat, ...] | None = None


class DecideResponse(BaseModel):
    """``probabilities[i]`` is that of ``options[i]``; they sum to 1; ``choice`` is the likeliest.

    ``thinking`` is there when it was asked for, ``debug`` likewise.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    options: tuple[str, ...]
    probabilities: tuple[FiniteFloat, ...]
    choice: str
    choice_index: int
    usage: Usage
    thinking: ThinkingReport | None = None
    debug: DebugReport | None = None


class BuildInfo(BaseModel):
    """Which build of the engine answers."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    version: str
    recipe: str
    files_sha256: str
    patches: tuple[str, ...]


class Defaults(BaseModel):
    """What a request means that leaves a field out."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    thinking: ThinkingMode = "off"
    threshold: float = 0.8
    think_budget: int | None = None
    strategy: Strategy = "tournament"
    calibration: CalibrationName = "default"


class CalibrationInfo(BaseModel):
    """One calibration file: its temperatures by kind and its digest."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    temperatures: dict[Kind, float]
    sha256: str


class ImageLimits(BaseModel):
    """What images a request may hold."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    max_count: int
    max_bytes: int
    max_pixels: int
    allowed_hosts: tuple[str, ...]


class HeadInfo(BaseModel):
    """The decision head: for each of the 24 slots the token that it is read from and its bias in nats."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    verbalizer_ids: tuple[int, ...]
    bias: tuple[float, ...]


class DraftInfo(BaseModel):
    """The draft model beside the base model: vLLM's name of the method, and tokens drafted at a time."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    method: str
    num_speculative_tokens: int


class KernelTrialInfo(BaseModel):
    """One expert kernel against dequantised arithmetic.

    ``relative_error`` is None where it gave no finite numbers, at most ``bound`` is right; ``why`` is
    empty where it is.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    backend: str
    verdict: Literal["right", "wrong", "failed"]
    relative_error: float | None
    bound: float
    why: str


class KernelTestInfo(BaseModel):
    """The numeric test of the expert kernels before the load.

    ``source`` says what it was, or why it did not run; ``kernel`` is the first that was right, None if none.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    source: str
    kernel: str | None
    trials: tuple[KernelTrialInfo, ...]


class KernelInfo(BaseModel):
    """The expert kernel that was planned and the one that the engine logged; None where there is none."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    planned: str | None
    observed: str | None
    mismatch: bool
    test: KernelTestInfo


class EngineInfo(BaseModel):
    """How the engine was started, as far as answers may depend on it.

    ``kernel`` is None until the start was compared with its plan, and where ``serve`` did not start it.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    max_num_seqs: int
    draft: DraftInfo | None = None
    kernel: KernelInfo | None = None


class InfoResponse(BaseModel):
    """``GET /v1/decide/info``: what this server serves and with which files.

    ``temperatures`` and ``calibration_sha256`` are those of the default calibration; ``images`` is None where
    the engine reads text only. ``model_sha256`` is that of
    :func:`decideploy.artifacts.digest.model_digest`.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    model: str
    adapter: str
    kinds: tuple[Kind, ...]
    max_options: int
    max_model_len: int
    template_version: str
    defaults: Defaults
    temperatures: dict[Kind, float]
    calibration_sha256: str
    calibrations: dict[CalibrationName, CalibrationInfo]
    images: ImageLimits | None
    model_sha256: str
    head: HeadInfo
    engine: EngineInfo
    build: BuildInfo


ErrorType: TypeAlias = Literal["invalid_request_error", "rate_limit_error", "server_error"]


class ErrorBody(BaseModel):
    """``param`` is the request's field at fault, ``code`` a word for programs."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    message: str
    type: ErrorType
    param: str | None = None
    code: str | None = None


class ErrorEnvelope(BaseModel):
    """The body of every answer that is not 200."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    error: ErrorBody


def request_error(faults: Sequence[Mapping[str, Any]]) -> RequestError:
    """Pydantic's first ten ``faults`` and the number of the rest; ``param`` is the first field at fault."""
    told = [_told(fault) for fault in faults[:MAX_TOLD_FAULTS]]
    message = "; ".join(f"{field}: {text}" if field else text for field, text in told)
    if len(faults) > MAX_TOLD_FAULTS:
        message += f"; and {len(faults) - MAX_TOLD_FAULTS} more"
    return RequestError(message, param=told[0][0] or None, code="invalid_request")


def _told(fault: Mapping[str, Any]) -> tuple[str, str]:
    location = tuple(fault["loc"])
    # FastAPI puts "body" before the field.
    field = key_path(location[1:] if location[:1] == ("body",) else location)
    if fault["type"] == "extra_forbidden":
        return (
            field,
            f"this server does not serve this field; it serves {', '.join(DecideRequest.model_fields)}",
        )
    if fault["type"] == "tuple_type":
        return field, "must be a list"
    return field, fault_message(fault["msg"])


def parse_request(content: Mapping[str, object]) -> DecideRequest:
    """``content`` as a request; RequestError names every field at fault."""
    try:
        return DecideRequest.model_validate(content)
    except ValidationError as error:
        raise request_error(error.errors(include_url=False, include_context=False)) from error
