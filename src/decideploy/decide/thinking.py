"""System 2: the base model reasons in its thinking mode, then reads the answer's letter.

The chat template around the user's text is the model's own. The text itself is encoded apart, so that it
cannot close its turn or open a channel.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from decideploy.decide.decision import Distribution, Thought, TokenCounts
from decideploy.decide.encoder import PromptEncoder
from decideploy.decide.engine import Engine, Generation, Prompt, Reading
from decideploy.decide.head import DecisionHead
from decideploy.decide.prompts import PromptWriter
from decideploy.decide.readout import letter_distribution, letter_ids
from decideploy.decide.schema import DecideRequest, RequestError
from decideploy.decide.template import option_lines, state_segments

if TYPE_CHECKING:
    from PIL.Image import Image

THOUGHT_LABEL = "thought\n"
# The variable of the chat template that turns its thinking mode on.
SWITCH = "enable_thinking"
MAX_TOLD_NAME = 64
INSTRUCTION = "Answer with the letter of the best option and nothing else."


class ChatTemplate(Protocol):
    """The base model's chat template; ``variables`` are the names that a request may set in it."""

    variables: frozenset[str]

    def __call__(self, messages: Sequence[Mapping[str, Any]], values: Mapping[str, Any]) -> str:
        """``messages`` as the text of a prompt that the model continues; RequestError for bad ``values``."""
        ...


@dataclass(frozen=True, kw_only=True, slots=True)
class ThoughtMarks:
    """Token ids of the thought channel: ``open`` and ``close``, and the ``end`` of the model's turn."""

    open: int
    close: int
    end: tuple[int, ...]

    @property
    def stops(self) -> tuple[int, ...]:
        """The tokens that end a thought."""
        return (self.close, *self.end)


def find_marks(encoder: PromptEncoder) -> ThoughtMarks | None:
    """The marks in the tokenizer of ``encoder``; None when it lacks one, so that the model cannot think."""
    opening, close, *end = map(encoder.token_id, ("<|channel>", "<channel|>", "<turn|>", "<eos>"))
    if opening is None or close is None or None in end:
        return None
    return ThoughtMarks(open=opening, close=close, end=tuple(token for token in end if token is not None))


@dataclass(frozen=True, kw_only=True, slots=True)
class Thinker:
    """System 2 over the engine's base model."""

    engine: Engine
    writer: PromptWriter
    head: DecisionHead
    chat_template: ChatTemplate
    marks: ThoughtMarks

    def check_template_values(self, request: DecideRequest) -> None:
        """Raise RequestError when ``chat_template_kwargs`` cannot have the effect that they ask for."""
        values = request.chat_template_kwargs
        if any(self.writer.encoder.names_control(text) for text in _texts(values)):
            raise template_fault("with these values the chat template holds the text of a control token")
        if unknown := sorted(values.keys() - self.chat_template.variables):
            raise template_fault(
                f"{', '.join(name[:MAX_TOLD_NAME] or repr(name) for name in unknown)}: not a variable of the "
                f"chat template that a request may set; {_told(self.chat_template.variables)}"
            )
        thinks = request.thinking != "off"
        if values.get(SWITCH, thinks) is not thinks:
            raise template_fault(
                f'{SWITCH} contradicts thinking "{request.thinking}", which sets it: leave it out'
            )

    async def think(
        self, request: DecideRequest, options: Sequence[str], images: Sequence[Image], *, request_id: str
    ) -> Thought:
        """Reason about 2 to 16 ``options`` of ``request``, then read their letters.

        Raises RequestError when the prompt leaves no room for a thought, EngineError as the engine does.
        """
        before, after = self._around(request)
        opened = (self.marks.open, *self.writer.encoder.encode_markup(THOUGHT_LABEL))
        # Room for an empty thought, one token of it, its end, and the letter.
        prompt = await self.writer.write(
            user_segments(request, options),
            images,
            answer_tokens=len(opened) + 3,
            before=before,
            after=after,
        )
        started = time.monotonic()
        written = await self.engine.generate(
            prompt,
            max_tokens=self._budget(request, prompt),
            stop_token_ids=self.marks.stops,
            request_id=f"{request_id}-think",
        )
        seconds = time.monotonic() - started
        thought = self._thought(written)
        reading = await self.engine.read(
            Prompt(
                token_ids=(*prompt.token_ids, *(thought or opened), self.marks.close), images=prompt.images
            ),
            letter_ids(self.head, len(options)),
            use_adapter=False,
            request_id=f"{request_id}-answer",
        )
        probabilities = letter_distribution(reading.logprobs, len(options), self.head)
        return Thought(
            tokens=len(written.token_ids),
            seconds=seconds,
            finished=written.stopped,
            reasoning=self.writer.encoder.decode(thought).removeprefix(THOUGHT_LABEL).strip(),
            distribution=Distribution(
                probabilities=probabilities, usage=token_counts(written, reading), passes=2
            ),
        )

    def _around(self, request: DecideRequest) -> tuple[list[int], list[int]]:
        """Token ids of the chat template before and after the user's text."""
        mark = uuid.uuid4().hex
        values = {**request.chat_template_kwargs, SWITCH: True}
        rendered = self.chat_template([{"role": "user", "content": mark}], values)
        parts = rendered.split(mark)
        if len(parts) != 2:
            times = len(parts) - 1
            raise template_fault(f"with these values the chat template writes the question {times} times")
        return self.writer.encoder.encode_markup(parts[0]), self.writer.encoder.encode_markup(parts[1])

    def _budget(self, request: DecideRequest, prompt: Prompt) -> int:
        # The mark that ends the thought and the letter come after it.
        room = self.writer.room(prompt) - 2
        return min(room, request.think_budget or room)

    def _thought(self, written: Generation) -> tuple[int, ...]:
        """The open thought without its end; empty when the model answered without opening one."""
        if self.marks.open not in written.token_ids:
            return ()
        return written.token_ids[:-1] if written.stopped else written.token_ids


def token_counts(written: Generation, reading: Reading) -> TokenCounts:
    """Tokens of a thought and of the letter read after it."""
    tokens = len(written.token_ids)
    return TokenCounts(
        prompt_tokens=written.prompt_tokens + reading.prompt_tokens,
        completion_tokens=tokens + 1,
        cached_tokens=written.cached_tokens + reading.cached_tokens,
        reasoning_tokens=tokens,
    )


def user_segments(request: DecideRequest, options: Sequence[str]) -> tuple[str, ...]:
    """The user's turn: state, question, lettered options, and what to answer; images stand between segments.

    A noul has letters too: A for false, B for true. The authors publish no wording; this one is ours.
    """
    first, *others = state_segments(request.state)
    lines = option_lines("choice", options)
    asked = "\n".join(("", "", request.question, "", *lines, "", INSTRUCTION))
    segments = [first.lstrip(), *others]
    segments[-1] += asked
    return tuple(segments)


def _texts(value: object) -> list[str]:
    if isinstance(value, str):
        return [value]
    if isinstance(value, Mapping):
        return [text for pair in value.items() for part in pair for text in _texts(part)]
    return [text for part in value for text in _texts(part)] if isinstance(value, list | tuple) else []


def _told(variables: frozenset[str]) -> str:
    return f"one may set {', '.join(sorted(variables))}" if variables else "it has none"


def template_fault(what: str) -> RequestError:
    """The error of ``chat_template_kwargs`` that cannot be used."""
    return RequestError(what, param="chat_template_kwargs", code="bad_template_kwargs")
