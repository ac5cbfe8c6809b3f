"""The memory model of vLLM 0.30: what each part takes and what is left for KV.

Pure integer arithmetic. Formulas were read from vLLM 0.30's source and checked against one H200 run of the
26B shape (utilization 0.5, 4,096 batched tokens, 64 sequences: 50.75 GiB of KV).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from decideploy.errors import CapacityError

if TYPE_CHECKING:
    from decideploy.artifacts import ModelFacts

GIB = 1024**3
MIB = 1024**2

_BF16_BYTES = 2

# What one H200 run left unexplained by the other terms: CUDA context, cuBLAS workspaces, allocator slack.
_CUDA_CONTEXT_BYTES = 7 * GIB // 4
# Three processes that import torch and vLLM: 3.7 GiB resident with 1 GiB of KV, shared pages counted twice.
_CPU_RUNTIME_BYTES = 3 * GIB
# vLLM estimated 0.3 GiB for its default sizes; each further size holds little, its buffers are shared.
_GRAPH_BASE_BYTES = 300 * MIB
_GRAPH_SIZE_BYTES = 8 * MIB
# Gemma-4's vision tower: 280 tokens an image, of 3 x 3 patches each; positions as its configuration has them.
_IMAGE_TOKENS = 280
_IMAGE_PATCHES = 9 * _IMAGE_TOKENS
_IMAGE_POSITIONS = 10_240
_FREE_DURING_VISION = ("logits", "expert workspace", "activations")
# Options of `plan` and `serve`; the other settings are the plan's own, so no remedy names them.
_SHORTER = "lower --max-model-len"
_FEWER_SEQUENCES = "lower --max-num-seqs"
_TEXT_ONLY = "serve text only with --max-images 0"


@dataclass(frozen=True, kw_only=True, slots=True)
class MemoryTerm:
    """One part of the sum: what takes the memory, how much, and by which formula."""

    name: str
    size_bytes: int
    formula: str
    remedy: str = ""


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

    @property
    def used_bytes(self) -> int:
        """All terms without the KV cache."""
        return sum(term.size_bytes for term in self.terms)

    @property
    def sequences(self) -> float:
        """Full-length sequences that fit the KV cache at once."""
        return self.kv_cache_bytes / self.kv_sequence_bytes

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready values."""
        return {**asdict(self), "used_bytes": self.used_bytes, "sequences": round(self.sequences, 2)}


