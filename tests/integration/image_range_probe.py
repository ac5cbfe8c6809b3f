"""Run in a process of its own, against whichever vLLM is first on the path.

Prints the ranges of tokens that model runner V2 lets attend in both directions, for images within and wider
than the sliding window, by a model that clamps them in its kernels and by one that does not.
"""

import json
from types import SimpleNamespace

import numpy as np
import torch
from vllm.config.compilation import CUDAGraphMode
from vllm.multimodal.inputs import MultiModalFeatureSpec, PlaceholderRange
from vllm.v1.worker.gpu.model_states import default

WINDOW = 64
IMAGES = {"within": (3, 40), "wider": (50, 300)}


def feature(offset: int, length: int) -> MultiModalFeatureSpec:
    place = PlaceholderRange(offset=offset, length=length)
    return MultiModalFeatureSpec(data=None, modality="image", identifier="picture", mm_position=place)


def state_of(model: object) -> default.DefaultModelState:
    """The part of a runner's state that decides on ranges: it needs neither weights nor a GPU."""
    state = object.__new__(default.DefaultModelState)
    state.model, state.max_model_len, state.supports_mm_inputs = model, 512, True
    state.model_config = SimpleNamespace(
        is_mm_prefix_lm=True, get_sliding_window=lambda: WINDOW, hf_text_config=SimpleNamespace()
    )
    state.encoder_cache = SimpleNamespace(mm_features={"one": [feature(*place) for place in IMAGES.values()]})
    return state


def ranges(model: object) -> list[tuple[int, int]]:
    """What the attention metadata of one request's step is built with."""
    told = {}
    default.build_attn_metadata = lambda **given: told.update(given)
    one = np.array([1], dtype=np.int32)
    step = SimpleNamespace(
        req_ids=["one"],
        num_reqs=1,
        num_tokens=1,
        query_start_loc_np=np.array([0, 1], dtype=np.int32),
        query_start_loc=torch.tensor([0, 1]),
        max_query_len=1,
        seq_lens_cpu_upper_bound=torch.tensor([1]),
        seq_lens=torch.tensor([1]),
        dcp_local_seq_lens=None,
        dcp_local_seq_lens_cpu_upper_bound=None,
        positions=torch.tensor([0]),
        is_prefilling_np=np.array([True]),
        prompt_lens=one,
        idx_mapping_np=one,
        fast_prefill=False,
    )
    state_of(model).prepare_attn(step, CUDAGraphMode.NONE, (), torch.tensor([0]), [], None)
    return told["mm_req_doc_ranges"][0]


def main() -> None:
    found = {
        "clamping": ranges(SimpleNamespace(mm_prefix_clamp_sliding_window=True)),
        "not clamping": ranges(SimpleNamespace()),
    }
    print("\n" + json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
