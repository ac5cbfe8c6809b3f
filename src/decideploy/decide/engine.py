"""The one seam to the inference engine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol

if TYPE_CHECKING:
    from PIL.Image import Image

# The name under which the engine serves the decision adapter.
ADAPTER_NAME: Final = "system1"


@dataclass(frozen=True, kw_only=True, slots=True)
class Prompt:
    """What the engine reads: token ids, BOS first, with one image token for each of ``images`` in order."""

    token_ids: tuple[int, ...]
    images: tuple[Image, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class Reading:
    """Log-probabilities (nats) of the next token by token id.

    ``prompt_tokens`` counts images as the engine expands them; ``cached_tokens`` of them came from its
    prefix cache.
    """

    logprobs: Mapping[int, float]
    prompt_tokens: int
    cached_tokens: int = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class Generation:
    """Tokens that the base model wrote; a stop token is the last of them when it came (``stopped``)."""

    token_ids: tuple[int, ...]
    stopped: bool
    prompt_tokens: int
    cached_tokens: int = 0


class Engine(Protocol):
    """Both systems on one engine. Cancelling a call aborts its request.

    Raises EngineError: 503 not ready, 504 timeout, 502 bad reply; RequestError when the engine refuses the
    prompt itself.
    """

    async def read(
        self,
        prompt: Prompt,
        allowed_token_ids: Sequence[int],
        *,
        use_adapter: bool = True,
        request_id: str,
    ) -> Reading:
        """The distribution of the next token over ``allowed_token_ids``, with the adapter or without it."""
        ...

    async def generate(
        self, prompt: Prompt, *, max_tokens: int, stop_token_ids: Sequence[int], request_id: str
    ) -> Generation:
        """What the base model writes, up to and with the first of ``stop_token_ids``."""
        ...