@dataclass(frozen=True, kw_only=True, slots=True)
class KvShape:
    """How the KV cache is cut: bytes a block over one group of layers, and tokens a block holds.

    vLLM gives every group of layers pages of one size: a layer type with smaller tokens packs more of them.
    """

    block_bytes: int
    sliding_groups: int
    full_groups: int
    sliding_block_tokens: int
    full_block_tokens: int
    window: int

    @classmethod
    def of(cls, facts: ModelFacts, block_tokens: int) -> KvShape:
        """The shape for ``facts`` with blocks of ``block_tokens`` tokens of the largest layer type (bf16)."""
        sliding = facts.layer_types.count("sliding_attention")
        full = facts.num_layers - sliding
        # Two tensors a layer even where K is V: vLLM stores both.
        sliding_token = 2 * facts.num_key_value_heads * facts.head_dim * _BF16_BYTES
        full_token = 2 * facts.num_global_key_value_heads * facts.global_head_dim * _BF16_BYTES
        present = [size for size, layers in ((sliding_token, sliding), (full_token, full)) if layers]
        page_bytes = max(present) * block_tokens
        group = min(layers for layers in (sliding, full) if layers)
        return cls(
            block_bytes=page_bytes * group,
            sliding_groups=_ceil_div(sliding, group),
            full_groups=_ceil_div(full, group),
            sliding_block_tokens=max(1, page_bytes // sliding_token),
            full_block_tokens=max(1, page_bytes // full_token),
            window=facts.sliding_window or 0,
        )

    def floor_bytes(self, max_model_len: int, batched_tokens: int) -> int:
        """The least KV memory vLLM starts with: one sequence of ``max_model_len``, in chunks."""
        held = min(max(self.window - 1, 0) + 2 * batched_tokens, max_model_len)
        return self._blocks(held, max_model_len) * self.block_bytes

    def sequence_bytes(self, max_model_len: int) -> int:
        """KV memory of one sequence of ``max_model_len`` tokens at steady state."""
        held = min(max(self.window - 1, 0), max_model_len)
        return self._blocks(held, max_model_len) * self.block_bytes

    def _blocks(self, sliding_tokens: int, full_tokens: int) -> int:
        sliding = self.sliding_groups * (_ceil_div(sliding_tokens, self.sliding_block_tokens) + 1)
        return sliding + self.full_groups * _ceil_div(full_tokens, self.full_block_tokens)


def weight_terms(facts: ModelFacts, *, images: bool, lora_rank: int) -> tuple[MemoryTerm, ...]:
    """Weights by component, the V projections that K=V layers get at load, and the adapter's buffers."""
    components: Mapping[str, int] = facts.weight_bytes
    loaded = {name: size for name, size in components.items() if size and (images or name != "vision")}
    return (
        *(
            MemoryTerm(name=f"weights: {name}", size_bytes=size, formula="from the shards")
            for name, size in loaded.items()
        ),
        MemoryTerm(
            name="weights: V of K=V layers",
            size_bytes=_shared_v_bytes(facts),
            formula="full layers x hidden x KV width x 2 B",
        ),
        MemoryTerm(
            name="LoRA buffers",
            size_bytes=_lora_bytes(facts, lora_rank),
            formula="2 B x rank x (in + out) of every target module",
        ),
    )


def repacked_terms(facts: ModelFacts, backend: str | None) -> tuple[MemoryTerm, ...]:
    """What an expert kernel's own layout adds to the stored experts."""
    if backend != "humming":
        return ()
    inner, hidden = facts.moe_intermediate_size, facts.hidden_size
    # [2 inner, hidden] and [hidden, inner]; vLLM pads outputs to 256 and inputs to 128.
    stored = 3 * inner * hidden
    padded = _padded(2 * inner, 256) * _padded(hidden, 128) + _padded(hidden, 256) * _padded(inner, 128)
    added = facts.weight_bytes["experts"] * (padded - stored) // stored
    return (
        MemoryTerm(
            name="weights: experts' padding",
            size_bytes=added,
            formula="outputs to 256, inputs to 128 for humming",
        ),
    )


def _padded(size: int, multiple: int) -> int:
    return _ceil_div(size, multiple) * multiple


def step_terms(facts: ModelFacts, *, max_num_seqs: int, batched_tokens: int) -> tuple[MemoryTerm, ...]:
    """What one step takes at its peak, linear in sequences and in batched tokens."""
    vocab = facts.vocab_size
    return (
        MemoryTerm(
            name="penalty tables",
            size_bytes=max_num_seqs * (4 * vocab + vocab // 8),
            formula="seqs x (4V + V/8)",
            remedy=_FEWER_SEQUENCES,
        ),
        MemoryTerm(
            name="logits",
            size_bytes=max_num_seqs * 8 * vocab,
            formula="seqs x (2V bf16 + 2V softcap + 4V processed)",
            remedy=_FEWER_SEQUENCES,
        ),
        MemoryTerm(
            name="expert workspace",
            size_bytes=2 * batched_tokens * max(facts.top_k or 0, 1) * facts.hidden_size * _BF16_BYTES,
            formula="2 x tokens x top_k x hidden x 2 B",
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
    """What the largest batch of images takes beyond ``step``, the terms that are free while it is encoded.

    The tower spreads each patch's position over a one-hot row; vLLM batches images while twice that fits a
    tenth of the card's ``total_bytes``.
    """
    one_hot = _IMAGE_PATCHES * 2 * _IMAGE_POSITIONS
    scheduled = min(batched_tokens // _IMAGE_TOKENS, max_num_seqs * max_images)
    images = max(1, min(scheduled, total_bytes // 10 // (2 * 8 * one_hot)))
    step_bytes = sum(term.size_bytes for term in step if term.name in _FREE_DURING_VISION)
    return (
        MemoryTerm(
            name="vision step",
            size_bytes=max(images * one_hot * (8 + _BF16_BYTES) - step_bytes, 0),
            formula=f"{images} images x 2,520 patches x 2 x 10,240 positions x 10 B, less the text step",
            remedy=_TEXT_ONLY,
        ),
    )


def cuda_terms(capture_sizes: int) -> tuple[MemoryTerm, ...]:
    """The CUDA context and the graphs of ``capture_sizes`` sizes."""
    return (
        MemoryTerm(
            name="CUDA context and slack", size_bytes=_CUDA_CONTEXT_BYTES, formula="calibrated on one H200"
        ),
        MemoryTerm(
            name="CUDA graphs",
            size_bytes=_GRAPH_BASE_BYTES + capture_sizes * _GRAPH_SIZE_BYTES,
            formula="300 MiB + 8 MiB a size",
        ),
    )


def cpu_terms() -> tuple[MemoryTerm, ...]:
    """The engine's processes themselves."""
    return (
        MemoryTerm(name="engine processes", size_bytes=_CPU_RUNTIME_BYTES, formula="three Python processes"),
    )


def require_fit(terms: tuple[MemoryTerm, ...], floor_bytes: int, available_bytes: int, where: str) -> None:
    """Raise CapacityError when the terms and the KV floor do not fit; it names the largest and the remedy."""
    needed = sum(term.size_bytes for term in terms) + floor_bytes
    if needed <= available_bytes:
        return
    largest = max(terms, key=lambda term: term.size_bytes)
    floor_leads = floor_bytes > largest.size_bytes
    name = "KV cache (startup floor)" if floor_leads else largest.name
    size = floor_bytes if floor_leads else largest.size_bytes
    remedy = _SHORTER if floor_leads else largest.remedy
    raise CapacityError(
        f"needs {needed / GIB:.2f} GiB, {available_bytes / GIB:.2f} GiB can be used; "
        f"largest: {name}, {size / GIB:.2f} GiB",
        needed_bytes=needed,
        available_bytes=available_bytes,
        largest_term=name,
        where=where,
        next_step=_next_step(needed - available_bytes, terms, floor_bytes, remedy),
    )


def _next_step(missing_bytes: int, terms: tuple[MemoryTerm, ...], floor_bytes: int, leading: str) -> str:
    """The option that can free ``missing_bytes``, ``leading`` before others, or the truth that none can."""
    adjustable: dict[str, int] = {leading: 0} if leading else {}
    adjustable[_SHORTER] = floor_bytes
    for term in terms:
        if term.remedy:
            adjustable[term.remedy] = adjustable.get(term.remedy, 0) + term.size_bytes
    enough = [remedy for remedy, size in adjustable.items() if size > missing_bytes]
    if enough:
        return f"{enough[0]}, or free {missing_bytes / GIB:.2f} GiB"
    return f"use a device with {missing_bytes / GIB:.2f} GiB more; no option frees as much"


def _shared_v_bytes(facts: ModelFacts) -> int:
    if not facts.attention_k_eq_v:
        return 0
    full = facts.num_layers - facts.layer_types.count("sliding_attention")
    width = facts.num_global_key_value_heads * facts.global_head_dim
    return full * facts.hidden_size * width * _BF16_BYTES


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


def _ceil_div(numerator: int, denominator: int) -> int:
    return -(-numerator // denominator)
