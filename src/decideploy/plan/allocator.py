"""What PyTorch's CUDA allocator keeps beyond the sizes that the tensors of the weights ask for.

Source: on one H200 the engine's "model loading took" was apart from the bytes of its tensors by the rests of
their blocks and by nothing else, to 0.1 MiB, with Marlin and with Humming.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from decideploy.artifacts import ModelFacts

_BF16_BYTES = 2
_MIB = 1024**2
# A tensor of so many bytes gets a block of its own, in multiples of 2 MiB; smaller ones share blocks.
_OWN_BLOCK_BYTES, _BLOCK_BYTES = 10 * _MIB, 2 * _MIB


# Outputs and inputs of w13, then of w2, as a kernel lays the experts out.
ExpertLayout = tuple[int, int, int, int]


def rounding_bytes(facts: ModelFacts, *, experts: ExpertLayout | None = None, gpus: int = 1) -> int:
    """Rests of the blocks of the text model's large tensors, on one of ``gpus``; None is the stored layout.

    A block that was another tensor's before may leave more or less: 36 MiB more were seen with Marlin, 29
    less with Humming, of 17 GiB.
    """
    sizes = (*_dense(facts, gpus), *_experts(facts, experts or _stored(facts, gpus), gpus))
    return sum(count * (-size % _BLOCK_BYTES) for size, count in sizes if size >= _OWN_BLOCK_BYTES)


def _dense(facts: ModelFacts, gpus: int) -> Iterator[tuple[int, int]]:
    """Bytes of each fused matrix, and how many layers have it."""
    sliding = facts.layer_types.count("sliding_attention")
    hidden, inner = facts.hidden_size, facts.intermediate_size
    heads = (
        (facts.head_dim, facts.num_key_value_heads, sliding),
        (facts.global_head_dim, facts.num_global_key_value_heads, facts.num_layers - sliding),
    )
    for width, pairs, layers in heads:
        query = facts.num_attention_heads * width
        yield (query + 2 * pairs * width) * hidden * _BF16_BYTES // gpus, layers
        yield query * hidden * _BF16_BYTES // gpus, layers
    yield 2 * inner * hidden * _BF16_BYTES // gpus, facts.num_layers
    yield inner * hidden * _BF16_BYTES // gpus, facts.num_layers
    yield facts.vocab_size * hidden * _BF16_BYTES // gpus, 1


def _stored(facts: ModelFacts, gpus: int) -> ExpertLayout:
    inner, hidden = (facts.moe_intermediate_size or 0) // gpus, facts.hidden_size
    return 2 * inner, hidden, hidden, inner


def _experts(facts: ModelFacts, layout: ExpertLayout, gpus: int) -> Iterator[tuple[int, int]]:
    """Bytes of the two matrices of all experts of a layer, and of their group scales where they are NVFP4."""
    out_13, in_13, out_2, in_2 = layout
    for values in (out_13 * in_13, out_2 * in_2):
        in_layer = (facts.num_experts or 0) * values
        if facts.quant_algo == "NVFP4":
            yield in_layer // 2, facts.num_layers
            yield in_layer // 16, facts.num_layers
        else:
            yield in_layer * _BF16_BYTES, facts.num_layers
