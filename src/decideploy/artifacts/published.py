"""Facts of a model from sizes alone: its configuration, or the published sizes in ``published.toml``."""

from __future__ import annotations

import json
import math
import tomllib
from collections.abc import Iterable, Mapping
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

from decideploy.artifacts.facts import SHAPE_FACTS, AdapterFacts, ModelFacts
from decideploy.artifacts.files import CONFIG
from decideploy.artifacts.safetensors_file import DTYPE_BYTES
from decideploy.artifacts.shape import (
    COMPONENTS,
    Shape,
    bf16_expert_tensors,
    component,
    dense_tensors,
    linear_modules,
    nvfp4_expert_tensors,
    parse_shape,
)
from decideploy.errors import ConfigError

_BF16_BYTES = 2
# Of an adapter that is not there to be read: the widest that is served, on every linear module.
_ADAPTER_RANK, _NUM_SLOTS = 32, 24


@cache
def published_models() -> Mapping[str, Any]:
    """Published sizes by hub id."""
    return tomllib.loads(files("decideploy.artifacts").joinpath("published.toml").read_text("utf-8"))


def sizes_of(model: str) -> ModelFacts | None:
    """Facts of ``model`` by its sizes: a published hub id, or a folder that holds a config.json alone.

    None for what has files to verify. ConfigError when the configuration lacks sizes.
    """
    folder = Path(model)
    if folder.is_dir():
        alone = (folder / CONFIG).is_file() and not any(folder.glob("*.safetensors"))
        return _read_config(folder) if alone else None
    return _facts(model, published_models()[model], model) if model in published_models() else None


def _read_config(folder: Path) -> ModelFacts:
    path = folder / CONFIG
    try:
        config = json.loads(path.read_text("utf-8"))
    except ValueError as error:
        raise ConfigError(
            f"not JSON: {error}", where=str(path), next_step="name a whole config.json"
        ) from error
    quantization = config.get("quantization_config") or {}
    return _facts(str(folder), {**config, "quant_algo": quantization.get("quant_algo")}, str(path))


def _facts(model: str, config: Mapping[str, Any], where: str) -> ModelFacts:
    shape = parse_shape(config.get("text_config") or {})
    if not isinstance(shape, Shape):
        raise ConfigError(
            f"sizes are missing or of the wrong type: {', '.join(shape)}",
            where=f"{where}: text_config",
            next_step="name the config.json of a Gemma-4 mixture of experts",
        )
    nvfp4 = config.get("quant_algo") == "NVFP4"
    linear = sorted({name.rpartition(".")[2] for name in linear_modules(shape)})
    path = Path(model)
    return ModelFacts(
        path=path,
        name=path.resolve().name if path.is_dir() else path.name,
        architecture="Gemma4ForConditionalGeneration",
        dtype="bfloat16",
        quant_algo="NVFP4" if nvfp4 else None,
        weight_bytes=_weight_bytes(shape, config.get("vision_config") or {}, nvfp4=nvfp4),
        adapter=AdapterFacts(
            path=path / "adapter_vllm",
            rank=config.get("adapter_rank", _ADAPTER_RANK),
            target_modules=tuple(linear),
            lora_target_modules=tuple(linear),
            num_tensors=2 * len(linear_modules(shape)),
        ),
        head=None,
        num_slots=config.get("num_slots", _NUM_SLOTS),
        **{name: getattr(shape, name) for name in SHAPE_FACTS},
    )


def _weight_bytes(shape: Shape, vision: Mapping[str, Any], *, nvfp4: bool) -> dict[str, int]:
    sizes = dict.fromkeys(COMPONENTS, 0)
    for name, dims in dense_tensors(shape).items():
        sizes[component(name)] += _BF16_BYTES * math.prod(dims)
    experts = nvfp4_expert_tensors(shape) if nvfp4 else bf16_expert_tensors(shape)
    sizes["experts"] = _size(experts.values())
    sizes["vision"] = _BF16_BYTES * _vision_values(shape, vision) if vision else 0
    return sizes


def _size(forms: Iterable[tuple[str, tuple[int, ...]]]) -> int:
    return sum(DTYPE_BYTES[dtype] * math.prod(dims) for dtype, dims in forms)


def _vision_values(shape: Shape, vision: Mapping[str, Any]) -> int:
    """Numbers in the tower's matrices: its norms are a few kilobytes."""
    hidden, inner = vision["hidden_size"], vision["intermediate_size"]
    layers = vision["num_hidden_layers"] * (4 * hidden**2 + 3 * hidden * inner)
    patches = 3 * vision["patch_size"] ** 2 * hidden + 2 * vision["position_embedding_size"] * hidden
    return int(layers + patches + hidden * shape.hidden_size)
