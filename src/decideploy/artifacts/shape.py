"""The architecture: sizes from config.json and the tensors that follow from them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

TEXT_PREFIX = "model.language_model"
EMBEDDING = f"{TEXT_PREFIX}.embed_tokens.weight"
PROJECTIONS = ("gate_proj", "up_proj", "down_proj")
EXPERT_PARTS = ("weight", "weight_scale", "weight_scale_2", "input_scale")

_INT_KEYS: Mapping[str, str] = {
    "hidden_size": "hidden_size",
    "intermediate_size": "intermediate_size",
    "num_hidden_layers": "num_layers",
    "num_attention_heads": "num_attention_heads",
    "num_key_value_heads": "num_key_value_heads",
    "head_dim": "head_dim",
    "global_head_dim": "global_head_dim",
    "num_global_key_value_heads": "num_global_key_value_heads",
    "vocab_size": "vocab_size",
    "sliding_window": "sliding_window",
    "max_position_embeddings": "max_position_embeddings",
    "num_experts": "num_experts",
    "top_k_experts": "top_k",
    "moe_intermediate_size": "moe_intermediate_size",
}
# No such model is near: a hostile config.json could otherwise ask for millions of names of tensors.
_MAX_SIZE = 1 << 31
_MAX_LAYERS = 1000
_MAX_EXPERT_MODULES = 20_000
_BOOL_KEYS = ("attention_k_eq_v", "tie_word_embeddings", "enable_moe_block")
_LAYER_TYPES = ("sliding_attention", "full_attention")


@dataclass(frozen=True, kw_only=True, slots=True)
class Shape:
    """Sizes of the language model under the names that the plan uses."""

    hidden_size: int
    intermediate_size: int
    num_layers: int
    layer_types: tuple[str, ...]
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    global_head_dim: int
    num_global_key_value_heads: int
    vocab_size: int
    sliding_window: int
    max_position_embeddings: int
    num_experts: int
    top_k: int
    moe_intermediate_size: int
    attention_k_eq_v: bool
    tie_word_embeddings: bool
    enable_moe_block: bool

    def is_full(self, layer: int) -> bool:
        """Whether the layer attends to the whole sequence."""
        return self.layer_types[layer] == "full_attention"

    def shares_value(self, layer: int) -> bool:
        """Whether the layer's value is its key's projection."""
        return self.attention_k_eq_v and self.is_full(layer)


def parse_shape(config: Mapping[str, Any]) -> Shape | tuple[str, ...]:
    """The sizes in ``text_config``, or the names of all keys that are missing or of the wrong type."""
    faults = [key for key in _INT_KEYS if type(config.get(key)) is not int or not 0 < config[key] < _MAX_SIZE]
    faults += _excessive(config) if not faults else []
    faults += [key for key in _BOOL_KEYS if type(config.get(key)) is not bool]
    types = config.get("layer_types")
    if (
        not isinstance(types, list)
        or not types
        or any(kind not in _LAYER_TYPES for kind in types)
        or ("num_hidden_layers" not in faults and len(types) != config["num_hidden_layers"])
    ):
        faults.append("layer_types")
    if faults:
        return tuple(faults)
    integers: dict[str, int] = {name: config[key] for key, name in _INT_KEYS.items()}
    booleans: dict[str, bool] = {key: config[key] for key in _BOOL_KEYS}
    return Shape(layer_types=tuple(config["layer_types"]), **integers, **booleans)  # type: ignore[arg-type]


def _excessive(config: Mapping[str, Any]) -> list[str]:
    """Keys whose whole numbers cannot be together."""
    faults = []
    if config["num_hidden_layers"] > _MAX_LAYERS:
        faults.append("num_hidden_layers")
    if config["num_hidden_layers"] * config["num_experts"] > _MAX_EXPERT_MODULES:
        faults.append("num_experts")
    if config["top_k_experts"] > config["num_experts"]:
        faults.append("top_k_experts")
    return faults


def linear_modules(shape: Shape) -> dict[str, tuple[int, int]]:
    """Modules that LoRA may target, by checkpoint name, with ``(out, in)``."""
    modules = {
        f"{TEXT_PREFIX}.layers.{layer}.{name}": size
        for layer in range(shape.num_layers)
        for name, size in _layer_linears(shape, layer).items()
    }
    return modules | {"lm_head": (shape.vocab_size, shape.hidden_size)}


def _layer_linears(shape: Shape, layer: int) -> dict[str, tuple[int, int]]:
    full = shape.is_full(layer)
    head_dim = shape.global_head_dim if full else shape.head_dim
    wide = full and shape.attention_k_eq_v
    kv_heads = shape.num_global_key_value_heads if wide else shape.num_key_value_heads
    queries, keys, hidden = shape.num_attention_heads * head_dim, kv_heads * head_dim, shape.hidden_size
    sizes = {"q_proj": (queries, hidden), "k_proj": (keys, hidden), "o_proj": (hidden, queries)}
    if not shape.shares_value(layer):
        sizes["v_proj"] = (keys, hidden)
    attention = {f"self_attn.{name}": size for name, size in sizes.items()}
    return attention | {f"mlp.{n}": s for n, s in mlp_sizes(hidden, shape.intermediate_size).items()}


def mlp_sizes(hidden: int, inner: int) -> dict[str, tuple[int, int]]:
    """``(out, in)`` of a gated MLP."""
    return {"gate_proj": (inner, hidden), "up_proj": (inner, hidden), "down_proj": (hidden, inner)}


def value_copy_modules(shape: Shape) -> Iterator[tuple[str, str]]:
    """``(k_proj, v_proj)`` of every layer whose value is its key's projection."""
    for layer in range(shape.num_layers):
        if shape.shares_value(layer):
            attention = f"{TEXT_PREFIX}.layers.{layer}.self_attn"
            yield f"{attention}.k_proj", f"{attention}.v_proj"


