"""The memory model of vLLM 0.30: what each part takes and what is left for KV.

Pure integer arithmetic. docs/memory-model.md has each term's source, and what was observed against it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from decideploy.errors import CapacityError
from decideploy.plan.allocator import ExpertLayout, rounding_bytes
from decideploy.plan.kv_cache import ceil_div

if TYPE_CHECKING:
    from decideploy.artifacts import ModelFacts

GIB = 1024**3
MIB = 1024**2

WEIGHTS = ("weights", "LoRA")
GRAPHS = "CUDA graphs"
FLOOR = "KV cache (startup floor)"

_BF16_BYTES = 2

# On one H200, beside weights and graphs: what stayed taken after a step, and what the peak took beyond the
# formulae in the least favourable of six plans.
_CUDA_CONTEXT_BYTES = 17 * GIB // 25
_STEP_ALLOWANCE_BYTES = 7 * GIB // 10
# Three processes that import torch and vLLM: 3.7 GiB resident with 1 GiB of KV, shared pages counted twice.
_CPU_RUNTIME_BYTES = 3 * GIB
# vLLM estimated 0.3 GiB for its default sizes; each further size holds little, its buffers are shared.
_GRAPH_BASE_BYTES = 300 * MIB
_GRAPH_SIZE_BYTES = 8 * MIB
# Gemma-4's vision tower: 280 tokens an image, of 3 x 3 patches each; positions as its configuration has them.
# vLLM batches images while twice their one-hot positions in int64 fit a tenth of the card. A compiled tower
# takes less: on one H200 the peak of 14 images and of all else in the step was 1.14 GiB.
IMAGE_TOKENS = 280
_IMAGE_PATCHES = 9 * IMAGE_TOKENS
_IMAGE_POSITIONS = 10_240
_IMAGE_BYTES = 84 * MIB
_CARD_BYTES_PER_IMAGE = 10 * 2 * (_IMAGE_PATCHES * 2 * _IMAGE_POSITIONS * 8)
_FREE_DURING_VISION = ("logits", "expert workspace", "activations")
# Components whose layers are split over the GPUs of one engine.
_SPLIT = ("experts", "attention", "dense_mlp", "embedding")


@dataclass(frozen=True, kw_only=True, slots=True)
class MemoryTerm:
    """One part of the sum: what takes the memory, how much, and by which formula."""

    name: str
    size_bytes: int
    formula: str


@dataclass(frozen=True, kw_only=True, slots=True)
class MemoryPlan:
    """The whole sum. ``sum(terms) + kv_cache_bytes <= available_bytes`` and KV is at least the startup floor.

    ``sequences`` is how many sequences of ``max_model_len`` tokens the KV cache holds at once.
    """

    available_bytes: int
    terms: tuple[MemoryTerm, ...]
    kv_cache_bytes: int
    kv_floor_bytes: int
    kv_sequence_bytes: int
    kv_block_bytes: int

    @property
    def used_bytes(self) -> int:
        """All terms without the KV cache."""
        return sum(term.size_bytes for term in self.terms)

    @property
    def kv_blocks(self) -> int:
        """Blocks of the KV cache."""
        return self.kv_cache_bytes // self.kv_block_bytes

    @property
    def weights_bytes(self) -> int:
        """What the engine logs as taken by loading the model: weights and the adapter's buffers."""
        return sum(term.size_bytes for term in self.terms if term.name.startswith(WEIGHTS))

    @property
    def graph_bytes(self) -> int:
        """CUDA graphs, 0 where there are none."""
        return sum(term.size_bytes for term in self.terms if term.name == GRAPHS)

    @property
    def sequences(self) -> float:
        """Full-length sequences that fit the KV cache at once."""
        return self.kv_cache_bytes / self.kv_sequence_bytes

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready values."""
        return {
            **asdict(self),
            "used_bytes": self.used_bytes,
            "kv_blocks": self.kv_blocks,
            "sequences": round(self.sequences, 2),
        }


def weight_terms(facts: ModelFacts, *, images: bool, lora_rank: int, gpus: int = 1) -> tuple[MemoryTerm, ...]:
    """Weights by component, what the engine adds to them at load, and the adapter's buffers.

    Of one of ``gpus``: layers are split over them; the vision tower and the buffers count whole, as parts of
    them are on each.
    """
    components: Mapping[str, int] = facts.weight_bytes
    loaded = {name: size for name, size in components.items() if size and (images or name != "vision")}
    formula = "sizes as loaded" if gpus == 1 else f"sizes as loaded, layers over {gpus} GPUs"
    return (
        *(
            MemoryTerm(
                name=f"weights: {name}",
                size_bytes=ceil_div(size, gpus if name in _SPLIT else 1),
                formula=formula,
            )
            for name, size in loaded.items()
        ),
        MemoryTerm(
            name="weights: V of K=V layers",
            size_bytes=_shared_v_bytes(facts),
            formula="full layers x hidden x KV width x 2 B",
        ),
        MemoryTerm(
            name="weights: rotary tables",
            size_bytes=_rotary_bytes(facts),
            formula="positions x (head width of each layer type) x 2 B",
        ),
        MemoryTerm(
            name="LoRA buffers",
            size_bytes=_lora_bytes(facts, lora_rank),
            formula="2 B x rank x (in + out) of every target module",
        ),
    )


def repacked_terms(facts: ModelFacts, backend: str | None, gpus: int = 1) -> tuple[MemoryTerm, ...]:
    """What an expert kernel's own layout adds to the stored experts, on one of ``gpus``."""
    if backend != "humming":
        return ()
    stored = 3 * (facts.moe_intermediate_size // gpus) * facts.hidden_size
    out_13, in_13, out_2, in_2 = _humming_layout(facts, gpus)
    added = facts.weight_bytes["experts"] // gpus * (out_13 * in_13 + out_2 * in_2 - stored) // stored
    return (
        MemoryTerm(
            name="weights: experts' padding",
            size_bytes=added,
            formula="outputs to 256, inputs to 128 for humming",
        ),
    )


def block_terms(facts: ModelFacts, backend: str | None, gpus: int = 1) -> tuple[MemoryTerm, ...]:
    """What the CUDA allocator rounds the weights up to, on one of ``gpus``."""
    layout = _humming_layout(facts, gpus) if backend == "humming" else None
    return (
        MemoryTerm(
            name="weights: rests of blocks",
            size_bytes=rounding_bytes(facts, experts=layout, gpus=gpus),
            formula="tensors of 10 MiB and more, to 2 MiB",
        ),
    )


def _humming_layout(facts: ModelFacts, gpus: int) -> ExpertLayout:
    """[2 inner, hidden] and [hidden, inner]; vLLM pads outputs to 256 and inputs to 128."""
    inner, hidden = facts.moe_intermediate_size // gpus, facts.hidden_size
    return _padded(2 * inner, 256), _padded(hidden, 128), _padded(hidden, 256), _padded(inner, 128)


def _padded(size: int, multiple: int) -> int:
    return ceil_div(size, multiple) * multiple


def draft_terms(weights_bytes: int) -> tuple[MemoryTerm, ...]:
    """The draft model's weights; Gemma-4's drafts read the keys and values of the model itself."""
    return (MemoryTerm(name="weights: draft", size_bytes=weights_bytes, formula="size of its shards"),)


def step_terms(
    facts: ModelFacts, *, max_num_seqs: int, batched_tokens: int, backend: str | None = None
) -> tuple[MemoryTerm, ...]:
    """What one step takes at its peak, linear in sequences and in batched tokens."""
    vocab = facts.vocab_size
    width, formula = _workspace_width(facts, backend)
    return (
        MemoryTerm(
            name="penalty tables",
            size_bytes=max_num_seqs * (4 * vocab + vocab // 8),
            formula="seqs x (4V + V/8)",
        ),
        MemoryTerm(
            name="logits",
            size_bytes=max_num_seqs * 8 * vocab,
            formula="seqs x (2V bf16 + 2V softcap + 4V processed)",
        ),
        MemoryTerm(
            name="expert workspace",
            size_bytes=batched_tokens * max(facts.top_k or 0, 1) * width * _BF16_BYTES,
            formula=formula,
        ),
        MemoryTerm(
            name="activations",
            size_bytes=batched_tokens * _BF16_BYTES * _activation_width(facts),
            formula="2 B x tokens x (4 hidden + 2 QKV + 2 MLP)",
        ),
    )


def vision_terms(
    *, max_num_seqs: int, max_images: int, batched_tokens: int, total_bytes: int, step: Iterable[MemoryTerm]
) -> tuple[MemoryTerm, ...]:
    """What the largest batch of images takes beyond ``step``, the terms that are free while it is encoded."""
    # In bytes, not in whole images: a little more memory must not cost an image's worth of KV.
    within_step = batched_tokens * _IMAGE_BYTES // IMAGE_TOKENS
    within_card = total_bytes * _IMAGE_BYTES // _CARD_BYTES_PER_IMAGE
    asked = max_num_seqs * max_images * _IMAGE_BYTES
    encoded_bytes = max(_IMAGE_BYTES, min(within_step, within_card, asked))
    step_bytes = sum(term.size_bytes for term in step if term.name in _FREE_DURING_VISION)
    step_bytes += _STEP_ALLOWANCE_BYTES
    return (
        MemoryTerm(
            name="vision step",
            size_bytes=max(encoded_bytes - step_bytes, 0),
            formula=f"{encoded_bytes / _IMAGE_BYTES:.1f} images x 84 MiB, less the text step",
        ),
    )


def cuda_terms(capture_sizes: int) -> tuple[MemoryTerm, ...]:
    """The CUDA context, an allowance for the step, and the graphs of ``capture_sizes`` sizes."""
    return (
        MemoryTerm(
            name="step, beyond formulae", size_bytes=_STEP_ALLOWANCE_BYTES, formula="measured on one H200"
        ),
        MemoryTerm(name="CUDA context", size_bytes=_CUDA_CONTEXT_BYTES, formula="measured on one H200"),
        MemoryTerm(
            name=GRAPHS,
            size_bytes=_GRAPH_BASE_BYTES + capture_sizes * _GRAPH_SIZE_BYTES,
            formula="300 MiB + 8 MiB a size",
        ),
    )


def cpu_terms() -> tuple[MemoryTerm, ...]:
    """The engine's processes themselves."""
    return (
        MemoryTerm(name="engine processes", size_bytes=_CPU_RUNTIME_BYTES, formula="three Python processes"),
    )


def require_fit(
    terms: tuple[MemoryTerm, ...], kv_bytes: int, available_bytes: int, where: str, length: int
) -> None:
    """CapacityError when the terms and ``kv_bytes`` for sequences of ``length`` do not fit."""
    needed = sum(term.size_bytes for term in terms) + kv_bytes
    if needed <= available_bytes:
        return
    largest = max(terms, key=lambda term: term.size_bytes)
    name, size = (FLOOR, kv_bytes) if kv_bytes > largest.size_bytes else (largest.name, largest.size_bytes)
    raise CapacityError(
        f"needs {needed / GIB:.2f} GiB for sequences of {length:,} tokens, {available_bytes / GIB:.2f} GiB "
        f"can be used; largest: {name}, {size / GIB:.2f} GiB",
        needed_bytes=needed,
        available_bytes=available_bytes,
        largest_term=name,
        where=where,
    )


def require_floor(floor_bytes: int, kv_bytes: int, length: int) -> None:
    """CapacityError when the KV cache that was asked for is less than the engine starts with."""
    if kv_bytes < floor_bytes:
        raise CapacityError(
            f"sequences of {length:,} tokens need {floor_bytes / GIB:.2f} GiB of KV cache, "
            f"{kv_bytes / GIB:.2f} GiB are asked for",
            needed_bytes=floor_bytes,
            available_bytes=kv_bytes,
            largest_term=FLOOR,
            where="--kv-cache-memory-bytes",
        )


def _shared_v_bytes(facts: ModelFacts) -> int:
    if not facts.attention_k_eq_v:
        return 0
    full = facts.num_layers - facts.layer_types.count("sliding_attention")
    width = facts.num_global_key_value_heads * facts.global_head_dim
    return full * facts.hidden_size * width * _BF16_BYTES


def _rotary_bytes(facts: ModelFacts) -> int:
    """Cosines and sines of every position the model was made for, however short the sequences served."""
    sliding = facts.layer_types.count("sliding_attention")
    widths = (facts.head_dim if sliding else 0) + (facts.global_head_dim if sliding < facts.num_layers else 0)
    return facts.max_position_embeddings * widths * _BF16_BYTES


def unfiltered_lora_bytes(facts: ModelFacts, rank: int) -> int:
    """What LoRA buffers of every routed expert would take, had the engine no filter of modules."""
    width = 3 * (facts.hidden_size + facts.moe_intermediate_size)
    return _BF16_BYTES * rank * facts.num_layers * facts.num_experts * width


def _workspace_width(facts: ModelFacts, backend: str | None) -> tuple[int, str]:
    """Values a kernel keeps for each token and expert, and the formula; gate and up are one product."""
    hidden, gate_up = facts.hidden_size, 2 * facts.moe_intermediate_size
    if backend == "cutlass":
        return max(2 * gate_up, hidden) + gate_up, "tokens x top_k x (max(4 inner, hidden) + 2 inner) x 2 B"
    # FlashInfer keeps its own, which its source does not tell the size of: taken to be as much.
    own = ", FlashInfer's own taken as much" if (backend or "").startswith("flashinfer") else ""
    return 2 * max(gate_up, hidden), f"2 x tokens x top_k x max(2 inner, hidden) x 2 B{own}"


def _lora_bytes(facts: ModelFacts, rank: int) -> int:
    """One adapter; buffers are as wide as the rank that the engine is told, not the adapter's own."""
    if facts.adapter is None:
        return 0
    targets = {name.rpartition(".")[2] for name in facts.adapter.lora_target_modules}
    sliding = facts.layer_types.count("sliding_attention")
    layers = sliding * _layer_width(facts, targets, full=False)
    layers += (facts.num_layers - sliding) * _layer_width(facts, targets, full=True)
    head = facts.hidden_size + facts.vocab_size if "lm_head" in targets else 0
    return _BF16_BYTES * rank * (layers + head)


def _layer_width(facts: ModelFacts, targets: set[str], *, full: bool) -> int:
    """Sum of in + out over one layer's targeted modules."""
    heads, head_dim = facts.num_attention_heads, facts.global_head_dim if full else facts.head_dim
    kv_heads = facts.num_global_key_value_heads if full else facts.num_key_value_heads
    hidden, mlp = facts.hidden_size, facts.intermediate_size
    widths = {
        "q_proj": hidden + heads * head_dim,
        "k_proj": hidden + kv_heads * head_dim,
        "v_proj": hidden + kv_heads * head_dim,
        "o_proj": hidden + heads * head_dim,
        "gate_proj": hidden + mlp,
        "up_proj": hidden + mlp,
        "down_proj": hidden + mlp,
    }
    return sum(width for name, width in widths.items() if name in targets)


def _activation_width(facts: ModelFacts) -> int:
    sliding = (facts.num_attention_heads + 2 * facts.num_key_value_heads) * facts.head_dim
    full = (facts.num_attention_heads + 2 * facts.num_global_key_value_heads) * facts.global_head_dim
    return 4 * facts.hidden_size + 2 * max(sliding, full) + 2 * facts.intermediate_size
