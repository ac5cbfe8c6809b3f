"""How vLLM 0.30 cuts the KV cache: pages, groups of layers, blocks. Pure integer arithmetic.

Follows ``vllm/v1/core/kv_cache_utils.py`` and ``vllm/v1/kv_cache_interface.py``; a test compares the two.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from decideploy.artifacts import ModelFacts

# Bytes of one stored number by value of --kv-cache-dtype; "auto" is the model's own two-byte type.
KV_DTYPE_BYTES = {"auto": 2, "fp8": 1}
_PADDED_BELOW = 1.5


@dataclass(frozen=True, kw_only=True, slots=True)
class LayerGroups:
    """Groups of one layer type: how many, and how many tokens a block of theirs holds.

    ``window`` is the attention window in tokens, None where the whole sequence is kept.
    """

    count: int
    block_tokens: int
    window: int | None = None

    def blocks(self, max_model_len: int, in_flight_tokens: int) -> int:
        """Blocks that one sequence of ``max_model_len`` holds at its peak, over all groups."""
        if self.window is None:
            return self.count * ceil_div(max_model_len, self.block_tokens)
        held = min(self.window - 1 + in_flight_tokens, max_model_len)
        # One more, because a window seldom starts where a block does.
        return self.count * (ceil_div(held, self.block_tokens) + 1)


@dataclass(frozen=True, kw_only=True, slots=True)
class KvShape:
    """The KV cache of one model: bytes of a block, and the groups of layers that share the blocks.

    Every group has pages of one size: a layer type with smaller tokens packs more of them into a page.
    """

    block_bytes: int
    groups: tuple[LayerGroups, ...]

    @classmethod
    def of(cls, facts: ModelFacts, block_tokens: int, kv_dtype: str = "auto", gpus: int = 1) -> Self:
        """The shape for ``facts`` with ``--block-size`` ``block_tokens`` and ``--kv-cache-dtype``.

        ``gpus`` is ``--tensor-parallel-size``: heads are split over them, a head alone is not.
        """
        layers = _layer_types(facts, KV_DTYPE_BYTES[kv_dtype], gpus)
        if len(layers) == 1:
            (only,) = layers
            groups = (LayerGroups(count=1, block_tokens=block_tokens, window=only.window),)
            return cls(block_bytes=only.token_bytes * block_tokens * only.count, groups=groups)
        largest = max(layer.token_bytes for layer in layers)
        group_layers = _group_layers([layer.count for layer in layers])
        return cls(
            block_bytes=largest * block_tokens * group_layers,
            groups=tuple(
                LayerGroups(
                    count=ceil_div(layer.count, group_layers),
                    block_tokens=block_tokens * _packed(largest, layer.token_bytes),
                    window=layer.window,
                )
                for layer in layers
            ),
        )

    def num_blocks(self, kv_bytes: int) -> int:
        """Blocks in ``kv_bytes`` of memory."""
        return kv_bytes // self.block_bytes

    def blocks_per_sequence(self, max_model_len: int, in_flight_tokens: int) -> int:
        """Blocks that the engine reserves for one sequence of ``max_model_len``."""
        return sum(group.blocks(max_model_len, in_flight_tokens) for group in self.groups)

    def floor_bytes(self, max_model_len: int, in_flight_tokens: int) -> int:
        """The least KV memory vLLM starts with: one sequence of ``max_model_len``, and its null block."""
        return (self.blocks_per_sequence(max_model_len, in_flight_tokens) + 1) * self.block_bytes

    def whole_blocks(self, kv_bytes: int) -> int:
        """``kv_bytes`` rounded up to blocks."""
        return ceil_div(kv_bytes, self.block_bytes) * self.block_bytes

    def sequence_bytes(self, max_model_len: int) -> int:
        """KV memory of one sequence of ``max_model_len`` tokens at steady state."""
        return self.blocks_per_sequence(max_model_len, 0) * self.block_bytes

    def capacity_tokens(self, num_blocks: int, max_model_len: int, in_flight_tokens: int) -> int:
        """What the engine logs as its cache size: sequences of ``max_model_len`` times their length."""
        return int(num_blocks / self.blocks_per_sequence(max_model_len, in_flight_tokens) * max_model_len)


@dataclass(frozen=True, kw_only=True, slots=True)
class _LayerType:
    count: int
    token_bytes: int
    window: int | None


def _layer_types(facts: ModelFacts, number_bytes: int, gpus: int) -> list[_LayerType]:
    """The layer types that are present; keys and values are stored apart even where K is V."""
    sliding = facts.layer_types.count("sliding_attention")
    global_heads = facts.num_global_key_value_heads if facts.attention_k_eq_v else facts.num_key_value_heads
    both = [
        _LayerType(
            count=sliding,
            token_bytes=2 * max(facts.num_key_value_heads // gpus, 1) * facts.head_dim * number_bytes,
            window=facts.sliding_window,
        ),
        _LayerType(
            count=facts.num_layers - sliding,
            token_bytes=2 * max(global_heads // gpus, 1) * facts.global_head_dim * number_bytes,
            window=None,
        ),
    ]
    return [layer for layer in both if layer.count]


def _group_layers(counts: list[int]) -> int:
    """Layers in a group: the rarer type's, unless padding that type is the lesser waste."""
    fewest, most = min(counts), max(counts)
    return most if most < _PADDED_BELOW * fewest else fewest


def _packed(page: int, token: int) -> int:
    """How many times more tokens a page of the largest type holds; 1 where it is padded instead."""
    return page // token if page % token == 0 else 1


def ceil_div(numerator: int, denominator: int) -> int:
    """The quotient rounded up."""
    return -(-numerator // denominator)
