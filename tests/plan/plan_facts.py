"""Facts of the 26B shape and of a small bf16 model, in the shape that verification gives."""

from dataclasses import fields, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from decideploy.hardware import Gpu, HardwareReport, Host, Reading
from decideploy.hardware.report import unknown

GIB = 1024**3
_TARGETS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj", "lm_head")


def adapter(**changes: Any) -> SimpleNamespace:
    return SimpleNamespace(
        **{
            "path": Path("/models/m/adapter_vllm"),
            "rank": 32,
            "target_modules": _TARGETS,
            "lora_target_modules": ("q_proj", "lm_head"),
            **changes,
        }
    )


def facts_26b(**changes: Any) -> Any:
    layer_types = ("sliding_attention",) * 5 + ("full_attention",)
    values = {
        "path": Path("/models/m"),
        "name": "decide-26b",
        "num_layers": 30,
        "layer_types": layer_types * 5,
        "hidden_size": 2816,
        "intermediate_size": 2112,
        "vocab_size": 262_144,
        "num_attention_heads": 16,
        "num_key_value_heads": 8,
        "head_dim": 256,
        "num_global_key_value_heads": 2,
        "global_head_dim": 512,
        "attention_k_eq_v": True,
        "num_experts": 128,
        "moe_intermediate_size": 704,
        "top_k": 8,
        "sliding_window": 1024,
        "max_position_embeddings": 262_144,
        "dtype": "bfloat16",
        "quant_algo": "NVFP4",
        "weight_bytes": {
            # As verification reads them from the full shape.
            "experts": 12_846_458_880,
            "attention": 2_220_395_520,
            "dense_mlp": 1_070_530_560,
            "router": 21_803_520,
            "embedding": 1_476_395_008,
            "vision": 1_145_584_224,
            "other": 1_188_412,
        },
        "adapter": adapter(),
        "head": object(),
        "num_slots": 24,
    }
    return SimpleNamespace(**values | changes)


def facts_small(**changes: Any) -> Any:
    values = {
        "quant_algo": None,
        "num_layers": 4,
        "layer_types": ("sliding_attention",) * 3 + ("full_attention",),
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "num_global_key_value_heads": 1,
        "global_head_dim": 32,
        "sliding_window": 64,
        "max_position_embeddings": 4096,
        "weight_bytes": {"embedding": 64 * 262_144 * 2, "vision": 1000},
    }
    return facts_26b(**values | changes)


def known(value: Any) -> Reading[Any]:
    return Reading(value=value, source="test")


def host(available_bytes: int | None = 16 * GIB, **changes: Any) -> Host:
    offline = unknown("test")
    values = dict.fromkeys((field.name for field in fields(Host)), offline)
    return Host(**values | {"ram_available_bytes": known(available_bytes)} | changes)


def cpu_report(available_bytes: int | None = 16 * GIB, **changes: Any) -> HardwareReport:
    missing = unknown("test")
    return HardwareReport(host=host(available_bytes, **changes), driver_version=missing, cuda_version=missing)


def gpu_report(
    total_bytes: int | None, *, capability: str | None = "9.0", free_bytes: int | None = None, **changes: Any
) -> HardwareReport:
    gpu = Gpu(
        index=0,
        name=known("test card"),
        compute_capability=known(capability),
        total_bytes=known(total_bytes),
        free_bytes=known(free_bytes),
        uuid=known("GPU-0"),
        holders=known(()),
        **dict.fromkeys(
            ("mig", "ecc", "power_limit_w", "power_default_w", "pcie", "nvlinks"), unknown("test")
        ),
    )
    return replace(cpu_report(**changes), gpus=(gpu,))
