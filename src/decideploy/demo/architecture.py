"""Sizes of the demo model and the JSON files that describe it.

The ratios are those of the served model (5 sliding layers to 1 full, twice the head size and a quarter of
the KV heads in full layers, a dense MLP beside routed experts); the sizes are the smallest that every
engine accepts.
"""

from __future__ import annotations

from typing import Any

VOCAB_SIZE = 262_144
HIDDEN_SIZE = 128
NUM_LAYERS = 6
FULL_LAYERS = (5,)
NUM_HEADS = 8
HEAD_DIM = 32
NUM_KV_HEADS = 4
GLOBAL_HEAD_DIM = 64
NUM_GLOBAL_KV_HEADS = 1
MLP_SIZE = 96
NUM_EXPERTS = 8
TOP_K = 2
EXPERT_SIZE = 64
SLIDING_WINDOW = 64
MAX_POSITIONS = 131_072
SOFTCAP = 30.0

VISION_HIDDEN_SIZE = 32
VISION_MLP_SIZE = 64
VISION_LAYERS = 1
VISION_HEADS = 2
VISION_HEAD_DIM = 16
VISION_POSITIONS = 256
PATCH_SIZE = 16
POOLING = 3
SOFT_TOKENS = 280

ADAPTER_RANK = 8
ADAPTER_ALPHA = 16

NUM_SLOTS = 24
SLOT_RANGES: dict[str, list[int]] = {"noul": [0, 2], "score": [2, 8], "choice": [8, 24]}
TEMPLATE_VERSION = "bare-v1"

PAD_ID, EOS_ID, BOS_ID, UNK_ID = 0, 1, 2, 3
TURN_END_ID = 106


def layer_type(layer: int) -> str:
    """The attention type of a layer."""
    return "full_attention" if layer in FULL_LAYERS else "sliding_attention"


def text_config() -> dict[str, Any]:
    """The language model's part of config.json."""
    return {
        "model_type": "gemma4_text",
        "dtype": "bfloat16",
        "vocab_size": VOCAB_SIZE,
        "vocab_size_per_layer_input": VOCAB_SIZE,
        "hidden_size": HIDDEN_SIZE,
        "hidden_size_per_layer_input": 0,
        "intermediate_size": MLP_SIZE,
        "num_hidden_layers": NUM_LAYERS,
        "layer_types": [layer_type(layer) for layer in range(NUM_LAYERS)],
        "num_attention_heads": NUM_HEADS,
        "num_key_value_heads": NUM_KV_HEADS,
        "num_global_key_value_heads": NUM_GLOBAL_KV_HEADS,
        "head_dim": HEAD_DIM,
        "global_head_dim": GLOBAL_HEAD_DIM,
        "attention_k_eq_v": True,
        "attention_bias": False,
        "attention_dropout": 0.0,
        "sliding_window": SLIDING_WINDOW,
        "max_position_embeddings": MAX_POSITIONS,
        "rope_parameters": {
            "full_attention": {
                "rope_type": "proportional",
                "partial_rotary_factor": 0.25,
                "rope_theta": 1_000_000.0,
            },
            "sliding_attention": {"rope_type": "default", "rope_theta": 10_000.0},
        },
        "hidden_activation": "gelu_pytorch_tanh",
        "rms_norm_eps": 1e-06,
        "final_logit_softcapping": SOFTCAP,
        "enable_moe_block": True,
        "num_experts": NUM_EXPERTS,
        "top_k_experts": TOP_K,
        "moe_intermediate_size": EXPERT_SIZE,
        "num_kv_shared_layers": 0,
        "use_double_wide_mlp": False,
        "use_bidirectional_attention": "vision",
        "tie_word_embeddings": True,
        "initializer_range": 0.02,
        "use_cache": True,
        "pad_token_id": PAD_ID,
        "eos_token_id": EOS_ID,
        "bos_token_id": BOS_ID,
    }


def vision_config() -> dict[str, Any]:
    """The vision tower's part of config.json."""
    return {
        "model_type": "gemma4_vision",
        "dtype": "bfloat16",
        "hidden_size": VISION_HIDDEN_SIZE,
        "intermediate_size": VISION_MLP_SIZE,
        "num_hidden_layers": VISION_LAYERS,
        "num_attention_heads": VISION_HEADS,
        "num_key_value_heads": VISION_HEADS,
        "head_dim": VISION_HEAD_DIM,
        "hidden_activation": "gelu_pytorch_tanh",
        "rms_norm_eps": 1e-06,
        "max_position_embeddings": MAX_POSITIONS,
        "rope_parameters": {"rope_type": "axial", "rope_theta": 100.0},
        "pooling_kernel_size": POOLING,
        "patch_size": PATCH_SIZE,
        # The engine asks for it; transformers reads the same number from the image processor's file.
        "default_output_length": SOFT_TOKENS,
        "position_embedding_size": VISION_POSITIONS,
        "use_clipped_linears": False,
        "standardize": False,
    }