@lru_cache(maxsize=2)
def dense_tensors(shape: Shape) -> Mapping[str, tuple[int, ...]]:
    """Shape of every language-model tensor but the routed experts, by checkpoint name; all are bf16."""
    hidden = shape.hidden_size
    tensors: dict[str, tuple[int, ...]] = {
        EMBEDDING: (shape.vocab_size, hidden),
        f"{TEXT_PREFIX}.norm.weight": (hidden,),
    }
    for layer in range(shape.num_layers):
        prefix = f"{TEXT_PREFIX}.layers.{layer}"
        tensors |= {f"{prefix}.{name}.weight": size for name, size in _layer_linears(shape, layer).items()}
        tensors |= {f"{prefix}.{name}": size for name, size in _layer_vectors(shape, layer).items()}
    return tensors


def _layer_vectors(shape: Shape, layer: int) -> dict[str, tuple[int, ...]]:
    hidden = shape.hidden_size
    head_dim = shape.global_head_dim if shape.is_full(layer) else shape.head_dim
    norms = ["input_layernorm", "post_attention_layernorm", "pre_feedforward_layernorm"]
    norms.append("post_feedforward_layernorm")
    vectors: dict[str, tuple[int, ...]] = {"layer_scalar": (1,)}
    vectors |= {f"self_attn.{name}.weight": (head_dim,) for name in ("q_norm", "k_norm")}
    if shape.enable_moe_block:
        norms += [
            "post_feedforward_layernorm_1",
            "post_feedforward_layernorm_2",
            "pre_feedforward_layernorm_2",
        ]
        vectors["router.proj.weight"] = (shape.num_experts, hidden)
        vectors["router.scale"] = (hidden,)
        vectors["router.per_expert_scale"] = (shape.num_experts,)
    return vectors | {f"{norm}.weight": (hidden,) for norm in norms}


def expert_modules(shape: Shape) -> Iterator[tuple[str, str, tuple[int, int]]]:
    """``(expert, projection, (out, in))`` for every routed expert projection."""
    sizes = mlp_sizes(shape.hidden_size, shape.moe_intermediate_size)
    for layer in range(shape.num_layers if shape.enable_moe_block else 0):
        for expert in range(shape.num_experts):
            for projection, size in sizes.items():
                yield f"{TEXT_PREFIX}.layers.{layer}.experts.{expert}", projection, size


