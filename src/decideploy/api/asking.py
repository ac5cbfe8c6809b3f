"""The questions of one request, in the core's words; all of them are asked at once over one state.

A dialect gives each question as :class:`Asked`, with the places in the client's request of what the core
may find fault with. Faults leave as :class:`RequestFaults` and :class:`PlacedError`, which name those places.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

from pydantic import TypeAdapter, ValidationError

from decideploy.api.content import Location
from decideploy.api.faults import Fault, PlacedError, RequestFaults
from decideploy.decide.concurrency import all_of
from decideploy.decide.decision import Decision, Distribution, TokenCounts
from decideploy.decide.documents import fault_message
from decideploy.decide.schema import DecideRequest, ImageLimits, RequestError, State
from decideploy.decide.service import DecideService
from decideploy.decide.slots import Kind

if TYPE_CHECKING:
    from PIL.Image import Image

STATE: Final[TypeAdapter[State]] = TypeAdapter(State)


@dataclass(frozen=True, kw_only=True, slots=True)
class Asked:
    """One question; ``options`` only for a choice. ``places``: the core's field → the client's."""

    kind: Kind
    question: str
    options: tuple[str, ...] | None = None
    places: Mapping[str, Location] = field(default_factory=dict)

    @property
    def is_certain(self) -> bool:
        """Whether there is one option only, which the model need not be asked about."""
        return self.options is not None and len(self.options) == 1


async def ask(
    service: DecideService,
    state: State,
    asked: Sequence[Asked],
    *,
    state_location: Location,
    request_id: str,
    dialect: str,
) -> list[Decision]:
    """The decisions in the order of ``asked``; the first that fails cancels the others.

    Raises RequestFaults before anything is asked, PlacedError and EngineError when a question fails.
    """
    requests = decide_requests(state, asked, state_location=state_location)
    service = await _with_images(service, requests, state_location)
    return await all_of(
        _decide(service, one, request, state_location, request_id=f"{request_id}-{index}", dialect=dialect)
        for index, (one, request) in enumerate(zip(asked, requests, strict=True))
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class LoadedImages:
    """The images of one request, loaded once for all of its questions."""

    limits: ImageLimits
    images: tuple[Image, ...]

    async def load(self, urls: Sequence[str]) -> tuple[Image, ...]:
        """The images, whatever their URLs: every question has the same state."""
        return self.images


async def _with_images(
    service: DecideService, requests: Sequence[DecideRequest | None], state_location: Location
) -> DecideService:
    """``service`` with the images of the requests' state at hand; itself where there are none."""
    urls = next((request.image_urls for request in requests if request), ())
    if not urls or service.images is None:
        return service
    try:
        images = await service.images.load(urls)
    except RequestError as error:
        raise PlacedError(error, state_location) from error
    return replace(service, images=LoadedImages(limits=service.images.limits, images=images))


async def _decide(
    service: DecideService,
    asked: Asked,
    request: DecideRequest | None,
    state_location: Location,
    *,
    request_id: str,
    dialect: str,
) -> Decision:
    if request is None:
        return certainty(asked)
    try:
        return await service.decide(request, request_id=request_id, dialect=dialect)
    except RequestError as error:
        raise PlacedError(error, place(error.param, asked, state_location)) from error


def certainty(asked: Asked) -> Decision:
    """The decision of a question with one option: that option, with probability 1 and no reading."""
    sure = Distribution(probabilities=(1.0,), usage=TokenCounts(), passes=0)
    return Decision.read(asked.kind, asked.options or (), sure)


def place(param: str | None, asked: Asked, state_location: Location) -> Location:
    """Where in the client's request the core's field ``param`` (``options[1]``) comes from."""
    name = (param or "").partition("[")[0].partition(".")[0]
    return asked.places.get(name, state_location)


def decide_requests(
    state: State, asked: Sequence[Asked], *, state_location: Location
) -> list[DecideRequest | None]:
    """A request of the core for each question, None where there is one option only.

    Raises RequestFaults with the faults of all.
    """
    faults: list[Fault] = []
    checked = _checked_state(state, state_location, faults)
    requests = [None if one.is_certain else _request(one, faults) for one in asked]
    if faults:
        raise RequestFaults(faults)
    # The state is checked once; with many questions its checks would cost more than theirs.
    return [request and request.model_copy(update={"state": checked}) for request in requests]


def _checked_state(state: State, location: Location, faults: list[Fault]) -> State | None:
    try:
        return STATE.validate_python(state)
    except ValidationError as error:
        # A union tells a fault once for each of its members.
        faults.append(Fault(location=location, message=_messages(error)[0]))
        return None


def _request(asked: Asked, faults: list[Fault]) -> DecideRequest | None:
    fields = {"kind": asked.kind, "state": "", "question": asked.question, "options": asked.options}
    try:
        return DecideRequest.model_validate(fields)
    except ValidationError as error:
        located = zip(error.errors(include_url=False), _messages(error), strict=True)
        faults += [
            Fault(location=asked.places[str(fault["loc"][0])], message=text) for fault, text in located
        ]
        return None


def _messages(error: ValidationError) -> list[str]:
    return [fault_message(fault["msg"]) for fault in error.errors(include_url=False)]
