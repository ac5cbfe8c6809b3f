"""Our map from an adapter's keys to modules against vLLM's own functions, on random keys."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from decideploy.artifacts.adapter import lora_targets
from decideploy.artifacts.adapter_keys import engine_module, engine_targets
from decideploy.artifacts.files import ModelFiles

# Importing the engine warns on behalf of torch.
pytestmark = [pytest.mark.integration, pytest.mark.filterwarnings("ignore::DeprecationWarning")]

SPELLINGS = ("model.language_model.", "language_model.model.", "model.", "language_model.", "", "lm_head.")
PREFIXES = ("base_model.model.", "base_model.model.base_model.model.", "base_model.", "model.", "")
MODULES = ("self_attn.q_proj", "self_attn.v_proj", "mlp.down_proj", "mlp.gate_up_proj", "router.proj")
MODULES += ("experts.0.up_proj", "experts", "self_attn", "")
ENDS = (".lora_A.weight", ".lora_B.weight", ".lora_A.default.weight", ".lora_A", ".weight", ".lora_B.bias")
ENDS += (".lora_embedding_A", ".lora_magnitude_vector", ".base_layer.weight", "lora_A.weight")
layers = st.sampled_from(("0", "5", "6", "05", "-1", "x"))
modules = st.builds("layers.{}.{}".format, layers, st.sampled_from(MODULES)) | st.sampled_from(
    ("lm_head", "embed_tokens", "vision_tower.encoder.layers.0.self_attn.q_proj", "norm", "")
)
keys = st.builds(
    lambda *parts: "".join(parts),
    st.sampled_from(PREFIXES),
    st.sampled_from(SPELLINGS),
    modules,
    st.sampled_from(ENDS),
)


@pytest.fixture(scope="module")
def mapper():
    from vllm.model_executor.models.gemma4_mm import Gemma4ForConditionalGeneration

    return Gemma4ForConditionalGeneration.hf_to_vllm_mapper


@pytest.fixture(scope="module")
def targets(demo_model):
    return lora_targets(ModelFiles(demo_model))


def read_by_engine(key, mapper):
    """Module and side as vLLM reads them, None for what it refuses; embeddings are no linears."""
    from vllm.lora.utils import parse_fine_tuned_lora_name

    try:
        module, is_a = parse_fine_tuned_lora_name(key, mapper)
    except ValueError:
        return None
    return None if "lora_embedding" in key else (module, "A" if is_a else "B")


@settings(max_examples=1500, deadline=None)
@given(key=keys)
def test_keys_are_read_as_the_engine_reads_them(mapper, key):
    assert engine_module(key) == read_by_engine(key, mapper)


def test_every_target_has_the_engines_name(mapper, targets):
    named = engine_targets(targets)
    assert list(named.values()) == list(targets)
    for engine, module in named.items():
        key = f"base_model.model.{module}.lora_A.weight"
        assert read_by_engine(key, mapper) == (engine, "A")


def test_targets_are_named_as_parts_of_the_packed_layers(targets):
    """The engine packs q, k, v and gate, up; the others keep their names."""
    from vllm.model_executor.models.gemma4_mm import Gemma4ForConditionalGeneration

    packed = Gemma4ForConditionalGeneration.packed_modules_mapping
    parts = {part for names in packed.values() for part in names}
    suffixes = {module.rpartition(".")[2] for module in targets}
    assert suffixes <= parts | {"o_proj", "down_proj", "lm_head"}
    assert suffixes >= {"q_proj", "k_proj", "v_proj", "gate_proj", "up_proj"}
