"""The longest sequence: what the workload needs, what was forced, and what the card holds."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from decideploy.errors import ConfigError
from decideploy.plan.kv_cache import KvShape
from decideploy.plan.memory import IMAGE_TOKENS
from decideploy.plan.workload import Workload

if TYPE_CHECKING:
    from decideploy.artifacts import ModelFacts

_ANSWER_TOKENS = 1
# The chat template around System 2's question, the mark that ends its thought, and the letter after it.
_AROUND_THOUGHT_TOKENS = 64


def needed_tokens(workload: Workload, *, images: bool) -> int:
    """The longest request that ``workload`` tells of, with its answer; ``images``: whether any are served."""
    return (
        workload.longest_prompt_tokens
        + (workload.max_images * IMAGE_TOKENS if images else 0)
        + _thought(workload.longest_thought_tokens)
        + _ANSWER_TOKENS
    )


def least_len(facts: ModelFacts, workload: Workload, *, images: bool) -> int:
    """The shortest ``--max-model-len`` that will do: the asked one, else what the workload needs."""
    return min(
        workload.max_model_len or needed_tokens(workload, images=images), facts.max_position_embeddings
    )


def model_len(
    facts: ModelFacts,
    workload: Workload,
    shape: KvShape,
    *,
    images: bool,
    in_flight: int,
    cap: int,
    left_bytes: int,
) -> int:
    """``--max-model-len``: as asked, else the longest whose startup floor fits ``left_bytes``.

    That is ``cap`` or a half, a quarter and so on of it, and never less than the workload needs: where not
    even that fits, it is returned all the same, for the sum to be refused. ConfigError where lengths that
    were asked for contradict each other or the model.
    """
    longest = facts.max_position_embeddings
    _check_asked(workload, longest)
    if workload.max_model_len is not None:
        return workload.max_model_len
    need = least_len(facts, workload, images=images)
    lengths = [min(longest, max(cap, need))]
    while lengths[-1] > need:
        lengths.append(max(lengths[-1] // 2, need))
    return next((n for n in lengths if shape.floor_bytes(n, in_flight) <= left_bytes), need)


def length_notes(workload: Workload, length: int, *, images: bool) -> Iterator[str]:
    """Which requests of the workload sequences of ``length`` do not hold."""
    need = needed_tokens(workload, images=images)
    if need > length:
        yield (
            f"the longest request of this workload has {need:,} tokens "
            f"({describe(workload, images=images)}), sequences have {length:,}: "
            "longer prompts are refused, longer thoughts are cut"
        )


def describe(workload: Workload, *, images: bool) -> str:
    """The parts of the longest request, as a reader adds them up."""
    parts = [f"prompt {workload.longest_prompt_tokens:,}"]
    if images:
        parts.append(f"{workload.max_images} images of {IMAGE_TOKENS}")
    if workload.longest_thought_tokens:
        parts.append(f"thought {_thought(workload.longest_thought_tokens):,}")
    return " + ".join([*parts, f"answer {_ANSWER_TOKENS}"])


def _thought(tokens: int) -> int:
    return tokens + _AROUND_THOUGHT_TOKENS if tokens else 0


def _check_asked(workload: Workload, longest: int) -> None:
    """ConfigError for what was asked for in so many words and cannot be kept."""
    forced = workload.max_model_len
    if forced is not None and forced > longest:
        raise ConfigError(
            f"max_model_len {forced} exceeds the model's {longest}",
            where="--max-model-len",
            next_step=f"ask for {longest} or less",
        )
    if workload.think_tokens and not workload.thinking_share:
        raise ConfigError(
            "the length of thoughts is given, and no decision is said to think",
            where="--think-tokens",
            next_step="give --thinking-share too, or leave it out",
        )
    thought = workload.think_tokens or 0
    asked = (workload.prompt_tokens or 0) + _thought(thought) + _ANSWER_TOKENS
    limit, whose = (
        (longest, "the model's longest") if forced is None else (forced, "the asked --max-model-len")
    )
    if asked > limit:
        raise ConfigError(
            f"the longest request that is asked for has {asked} tokens, more than {whose} of {limit}",
            where="--prompt-tokens" if workload.prompt_tokens else "--think-tokens",
            next_step="ask for shorter prompts or thoughts"
            + (f", or for --max-model-len {asked}" if asked <= longest else ""),
        )