@lru_cache(maxsize=2)
def nvfp4_expert_tensors(shape: Shape) -> Mapping[str, tuple[str, tuple[int, ...]]]:
    """Dtype and shape of every routed-expert tensor in ModelOpt's NVFP4 layout."""
    tensors: dict[str, tuple[str, tuple[int, ...]]] = {}
    for expert, projection, (outputs, inputs) in expert_modules(shape):
        prefix = f"{expert}.{projection}"
        tensors[f"{prefix}.weight"] = ("U8", (outputs, inputs // 2))
        tensors[f"{prefix}.weight_scale"] = ("F8_E4M3", (outputs, inputs // 16))
        tensors[f"{prefix}.weight_scale_2"] = ("F32", ())
        tensors[f"{prefix}.input_scale"] = ("F32", ())
    return tensors


def bf16_expert_tensors(shape: Shape) -> dict[str, tuple[str, tuple[int, ...]]]:
    """Dtype and shape of the fused routed-expert tensors of an unquantised checkpoint."""
    experts, hidden, inner = shape.num_experts, shape.hidden_size, shape.moe_intermediate_size
    tensors: dict[str, tuple[str, tuple[int, ...]]] = {}
    for layer in range(shape.num_layers if shape.enable_moe_block else 0):
        prefix = f"{TEXT_PREFIX}.layers.{layer}.experts"
        tensors[f"{prefix}.gate_up_proj"] = ("BF16", (experts, 2 * inner, hidden))
        tensors[f"{prefix}.down_proj"] = ("BF16", (experts, hidden, inner))
    return tensors


@dataclass(frozen=True, kw_only=True, slots=True)
class VisionShape:
    """Sizes of the vision tower, by the keys of ``vision_config``."""

    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    patch_size: int
    position_embedding_size: int


def parse_vision(config: Mapping[str, Any]) -> VisionShape | tuple[str, ...]:
    """The sizes in ``vision_config``, or the names of all keys that are missing or of the wrong type."""
    keys = tuple(VisionShape.__dataclass_fields__)
    faults = tuple(key for key in keys if type(config.get(key)) is not int or not 0 < config[key] < _MAX_SIZE)
    if not faults and config["num_hidden_layers"] > _MAX_LAYERS:
        faults = ("num_hidden_layers",)
    return faults or VisionShape(**{key: config[key] for key in keys})


def vision_tensors(vision: VisionShape, hidden_size: int) -> dict[str, tuple[int, ...]]:
    """Shape of each matrix of the vision tower, by checkpoint name; ``hidden_size`` is the text model's."""
    hidden, pixels = vision.hidden_size, 3 * vision.patch_size**2
    tensors: dict[str, tuple[int, ...]] = {
        "model.embed_vision.embedding_projection.weight": (hidden_size, hidden),
        "model.vision_tower.patch_embedder.input_proj.weight": (hidden, pixels),
        "model.vision_tower.patch_embedder.position_embedding_table": (
            2,
            vision.position_embedding_size,
            hidden,
        ),
    }
    for layer in range(vision.num_hidden_layers):
        prefix = f"model.vision_tower.encoder.layers.{layer}"
        tensors |= {f"{prefix}.{n}.linear.weight": size for n, size in _vision_linears(vision).items()}
    return tensors


def _vision_linears(vision: VisionShape) -> dict[str, tuple[int, int]]:
    hidden = vision.hidden_size
    queries = vision.num_attention_heads * vision.head_dim
    keys = vision.num_key_value_heads * vision.head_dim
    attention = {"q_proj": (queries, hidden), "k_proj": (keys, hidden), "v_proj": (keys, hidden)}
    attention["o_proj"] = (hidden, queries)
    linears = {f"self_attn.{name}": size for name, size in attention.items()}
    return linears | {f"mlp.{n}": s for n, s in mlp_sizes(hidden, vision.intermediate_size).items()}


def component(name: str) -> str:
    """The part of the model that a checkpoint tensor belongs to, in the plan's words."""
    if name.startswith(VISION_PREFIXES):
        return "vision"
    for mark, part in _COMPONENT_MARKS:
        if mark in name:
            return part
    return "other"


VISION_PREFIXES = ("model.vision_tower.", "model.embed_vision.")
_COMPONENT_MARKS = (
    (".experts.", "experts"),
    (".self_attn.", "attention"),
    (".mlp.", "dense_mlp"),
    (".router.", "router"),
    ("embed_tokens", "embedding"),
    ("lm_head", "embedding"),
)
COMPONENTS = ("experts", "attention", "dense_mlp", "router", "embedding", "vision", "other")
