"""What the operator asks of the engine, apart from the model and the hardware."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

_MOST_SEQS: Final = 256
_SHARE: Final = 0.92
_PROMPT_TOKENS: Final = 1_024
_THOUGHT_TOKENS: Final = 4_096


@dataclass(frozen=True, kw_only=True, slots=True)
class Workload:
    """Wishes that the plan honours or refuses.

    What is asked: ``clients`` at once send prompts of ``median_prompt_tokens``, up to ``prompt_tokens``
    without their images; System 2 thinks in ``thinking_share`` of the decisions, in up to ``think_tokens``;
    ``goal`` is what to favour. Sequences of the longest such request must fit, and CUDA graphs cover its
    prompt. Lengths that are None are taken as 1,024 and 4,096, or less where a length that is forced, or the
    model, has no room for them. Without ``images`` the vision tower is not loaded; with them a request may
    have ``max_images``, and the engine's own routes fetch them from ``image_hosts`` only.

    What is forced: ``max_model_len`` (tokens), ``max_num_seqs``, ``max_num_batched_tokens`` (tokens a step),
    ``gpu_memory_utilization`` (the share of the card) and ``moe_backend`` are chosen by the plan when None; a
    given value that does not fit is an error, never reduced. ``kv_cache_memory_bytes`` sets the KV cache's
    size in place of the share. ``draft_model`` is a folder with ``draft_bytes`` of weights; it proposes
    ``draft_tokens`` tokens a step.
    ``patched`` is whether kernel choice follows the adapter (patch 0003). ``shutdown_timeout_s`` is how long
    requests in flight may finish after SIGTERM. ``cache_root`` holds the compile caches; None leaves the
    engine's defaults.
    """

    clients: int = 64
    median_prompt_tokens: int = 256
    prompt_tokens: int | None = None
    thinking_share: float = 0.0
    think_tokens: int | None = None
    goal: Literal["latency", "throughput"] = "latency"
    images: bool = True
    max_images: int = 4
    image_hosts: tuple[str, ...] = ()
    max_model_len: int | None = None
    max_num_seqs: int | None = None
    max_num_batched_tokens: int | None = None
    kv_cache_dtype: Literal["auto", "fp8"] = "auto"
    kv_cache_memory_bytes: int | None = None
    gpu_index: int | None = None
    gpu_memory_utilization: float | None = None
    tensor_parallel_size: int = 1
    moe_backend: str | None = None
    draft_model: Path | None = None
    draft_bytes: int = 0
    draft_tokens: int = 4
    patched: bool = True
    served_model_name: str | None = None
    host: str = "127.0.0.1"
    port: int = 8000
    shutdown_timeout_s: int = 30
    cache_root: Path | None = None
    extra_args: tuple[str, ...] = ()

    @property
    def sequences(self) -> int:
        """Requests in one step: as asked, else one for each client, in eights, at most 256."""
        return self.max_num_seqs or min(-(-self.clients // 8) * 8, _MOST_SEQS)

    @property
    def share(self) -> float:
        """The share of the card that the engine may take: as asked, else vLLM's own default."""
        return _SHARE if self.gpu_memory_utilization is None else self.gpu_memory_utilization

    @property
    def longest_prompt_tokens(self) -> int:
        """Tokens of the longest prompt, its images apart."""
        return self.prompt_tokens or max(_PROMPT_TOKENS, self.median_prompt_tokens)

    @property
    def longest_thought_tokens(self) -> int:
        """Tokens of the longest thought, 0 where System 2 is not asked to think."""
        return (self.think_tokens or _THOUGHT_TOKENS) if self.thinking_share else 0
