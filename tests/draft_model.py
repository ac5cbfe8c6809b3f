"""A small draft for the demo model: Gemma-4's assistant, which reads the keys and values of the model."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from decideploy.artifacts.safetensors_file import bf16, write_tensors
from decideploy.demo import architecture

HIDDEN, INNER, HEADS = 32, 64, architecture.NUM_HEADS
# One layer of each type, with heads like those of the layers whose keys and values it reads.
WIDTHS = {"sliding_attention": architecture.HEAD_DIM, "full_attention": architecture.GLOBAL_HEAD_DIM}


def write_draft(folder: Path, seed: int = 0) -> Path:
    """Write the draft's configuration and random weights; what it proposes is nearly always refused."""
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(config()))
    rng = np.random.default_rng(seed)
    weights = {
        name: bf16(np.ones(shape, np.float32) if len(shape) == 1 else normal(rng, shape))
        for name, shape in shapes()
    }
    write_tensors(folder / "model.safetensors", weights)
    return folder


def normal(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    return rng.normal(0, shape[-1] ** -0.5, shape).astype(np.float32)


def config() -> dict[str, Any]:
    text = architecture.text_config() | {
        "hidden_size": HIDDEN,
        "intermediate_size": INNER,
        "num_hidden_layers": len(WIDTHS),
        "num_kv_shared_layers": len(WIDTHS),
        "layer_types": [*WIDTHS],
        "num_attention_heads": HEADS,
        "vocab_size_per_layer_input": 0,
        "enable_moe_block": False,
    }
    return {
        "architectures": ["Gemma4AssistantForCausalLM"],
        "model_type": "gemma4_assistant",
        "dtype": "bfloat16",
        "backbone_hidden_size": architecture.HIDDEN_SIZE,
        "use_ordered_embeddings": False,
        "tie_word_embeddings": True,
        "text_config": {key: value for key, value in text.items() if "expert" not in key},
    }


def shapes() -> Iterator[tuple[str, tuple[int, ...]]]:
    backbone = architecture.HIDDEN_SIZE
    yield "model.embed_tokens.weight", (architecture.VOCAB_SIZE, HIDDEN)
    yield "model.norm.weight", (HIDDEN,)
    yield "pre_projection.weight", (HIDDEN, 2 * backbone)
    yield "post_projection.weight", (backbone, HIDDEN)
    for layer, width in enumerate(WIDTHS.values()):
        prefix = f"model.layers.{layer}"
        yield f"{prefix}.layer_scalar", (1,)
        for norm in ("input", "post_attention", "pre_feedforward", "post_feedforward"):
            yield f"{prefix}.{norm}_layernorm.weight", (HIDDEN,)
        yield f"{prefix}.self_attn.q_norm.weight", (width,)
        yield f"{prefix}.self_attn.q_proj.weight", (HEADS * width, HIDDEN)
        yield f"{prefix}.self_attn.o_proj.weight", (HIDDEN, HEADS * width)
        yield f"{prefix}.mlp.gate_proj.weight", (INNER, HIDDEN)
        yield f"{prefix}.mlp.up_proj.weight", (INNER, HIDDEN)
        yield f"{prefix}.mlp.down_proj.weight", (HIDDEN, INNER)
