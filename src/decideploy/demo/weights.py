"""Weights of the demo model, its adapter and its decision head.

The scales are not cosmetic. They were fitted once, against the reference engine, so that the decisions are
informative: the last prompt token is always ":", so attention has to be sharp enough to carry the state,
the question and the options into it, and small enough everywhere that bfloat16 noise stays far below the
differences that matter.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np
from numpy.typing import NDArray

from decideploy.demo import architecture as arch
from decideploy.demo import tokenizer
from decideploy.demo.random_weights import bell, flat

Array = NDArray[np.float32]

SEED = 30
TEXT_PREFIX = "model.language_model"

EMBEDDING_STD = arch.HIDDEN_SIZE**-0.5
UNUSED_EMBEDDING_STD = EMBEDDING_STD / 16
# Dimension 0 of the residual stream is never written by a layer: it is positive for every token that can
# occur and decides, in the tied lm_head, that unused vocabulary rows are not sampled.
USED_MARK = 1 / 64
UNUSED_MARK = -1 / 2
FINAL_NORM_MARK = 128.0
FINAL_NORM = 1.0
# The token that every prompt ends with: small, so that the context outweighs it in the last hidden state.
LAST_TOKEN = ":"
LAST_TOKEN_SCALE = 0.25

QUERY_NORM = 1.0
KEY_NORM = {"sliding_attention": 0.25, "full_attention": 0.25}
POST_ATTENTION_NORM = {"sliding_attention": 0.5, "full_attention": 2.0}
POST_FEEDFORWARD_NORM = 0.1
POST_DENSE_NORM = 0.75
POST_EXPERTS_NORM = 0.5
# Wide apart, so that the second expert's weight is small where noise may swap it with the third.
ROUTER_STD = 4.0

ADAPTER_STD = 0.5
HEAD_STD = {"noul": 0.32, "score": 0.29, "choice": 0.31}
HEAD_BIAS_STD = 0.25
# For each slot the stream, of 64 tried, whose row sees least of what all prompts share: no slot always wins.
HEAD_STREAMS = (35, 60, 9, 44, 39, 60, 35, 2, 27, 28, 15, 11, 40, 19, 54, 17, 49, 0, 11, 7, 37, 62, 49, 18)


def text_tensors() -> dict[str, Array]:
    """Tensors of the language model but the routed experts, by checkpoint name."""
    tensors = {f"{TEXT_PREFIX}.embed_tokens.weight": _embedding()}
    tensors[f"{TEXT_PREFIX}.norm.weight"] = _final_norm()
    for layer in range(arch.NUM_LAYERS):
        prefix = f"{TEXT_PREFIX}.layers.{layer}"
        tensors |= {f"{prefix}.{name}": values for name, values in _layer(prefix, layer).items()}
    return tensors


def _embedding() -> Array:
    shape = (arch.VOCAB_SIZE, arch.HIDDEN_SIZE)
    table = flat(SEED, "embed_tokens.unused", shape, UNUSED_EMBEDDING_STD)
    table[:, 0] = UNUSED_MARK
    used = tokenizer.used_ids()
    table[used] = bell(SEED, "embed_tokens.used", (len(used), arch.HIDDEN_SIZE), EMBEDDING_STD)
    table[tokenizer.vocabulary()[LAST_TOKEN]] *= LAST_TOKEN_SCALE
    table[used, 0] = USED_MARK
    return table


def _final_norm() -> Array:
    weight = np.full(arch.HIDDEN_SIZE, FINAL_NORM, np.float32)
    weight[0] = FINAL_NORM_MARK
    return weight


def _layer(prefix: str, layer: int) -> dict[str, Array]:
    kind = arch.layer_type(layer)
    norms = {
        "input_layernorm": 1.0,
        "post_attention_layernorm": POST_ATTENTION_NORM[kind],
        "pre_feedforward_layernorm": 1.0,
        "pre_feedforward_layernorm_2": 1.0,
        "post_feedforward_layernorm_1": POST_DENSE_NORM,
        "post_feedforward_layernorm_2": POST_EXPERTS_NORM,
        "post_feedforward_layernorm": POST_FEEDFORWARD_NORM,
    }
    tensors = {f"{name}.weight": _constant(arch.HIDDEN_SIZE, value) for name, value in norms.items()}
    tensors["layer_scalar"] = _constant(1, 1.0)
    return tensors | _attention(prefix, layer) | _dense_mlp(prefix) | _router(prefix)


def _constant(size: int, value: float) -> Array:
    return np.full(size, value, np.float32)


def attention_shapes(layer: int) -> dict[str, tuple[int, int]]:
    """``(out, in)`` of a layer's projections; a full layer has no v_proj, its value is the key's."""
    full = layer in arch.FULL_LAYERS
    head_dim = arch.GLOBAL_HEAD_DIM if full else arch.HEAD_DIM
    queries = arch.NUM_HEADS * head_dim
    keys = head_dim * (arch.NUM_GLOBAL_KV_HEADS if full else arch.NUM_KV_HEADS)
    shapes = {"q_proj": (queries, arch.HIDDEN_SIZE), "k_proj": (keys, arch.HIDDEN_SIZE)}
    if not full:
        shapes["v_proj"] = (keys, arch.HIDDEN_SIZE)
    return shapes | {"o_proj": (arch.HIDDEN_SIZE, queries)}


def mlp_shapes(size: int) -> dict[str, tuple[int, int]]:
    """Projection shapes ``(out, in)`` of a gated MLP of the given inner size."""
    inner, hidden = size, arch.HIDDEN_SIZE
    return {"gate_proj": (inner, hidden), "up_proj": (inner, hidden), "down_proj": (hidden, inner)}


def _attention(prefix: str, layer: int) -> dict[str, Array]:
    kind = arch.layer_type(layer)
    head_dim = arch.GLOBAL_HEAD_DIM if layer in arch.FULL_LAYERS else arch.HEAD_DIM
    tensors = {
        f"self_attn.{name}.weight": _projection(f"{prefix}.self_attn.{name}", shape)
        for name, shape in attention_shapes(layer).items()
    }
    tensors["self_attn.q_norm.weight"] = _constant(head_dim, QUERY_NORM)
    tensors["self_attn.k_norm.weight"] = _constant(head_dim, KEY_NORM[kind])
    return tensors


def _dense_mlp(prefix: str) -> dict[str, Array]:
    return {
        f"mlp.{name}.weight": _projection(f"{prefix}.mlp.{name}", shape)
        for name, shape in mlp_shapes(arch.MLP_SIZE).items()
    }


def _router(prefix: str) -> dict[str, Array]:
    shape = (arch.NUM_EXPERTS, arch.HIDDEN_SIZE)
    return {
        "router.proj.weight": bell(SEED, f"{prefix}.router.proj", shape, ROUTER_STD),
        "router.scale": _constant(arch.HIDDEN_SIZE, 1.0),
        "router.per_expert_scale": _constant(arch.NUM_EXPERTS, 1.0),
    }


def _projection(name: str, shape: tuple[int, int]) -> Array:
    weight = bell(SEED, name, shape, shape[1] ** -0.5)
    if shape[0] == arch.HIDDEN_SIZE and name.endswith(("o_proj", "down_proj")):
        weight[0] = 0.0
    return weight


def expert_projections() -> Iterator[tuple[int, int, dict[str, Array]]]:
    """``(layer, expert, {gate_proj, up_proj, down_proj})`` for every routed expert."""
    for layer in range(arch.NUM_LAYERS):
        for expert in range(arch.NUM_EXPERTS):
            prefix = expert_prefix(layer, expert)
            yield (
                layer,
                expert,
                {
                    name: _projection(f"{prefix}.{name}", shape)
                    for name, shape in mlp_shapes(arch.EXPERT_SIZE).items()
                },
            )


def expert_prefix(layer: int, expert: int) -> str:
    """Checkpoint name of one expert when experts are stored apart."""
    return f"{TEXT_PREFIX}.layers.{layer}.experts.{expert}"


def fused_experts() -> dict[str, Array]:
    """The routed experts as the bf16 checkpoint stores them: one tensor for all experts of a layer."""
    layers: dict[int, list[dict[str, Array]]] = {}
    for layer, _, projections in expert_projections():
        layers.setdefault(layer, []).append(projections)
    tensors = {}
    for layer, experts in layers.items():
        prefix = f"{TEXT_PREFIX}.layers.{layer}.experts"
        gate_up = [np.concatenate([expert["gate_proj"], expert["up_proj"]]) for expert in experts]
        tensors[f"{prefix}.gate_up_proj"] = np.stack(gate_up)
        tensors[f"{prefix}.down_proj"] = np.stack([expert["down_proj"] for expert in experts])
    return tensors


def split_experts(fused: Mapping[str, Array]) -> Iterator[tuple[int, int, dict[str, Array]]]:
    """``(layer, expert, {gate_proj, up_proj, down_proj})`` of experts that are fused by layer."""
    for layer in range(arch.NUM_LAYERS):
        prefix = f"{TEXT_PREFIX}.layers.{layer}.experts"
        for expert in range(arch.NUM_EXPERTS):
            gate, up = np.split(fused[f"{prefix}.gate_up_proj"][expert], 2)
            down = fused[f"{prefix}.down_proj"][expert]
            yield layer, expert, {"gate_proj": gate, "up_proj": up, "down_proj": down}


def vision_tensors() -> dict[str, Array]:
    """The vision tower and its projection into the language model."""
    hidden, size = arch.VISION_HIDDEN_SIZE, arch.VISION_HEADS * arch.VISION_HEAD_DIM
    embedder = "model.vision_tower.patch_embedder"
    tensors = {
        f"{embedder}.input_proj.weight": _projection(
            f"{embedder}.input_proj", (hidden, 3 * arch.PATCH_SIZE**2)
        ),
        f"{embedder}.position_embedding_table": bell(
            SEED, f"{embedder}.position", (2, arch.VISION_POSITIONS, hidden), 0.1
        ),
        "model.embed_vision.embedding_projection.weight": _projection(
            "model.embed_vision", (arch.HIDDEN_SIZE, hidden)
        ),
    }
    shapes = {f"self_attn.{name}_proj": (size, hidden) for name in "qkv"}
    shapes["self_attn.o_proj"] = (hidden, size)
    shapes |= {f"mlp.{name}_proj": (arch.VISION_MLP_SIZE, hidden) for name in ("gate", "up")}
    shapes["mlp.down_proj"] = (hidden, arch.VISION_MLP_SIZE)
    norms = ("input", "post_attention", "pre_feedforward", "post_feedforward")
    for layer in range(arch.VISION_LAYERS):
        prefix = f"model.vision_tower.encoder.layers.{layer}"
        for name, shape in shapes.items():
            tensors[f"{prefix}.{name}.linear.weight"] = _projection(f"{prefix}.{name}", shape)
        for norm in norms:
            tensors[f"{prefix}.{norm}_layernorm.weight"] = _constant(hidden, 1.0)
        for name in "qk":
            tensors[f"{prefix}.self_attn.{name}_norm.weight"] = _constant(arch.VISION_HEAD_DIM, 1.0)
    return tensors


def adapter_tensors() -> dict[str, Array]:
    """System 1's backbone adapter in PEFT's names: attention and dense MLP, no expert, no head."""
    tensors: dict[str, Array] = {}
    for layer in range(arch.NUM_LAYERS):
        shapes = {f"self_attn.{name}": shape for name, shape in attention_shapes(layer).items()}
        shapes |= {f"mlp.{name}": shape for name, shape in mlp_shapes(arch.MLP_SIZE).items()}
        for name, (outputs, inputs) in shapes.items():
            prefix = f"base_model.model.{TEXT_PREFIX}.layers.{layer}.{name}"
            tensors |= _lora_pair(prefix, outputs, inputs, keep_mark=name.endswith(("o_proj", "down_proj")))
    return tensors


def _lora_pair(prefix: str, outputs: int, inputs: int, *, keep_mark: bool) -> dict[str, Array]:
    rank = arch.ADAPTER_RANK
    scaling = arch.ADAPTER_ALPHA / rank
    lora_b = bell(SEED, f"{prefix}.lora_B", (outputs, rank), ADAPTER_STD / scaling * rank**-0.5)
    if keep_mark:
        lora_b[0] = 0.0
    return {
        f"{prefix}.lora_A.weight": bell(SEED, f"{prefix}.lora_A", (rank, inputs), inputs**-0.5),
        f"{prefix}.lora_B.weight": lora_b,
    }


def head_tensors() -> dict[str, Array]:
    """The decision head: ``proj.weight [24, hidden]`` and ``proj.bias [24]``, float32."""
    stds = [HEAD_STD[kind] for kind, (start, end) in arch.SLOT_RANGES.items() for _ in range(start, end)]
    rows = [
        head_row(slot, stream, std) for slot, (stream, std) in enumerate(zip(HEAD_STREAMS, stds, strict=True))
    ]
    bias = bell(SEED, "head.bias", (arch.NUM_SLOTS,), HEAD_BIAS_STD)
    return {"proj.weight": np.stack(rows), "proj.bias": bias}


def head_row(slot: int, stream: int, std: float) -> Array:
    """One slot's row ``[hidden]``, drawn from one of its random streams."""
    row = bell(SEED, f"head.weight.{slot}.{stream}", (arch.HIDDEN_SIZE,), std)
    row[0] = USED_MARK
    return row
