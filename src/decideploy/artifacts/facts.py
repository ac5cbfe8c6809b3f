"""What the files say about the model, as far as planning and serving need it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from decideploy.artifacts import files as names
from decideploy.artifacts.adapter import is_list_of_names, pairs
from decideploy.artifacts.files import ModelFiles, UnavailableError
from decideploy.artifacts.head import decision_head
from decideploy.artifacts.shape import COMPONENTS, component
from decideploy.decide.head import DecisionHead


@dataclass(frozen=True, kw_only=True, slots=True)
class AdapterFacts:
    """The adapter that the engine loads.

    ``lora_target_modules`` is what ``--lora-target-modules`` must list: the suffixes of the adapter's own
    modules. The engine matches the last name of a module or its packed children, so ``gate_proj`` reaches
    the dense MLP's ``gate_up_proj`` and never ``experts``, whose packed children carry their expert's
    number.
    """

    path: Path
    rank: int
    target_modules: tuple[str, ...]
    lora_target_modules: tuple[str, ...]
    num_tensors: int


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelFacts:
    """Sizes, weights by component in bytes as loaded, adapter and head of one model.

    ``head`` is None for a model that is known from its configuration alone.
    """

    path: Path
    name: str
    architecture: str
    num_layers: int
    layer_types: tuple[str, ...]
    hidden_size: int
    intermediate_size: int
    vocab_size: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    num_global_key_value_heads: int
    global_head_dim: int
    attention_k_eq_v: bool
    num_experts: int
    moe_intermediate_size: int
    top_k: int
    sliding_window: int
    max_position_embeddings: int
    dtype: str
    quant_algo: str | None
    weight_bytes: Mapping[str, int]
    adapter: AdapterFacts | None
    head: DecisionHead | None
    num_slots: int

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready values."""
        plain = {name: getattr(self, name) for name in self.__dataclass_fields__}
        adapter = asdict(self.adapter) | {"path": str(self.adapter.path)} if self.adapter else None
        return plain | {
            "path": str(self.path),
            "weight_bytes": dict(self.weight_bytes),
            "adapter": adapter,
            "head": self.head and self.head.model_dump(mode="json"),
        }


_SCALES = ("weight_scale", "weight_scale_2", "input_scale")
_STORED_OVER_LOADED = {"F32": 2, "F64": 4}

SHAPE_FACTS = (
    *("num_layers", "layer_types", "hidden_size", "intermediate_size", "vocab_size", "num_attention_heads"),
    *("num_key_value_heads", "head_dim", "num_global_key_value_heads", "global_head_dim", "attention_k_eq_v"),
    *("num_experts", "moe_intermediate_size", "top_k", "sliding_window", "max_position_embeddings"),
)


def read_facts(files: ModelFiles) -> ModelFacts:
    """Facts of a model; UnavailableError when a file that tells them is missing or malformed."""
    config, shape = files.json(names.CONFIG), files.shape
    listed = config.get("architectures") or ["unknown"]
    head = decision_head(files)
    return ModelFacts(
        path=files.root,
        name=files.root.resolve().name,
        architecture=str(listed[0]),
        dtype=str(config.get("dtype") or config.get("torch_dtype") or "bfloat16"),
        quant_algo=names.quant_algo(files),
        weight_bytes=weight_bytes(files),
        adapter=_adapter(files),
        head=head,
        num_slots=head.slots.num_slots,
        **{name: getattr(shape, name) for name in SHAPE_FACTS},
    )


def weight_bytes(files: ModelFiles) -> Mapping[str, int]:
    """Bytes of the checkpoint's tensors by component as the engine holds them, from the headers alone."""
    sizes = dict.fromkeys(COMPONENTS, 0)
    for name, tensor in files.tensors.items():
        sizes[component(name)] += loaded_bytes(name, tensor.dtype, tensor.size_bytes)
    return MappingProxyType(sizes)


def loaded_bytes(name: str, dtype: str, size_bytes: int) -> int:
    """Bytes of a stored tensor once loaded: codes and scales are kept, the rest is cast to 16 bits."""
    if name.endswith(_SCALES):
        return size_bytes
    return size_bytes // _STORED_OVER_LOADED.get(dtype, 1)


def _adapter(files: ModelFiles) -> AdapterFacts:
    config = files.adapter_config
    rank, targets = config.get("r"), config.get("target_modules")
    if type(rank) is not int or not is_list_of_names(targets):
        raise UnavailableError(str(files.adapter_config_path))
    modules = pairs(files)
    return AdapterFacts(
        path=files.adapter_root,
        rank=rank,
        target_modules=tuple(targets),
        lora_target_modules=tuple(sorted({module.rpartition(".")[2] for module in modules})),
        num_tensors=len(files.adapter_tensors),
    )
