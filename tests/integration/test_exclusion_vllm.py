"""Our exclusion matcher and name map against vLLM's own functions, on random patterns and names."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from decideploy.artifacts.exclusion import engine_name, engine_patterns, is_excluded

# Importing the engine warns on behalf of torch.
pytestmark = [pytest.mark.integration, pytest.mark.filterwarnings("ignore::DeprecationWarning")]

PARTS = (
    "model",
    "language_model",
    "layers",
    "1",
    "11",
    "0",
    "self_attn",
    "mlp",
    "q_proj",
    "k_proj",
    "v_proj",
)
PARTS += ("qkv_proj", "gate_proj", "up_proj", "gate_up_proj", "down_proj", "o_proj", "router", "proj")
PARTS += ("experts", "moe", "lm_head", "vision_tower", "embed_vision", "embedding_projection", "encoder")
PREFIXES = ("", "model.", "model.language_model.", "language_model.model.", "model.vision_tower.", "lm_head")

names = st.builds(
    lambda prefix, parts: prefix + ".".join(parts),
    st.sampled_from(PREFIXES),
    st.lists(st.sampled_from(PARTS), min_size=1, max_size=5),
)
# A name with a star, a question mark or a class put somewhere, or cut short.
patterns = st.builds(
    lambda name, place, mark, cut: name[:place] + mark + ("" if cut else name[place:]),
    names,
    st.integers(0, 40),
    st.sampled_from(("", "*", ".*", "?", "[0-9]", "*.")),
    st.booleans(),
)


@pytest.fixture(scope="module")
def gemma4():
    from vllm.model_executor.models.gemma4_mm import Gemma4ForConditionalGeneration

    return Gemma4ForConditionalGeneration


def engine_config(gemma4, listed):
    from vllm.model_executor.layers.quantization.modelopt import ModelOptNvFp4Config

    config = object.__new__(ModelOptNvFp4Config)
    config.exclude_modules = list(listed)
    config.packed_modules_mapping = gemma4.packed_modules_mapping
    config.apply_vllm_mapper(gemma4.hf_to_vllm_mapper)
    return config


@settings(max_examples=2000, deadline=None)
@given(listed=st.lists(patterns, max_size=4), module=names)
def test_exclusion_is_the_engines(gemma4, listed, module):
    config = engine_config(gemma4, listed)
    assert list(engine_patterns(listed)) == config.exclude_modules
    module = engine_name(module)
    assert is_excluded(module, engine_patterns(listed)) == config.is_layer_excluded(module)


@settings(max_examples=2000, deadline=None)
@given(name=names | patterns)
def test_names_are_the_engines(gemma4, name):
    assert [engine_name(name)] == gemma4.hf_to_vllm_mapper.apply_list([name])