def model_config(quantization: dict[str, Any] | None) -> dict[str, Any]:
    """config.json; ``quantization`` becomes its ``quantization_config``."""
    config: dict[str, Any] = {
        "architectures": ["Gemma4ForConditionalGeneration"],
        "model_type": "gemma4",
        "dtype": "bfloat16",
        "tie_word_embeddings": True,
        "boi_token_id": 255_999,
        "eoi_token_id": 258_882,
        "image_token_id": 258_880,
        "video_token_id": 258_884,
        "boa_token_id": 256_000,
        "eoa_token_index": 258_883,
        "audio_token_id": 258_881,
        "vision_soft_tokens_per_image": SOFT_TOKENS,
        "initializer_range": 0.02,
        "text_config": text_config(),
        "vision_config": vision_config(),
        "audio_config": None,
    }
    if quantization is not None:
        config["quantization_config"] = quantization
    return config


def generation_config() -> dict[str, Any]:
    """generation_config.json; the sampling defaults are the trap that the served model has too."""
    return {
        "bos_token_id": BOS_ID,
        "pad_token_id": PAD_ID,
        "eos_token_id": [EOS_ID, TURN_END_ID],
        "do_sample": True,
        "temperature": 1.0,
        "top_k": 64,
        "top_p": 0.95,
    }


def image_processor_config() -> dict[str, Any]:
    """What the image processor reads, alone (preprocessor_config.json) and inside processor_config.json."""
    return {
        "image_processor_type": "Gemma4ImageProcessor",
        "do_convert_rgb": True,
        "do_normalize": False,
        "do_rescale": True,
        "do_resize": True,
        "image_mean": [0.0, 0.0, 0.0],
        "image_std": [1.0, 1.0, 1.0],
        "resample": 3,
        "rescale_factor": 1 / 255,
        "patch_size": PATCH_SIZE,
        "pooling_kernel_size": POOLING,
        "max_soft_tokens": SOFT_TOKENS,
        "image_seq_length": SOFT_TOKENS,
    }


def processor_config() -> dict[str, Any]:
    """processor_config.json."""
    return {
        "processor_class": "Gemma4Processor",
        "image_seq_length": SOFT_TOKENS,
        "audio_seq_length": 750,
        "audio_ms_per_token": 40,
        "image_processor": image_processor_config(),
        "feature_extractor": {
            "feature_extractor_type": "Gemma4AudioFeatureExtractor",
            "sampling_rate": 16_000,
        },
        "video_processor": {
            "video_processor_type": "Gemma4VideoProcessor",
            "do_normalize": True,
            "do_sample_frames": True,
            "image_mean": [0.0, 0.0, 0.0],
            "image_std": [1.0, 1.0, 1.0],
            "max_soft_tokens": 70,
            "num_frames": 32,
            "patch_size": PATCH_SIZE,
            "pooling_kernel_size": POOLING,
        },
    }


def excluded_modules() -> list[str]:
    """Modules kept in bf16, as ModelOpt lists them: everything but the routed experts."""
    layers = [
        f"model.language_model.layers.{layer}.{part}*"
        for layer in range(NUM_LAYERS)
        for part in ("mlp", "router", "self_attn")
    ]
    return ["lm_head", "model.embed_vision*", *layers, "model.vision_tower*"]


def quantization_config() -> dict[str, Any]:
    """``quantization_config`` of config.json: there the exclusion list is called ``ignore``."""
    scheme = {"dynamic": False, "group_size": 16, "num_bits": 4, "type": "float"}
    return {
        "config_groups": {"group_0": {"input_activations": scheme, "weights": scheme, "targets": ["Linear"]}},
        "ignore": excluded_modules(),
        "producer": {"name": "modelopt", "version": "0.40.0"},
        "quant_algo": "NVFP4",
        "quant_method": "modelopt",
    }


def hf_quant_config() -> dict[str, Any]:
    """hf_quant_config.json of the NVFP4 variant; bf16 has no such file, as nothing is quantised."""
    return {
        "producer": {"name": "modelopt", "version": "0.40.0"},
        "quantization": {
            "quant_algo": "NVFP4",
            "kv_cache_quant_algo": None,
            "group_size": 16,
            "exclude_modules": excluded_modules(),
        },
    }
