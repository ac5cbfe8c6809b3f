"""Decisions over one engine: what every dialect calls."""

from __future__ import annotations

import itertools
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from decideploy.decide.calibration import Calibration
from decideploy.decide.decision import Decision, Distribution, Thought, TokenCounts
from decideploy.decide.engine import ADAPTER_NAME, Engine
from decideploy.decide.head import DecisionHead
from decideploy.decide.prompts import PromptWriter, no_images
from decideploy.decide.readout import allowed_token_ids, read_out
from decideploy.decide.schema import (
    MAX_OPTIONS,
    BuildInfo,
    CalibrationInfo,
    CalibrationName,
    DecideRequest,
    Defaults,
    EngineInfo,
    HeadInfo,
    ImageLimits,
    InfoResponse,
    KernelInfo,
    RequestError,
)
from decideploy.decide.slots import KINDS, MAX_READ_OPTIONS
from decideploy.decide.strategies import permute, single, tournament
from decideploy.decide.template import render_segments
from decideploy.decide.thinking import Thinker

if TYPE_CHECKING:
    from PIL.Image import Image

_STRATEGIES = {"tournament": tournament, "single": single, "permute": permute}


class ImageSource(Protocol):
    """Where the images of a request come from."""

    @property
    def limits(self) -> ImageLimits:
        """What a request may hold."""
        ...

    async def load(self, urls: Sequence[str]) -> tuple[Image, ...]:
        """The images in order; RequestError when one cannot be had or is none."""
        ...


class Observer(Protocol):
    """Told of every decision, for metrics."""

    def decided(
        self, *, dialect: str, kind: str, outcome: str, seconds: float, passes: int, thought: bool
    ) -> None:
        """``outcome`` is ``ok`` or the name of the error's class; ``passes`` are readings of the engine."""
        ...


@dataclass(frozen=True, kw_only=True, slots=True)
class DecideService:
    """What the routes need; ``calibrations`` has ``default`` and, where the model has one, ``gold``.

    ``images`` is None where the engine takes none, ``thinker`` where it has no chat template. ``kernel``
    tells of the expert kernel, once it is known.
    """

    engine: Engine
    writer: PromptWriter
    head: DecisionHead
    calibrations: Mapping[CalibrationName, Calibration]
    model: str
    build: BuildInfo
    engine_info: EngineInfo
    model_sha256: str
    thinker: Thinker | None = None
    images: ImageSource | None = None
    kernel: Callable[[], KernelInfo | None] = lambda: None
    observers: Sequence[Observer] = field(default=())

    async def decide(self, request: DecideRequest, *, request_id: str, dialect: str = "decide") -> Decision:
        """Answer ``request``. Engine requests are named after ``request_id``.

        Raises RequestError when the request cannot be served as it is, EngineError when the engine fails.
        """
        started, outcome, decision = time.monotonic(), "cancelled", None
        try:
            decision = await self._decide(request, request_id)
            outcome = "ok"
        except Exception as error:
            outcome = type(error).__name__
            raise
        finally:
            for observer in self.observers:
                observer.decided(
                    dialect=dialect,
                    kind=request.kind,
                    outcome=outcome,
                    seconds=time.monotonic() - started,
                    passes=decision.passes if decision else 0,
                    thought=bool(decision and decision.thought),
                )
        return decision

    async def _decide(self, request: DecideRequest, request_id: str) -> Decision:
        calibration = self._calibration(request)
        # Before System 1 is asked, and also when it may turn out that System 2 is not needed.
        if self.thinker is not None:
            self.thinker.check_template_values(request)
        images = await self._load(request.image_urls)
        options = request.answer_options
        # A client may use its id twice; the engine may not.
        name = f"{request_id}-{uuid.uuid4().hex[:8]}"
        read = Reader(service=self, request=request, images=images, calibration=calibration, name=name)
        if len(options) <= MAX_READ_OPTIONS:
            distribution = await read(range(len(options)))
        else:
            distribution = await _STRATEGIES[request.strategy](len(options), read)
        decision = Decision.read(request.kind, options, distribution)
        if request.thinking == "off" or (
            request.thinking == "auto" and max(decision.system1) >= request.threshold
        ):
            return decision
        return decision.after(await self._think(request, decision, images, name))

    async def _think(
        self, request: DecideRequest, decision: Decision, images: tuple[Image, ...], name: str
    ) -> Thought:
        """System 2's thought about the options; above 16 about the likeliest 16, the others keep theirs."""
        if self.thinker is None:
            raise RequestError(
                "this model has no chat template to think with", param="thinking", code="thinking_not_served"
            )
        likeliest = sorted(range(len(decision.options)), key=decision.system1.__getitem__, reverse=True)
        shown = sorted(likeliest[:MAX_READ_OPTIONS])
        options = [decision.options[index] for index in shown]
        thought = await self.thinker.think(request, options, images, request_id=name)
        return thought.among(decision.system1, shown)

    def _calibration(self, request: DecideRequest) -> Calibration:
        if request.calibration not in self.calibrations:
            raise RequestError(
                f"this model has no {request.calibration} calibration",
                param="calibration",
                code="calibration_not_served",
            )
        return self.calibrations[request.calibration]

    async def _load(self, urls: Sequence[str]) -> tuple[Image, ...]:
        if not urls:
            return ()
        if self.images is None:
            raise no_images()
        return await self.images.load(urls)

    def info(self) -> InfoResponse:
        """What this server serves."""
        calibrations = {
            name: CalibrationInfo(
                temperatures={kind: calibration.temperature(kind) for kind in KINDS},
                sha256=calibration.sha256,
            )
            for name, calibration in self.calibrations.items()
        }
        return InfoResponse(
            model=self.model,
            adapter=ADAPTER_NAME,
            kinds=KINDS,
            max_options=MAX_OPTIONS,
            max_model_len=self.writer.max_model_len,
            template_version=self.head.slots.template_version,
            defaults=Defaults(),
            temperatures=calibrations["default"].temperatures,
            calibration_sha256=calibrations["default"].sha256,
            calibrations=calibrations,
            images=self.images.limits if self.images else None,
            model_sha256=self.model_sha256,
            head=HeadInfo(verbalizer_ids=self.head.verbalizer_ids, bias=self.head.bias),
            engine=self.engine_info.model_copy(update={"kernel": self.kernel()}),
            build=self.build,
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class Reader:
    """One pass of System 1 over some options of ``request``."""

    service: DecideService
    request: DecideRequest
    images: tuple[Image, ...]
    calibration: Calibration
    name: str
    _passes: Iterator[int] = field(default_factory=itertools.count)

    async def __call__(self, indices: Sequence[int]) -> Distribution:
        """Probabilities of the options ``indices``, 2 to 16 of them, in that order."""
        service, kind = self.service, self.request.kind
        options = [self.request.answer_options[index] for index in indices]
        prompt = await service.writer.write(
            render_segments(self.request.model_copy(update={"options": tuple(options)})),
            self.images,
            before=(service.writer.encoder.bos_id,),
            answer_tokens=1,
        )
        reading = await service.engine.read(
            prompt,
            allowed_token_ids(service.head, kind, len(options)),
            request_id=f"{self.name}-{next(self._passes)}",
        )
        temperature = self.calibration.temperature(kind)
        probabilities = read_out(reading.logprobs, kind, len(options), service.head, temperature)
        usage = TokenCounts(
            prompt_tokens=reading.prompt_tokens, completion_tokens=1, cached_tokens=reading.cached_tokens
        )
        return Distribution(probabilities=probabilities, usage=usage, passes=1)
