"""What the operator asks of the engine, apart from the model and the hardware."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, kw_only=True, slots=True)
class Workload:
    """Wishes that the plan honours or refuses.

    ``max_model_len`` (tokens) and ``max_num_batched_tokens`` (tokens a step) are chosen by the plan when
    None; a given value that does not fit is an error, never reduced. ``prompt_tokens`` is the longest
    prompt that CUDA graphs should cover. Without ``images`` the vision tower is not loaded; with them a
    request may have ``max_images``, and the engine's own routes fetch them from ``image_hosts`` only.
    ``patched`` is whether kernel choice follows the adapter (patch
    0003). ``shutdown_timeout_s`` is how long requests in flight may finish after SIGTERM. ``cache_root``
    holds the compile caches; None leaves the engine's defaults.
    """

    max_model_len: int | None = None
    max_num_seqs: int = 64
    max_num_batched_tokens: int | None = None
    prompt_tokens: int = 1024
    images: bool = True
    max_images: int = 4
    image_hosts: tuple[str, ...] = ()
    gpu_index: int | None = None
    gpu_memory_utilization: float = 0.92
    tensor_parallel_size: int = 1
    moe_backend: str | None = None
    patched: bool = True
    served_model_name: str | None = None
    host: str = "127.0.0.1"
    port: int = 8000
    shutdown_timeout_s: int = 30
    cache_root: Path | None = None
    extra_args: tuple[str, ...] = ()
