"""From a request to the token ids that the engine reads, within its context."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from decideploy.decide.encoder import PromptEncoder
from decideploy.decide.engine import Prompt
from decideploy.decide.schema import RequestError

if TYPE_CHECKING:
    from PIL.Image import Image

# Longer texts take milliseconds to encode, in which the event loop would serve nobody.
LONG_TEXT_CHARACTERS = 8192


@dataclass(frozen=True, kw_only=True, slots=True)
class ImageTokens:
    """How an image stands in a prompt: ``token_id`` once, which the engine expands to ``count`` tokens."""

    token_id: int
    count: int


@dataclass(frozen=True, kw_only=True, slots=True)
class PromptWriter:
    """Writes prompts of at most ``max_model_len`` tokens, the answer's included.

    ``image_tokens`` is None where the engine takes no images.
    """

    encoder: PromptEncoder
    max_model_len: int
    image_tokens: ImageTokens | None = None

    async def write(
        self,
        segments: Sequence[str],
        images: Sequence[Image],
        *,
        answer_tokens: int,
        before: Sequence[int],
        after: Sequence[int] = (),
    ) -> Prompt:
        """``before``, the user's text ``segments`` with one of ``images`` between any two, ``after``.

        Raises RequestError when that and ``answer_tokens`` exceed the context: nothing is ever truncated.
        """
        around = len(before) + len(after) + answer_tokens + self._image_length(len(images))
        # A text that cannot fit is refused before the seconds that its encoding would take.
        at_least = sum(self.encoder.fewest_tokens(segment) - 1 for segment in segments)
        self._check_length(at_least + around, answer_tokens, counted="at least ")
        encoded = await self._encode(segments)
        self._check_length(sum(map(len, encoded)) + around, answer_tokens)
        token_ids = [*before, *encoded[0]]
        for segment in encoded[1:]:
            token_ids += [self._image_token_id(), *segment]
        return Prompt(token_ids=(*token_ids, *after), images=tuple(images))

    def room(self, prompt: Prompt) -> int:
        """How many tokens the context holds behind ``prompt``, its images expanded."""
        # Each image stands in the prompt as one token already.
        expanded = self._image_length(len(prompt.images)) - len(prompt.images)
        return self.max_model_len - len(prompt.token_ids) - expanded

    async def _encode(self, segments: Sequence[str]) -> list[list[int]]:
        if sum(map(len, segments)) < LONG_TEXT_CHARACTERS:
            return [self.encoder.encode_text(segment) for segment in segments]
        return await asyncio.to_thread(lambda: [self.encoder.encode_text(segment) for segment in segments])

    def _image_token_id(self) -> int:
        if self.image_tokens is None:
            raise no_images()
        return self.image_tokens.token_id

    def _image_length(self, count: int) -> int:
        return count * (self.image_tokens.count if self.image_tokens else 0)

    def _check_length(self, total_tokens: int, answer_tokens: int, *, counted: str = "") -> None:
        if total_tokens > self.max_model_len:
            raise RequestError(
                f"the prompt has {counted}{total_tokens - answer_tokens} tokens; with the answer's "
                f"{answer_tokens} this exceeds the server's max_model_len of {self.max_model_len}. "
                "Input is never truncated: shorten the state",
                param="state",
                code="context_length_exceeded",
                status=400,
            )


def no_images() -> RequestError:
    """The error of an image where none can be read."""
    return RequestError(
        "this server serves no images: its engine was started for text only",
        param="state",
        code="images_not_served",
    )
