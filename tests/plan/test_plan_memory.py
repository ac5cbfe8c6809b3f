from dataclasses import replace
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from plan_facts import GIB, adapter, cpu_report, facts_26b, facts_small, gpu_report

from decideploy.errors import CapacityError, ConfigError
from decideploy.hardware import card_report
from decideploy.plan import Workload, plan
from decideploy.plan.kv_cache import KvShape
from decideploy.plan.launch_plan import first_plan
from decideploy.plan.memory import (
    GRAPHS,
    MIB,
    cuda_terms,
    repacked_terms,
    step_terms,
    vision_terms,
    weight_terms,
)
from decideploy.plan.sizing import capture_sizes


def test_block_and_floor_are_those_of_the_26b_shape() -> None:
    shape = KvShape.of(facts_26b(), 16)
    assert shape.block_bytes == 655_360
    batched, length = 4096, 8192
    # [5 (ceil(min(1023 + 2 MBT, L) / 16) + 1) + ceil(L / 32) + the null block] x 640 KiB
    assert shape.floor_bytes(length, 2 * batched) == (5 * (512 + 1) + 256 + 1) * 655_360
    assert shape.floor_bytes(32_768, 4096) == (5 * (320 + 1) + 1024 + 1) * 655_360


def test_steady_state_of_a_sequence() -> None:
    shape = KvShape.of(facts_26b(), 16)
    sliding_only = shape.sequence_bytes(32_768) - 20 * 1024 * 32_768
    assert sliding_only == pytest.approx(203 * 1024**2, rel=0.01)


def test_kv_of_the_measured_run() -> None:
    """One H200, 26B shape, utilization 0.5, 4,096 batched tokens, 64 sequences left 50.75 GiB for KV."""
    measured = Workload(
        gpu_memory_utilization=0.5,
        max_model_len=8192,
        images=False,
        prompt_tokens=128,
        moe_backend="marlin",
    )
    memory = plan(facts_26b(), card_report("h200"), workload=measured).memory
    assert memory.kv_cache_bytes / GIB == pytest.approx(50.75, rel=0.01)


def test_kv_of_the_run_with_images() -> None:
    """One H200, default plan: 106.34 GiB of KV, logged as 1,460,468 tokens of sequences of 32,768.

    Its weights were random, for which Humming takes 0.94 GiB more: see docs/memory-model.md.
    """
    launch = plan(facts_26b(), gpu_report(150_109_880_320))
    assert launch.memory.kv_cache_bytes / GIB == pytest.approx(106.34, rel=0.02)
    blocks = round(106.34 * GIB / launch.memory.kv_block_bytes)
    shape = KvShape.of(facts_26b(), 16)
    assert shape.capacity_tokens(blocks, 32_768, 2 * 4096) == pytest.approx(1_460_468, abs=100)


def test_rotary_tables_hold_every_position_of_both_layer_types() -> None:
    facts = facts_26b(max_position_embeddings=262_144)
    terms = {term.name: term.size_bytes for term in weight_terms(facts, images=True, lora_rank=32)}
    assert terms["weights: rotary tables"] == 262_144 * (256 + 512) * 2


def test_lora_buffers_of_lm_head() -> None:
    facts = facts_26b(adapter=adapter(lora_target_modules=("lm_head",)))
    terms = {term.name: term.size_bytes for term in weight_terms(facts, images=True, lora_rank=32)}
    assert terms["LoRA buffers"] == 2 * 32 * (2816 + 262_144)
    assert terms["weights: V of K=V layers"] == 5 * 2816 * 2 * 512 * 2


def test_buffers_are_as_wide_as_the_rank_the_engine_is_told() -> None:
    narrow = plan(facts_26b(adapter=adapter(rank=5)), gpu_report(80 * GIB))
    wide = plan(facts_26b(adapter=adapter(rank=8)), gpu_report(80 * GIB))
    assert narrow.memory.terms == wide.memory.terms


def test_vision_counts_only_with_images() -> None:
    facts = facts_26b()
    with_images = weight_terms(facts, images=True, lora_rank=8)
    without = weight_terms(facts, images=False, lora_rank=8)
    assert {t.name for t in with_images} - {t.name for t in without} == {"weights: vision"}


def vision_step_bytes(**changes: int) -> int:
    sizes = {"max_num_seqs": 64, "max_images": 4, "batched_tokens": 4096, "total_bytes": 288 * GIB} | changes
    (term,) = vision_terms(**sizes, step=())
    return term.size_bytes


def test_a_batch_of_images_is_bounded_by_the_step_the_requests_and_the_card() -> None:
    one, allowance = 84 * MIB, 7 * GIB // 10
    # In parts of an image, so that a token more does not cost one.
    assert vision_step_bytes(batched_tokens=8192) == 8192 * one // 280 - allowance
    assert vision_step_bytes() == 4096 * one // 280 - allowance
    assert vision_step_bytes(max_num_seqs=3, max_images=4) == 12 * one - allowance
    assert 10 * one < vision_step_bytes(total_bytes=80 * GIB) + allowance < 14 * one
    assert vision_step_bytes(total_bytes=GIB) == 0


def test_a_batch_of_images_takes_the_memory_of_the_text_step_first() -> None:
    step = step_terms(facts_26b(), max_num_seqs=8, batched_tokens=8192)
    sizes = {"max_num_seqs": 8, "max_images": 4, "batched_tokens": 8192, "total_bytes": 288 * GIB}
    (term,) = vision_terms(**sizes, step=step)
    reused = sum(t.size_bytes for t in step if t.name != "penalty tables")
    assert term.size_bytes == vision_step_bytes(batched_tokens=8192) - reused


def test_too_small_card_names_the_largest_term() -> None:
    with pytest.raises(CapacityError) as caught:
        plan(facts_26b(), gpu_report(16 * GIB, capability="8.9"))
    assert caught.value.largest_term == "weights: experts"
    assert caught.value.needed_bytes > caught.value.available_bytes
    assert caught.value.next_step == "a larger card, such as rtx4090"


def test_cpu_without_memory_is_refused() -> None:
    with pytest.raises(CapacityError):
        plan(facts_small(), cpu_report(2 * GIB))


def test_single_layer_type_is_planned() -> None:
    layers = ("full_attention",) * 4
    facts = facts_small(layer_types=layers, sliding_window=None, attention_k_eq_v=False)
    assert plan(facts, cpu_report(16 * GIB)).memory.kv_cache_bytes == GIB


def fits(facts: SimpleNamespace, report: object, workload: Workload) -> object:
    try:
        return first_plan(facts, report, workload=workload)
    except CapacityError:
        return None


# A busy machine is slow, which says nothing of a plan.
UNTIMED = settings(deadline=None)

SIZES = st.integers(min_value=GIB, max_value=300 * GIB)
WORKLOADS = st.builds(
    Workload,
    max_num_seqs=st.integers(1, 512),
    max_num_batched_tokens=st.none() | st.integers(512, 16_384),
    prompt_tokens=st.none() | st.integers(1, 3000),
    thinking_share=st.just(0.5),
    think_tokens=st.none() | st.integers(1, 1024),
    images=st.booleans(),
    goal=st.sampled_from(["latency", "throughput"]),
    kv_cache_dtype=st.sampled_from(["auto", "fp8"]),
)

WORKLOADS |= WORKLOADS.map(lambda workload: replace(workload, thinking_share=0.0, think_tokens=None))
CPU_WORKLOADS = WORKLOADS.map(lambda workload: replace(workload, kv_cache_dtype="auto"))


@UNTIMED
@given(total=SIZES, free=st.floats(0.01, 1.0), workload=WORKLOADS)
def test_every_gpu_plan_fits_its_own_sum(total: int, free: float, workload: Workload) -> None:
    launch = fits(facts_26b(), gpu_report(total, free_bytes=int(total * free)), workload)
    if launch is None:
        return
    memory = launch.memory
    assert memory.used_bytes + memory.kv_cache_bytes <= memory.available_bytes <= total
    assert memory.kv_cache_bytes >= memory.kv_floor_bytes
    assert memory.available_bytes <= int(total * free)


@UNTIMED
@given(available=SIZES, workload=CPU_WORKLOADS)
def test_every_cpu_plan_fits_its_own_sum(available: int, workload: Workload) -> None:
    launch = fits(facts_small(), cpu_report(available), workload)
    if launch is None:
        return
    memory = launch.memory
    assert memory.used_bytes + memory.kv_cache_bytes <= memory.available_bytes < available
    assert memory.kv_cache_bytes >= memory.kv_floor_bytes
    assert launch.env["VLLM_CPU_KVCACHE_SPACE"] == str(memory.kv_cache_bytes // GIB)


@UNTIMED
@given(total=SIZES, less=st.floats(0.0, 1.0), more=st.floats(0.0, 1.0), workload=WORKLOADS)
def test_more_free_memory_never_gives_less(total: int, less: float, more: float, workload: Workload) -> None:
    less, more = sorted((less, more))
    small = fits(facts_26b(), gpu_report(total, free_bytes=int(total * less)), workload)
    large = fits(facts_26b(), gpu_report(total, free_bytes=int(total * more)), workload)
    assert_not_less(small, large)


@UNTIMED
@given(one=SIZES, other=SIZES, workload=CPU_WORKLOADS)
def test_more_host_memory_never_gives_less(one: int, other: int, workload: Workload) -> None:
    one, other = sorted((one, other))
    small = fits(facts_small(), cpu_report(one), workload)
    assert_not_less(small, fits(facts_small(), cpu_report(other), workload))


@UNTIMED
@given(one=SIZES, other=SIZES, workload=WORKLOADS)
def test_a_larger_card_never_gives_less(one: int, other: int, workload: Workload) -> None:
    one, other = sorted((one, other))
    small = fits(facts_26b(), gpu_report(one), workload)
    assert_not_less(small, fits(facts_26b(), gpu_report(other), workload))


@pytest.mark.parametrize(
    "wishes", [{}, {"kv_cache_dtype": "fp8"}, {"goal": "throughput", "prompt_tokens": 8192}]
)
def test_a_little_more_memory_never_gives_less(wishes: dict[str, object]) -> None:
    """Where the plan passes from one step size to the next, which random pairs of cards seldom meet."""
    workload, before = Workload(**wishes), None
    steps = set()
    for size in (*range(22_500, 25_500, 9), *range(36_800, 38_200, 9)):
        launch = fits(facts_26b(), gpu_report(size * MIB, capability="8.9"), workload)
        assert_not_less(before, launch)
        before = launch or before
        steps.add(launch and launch.max_num_batched_tokens)
    assert {None, 2048, 8192 if "goal" in wishes else 4096} < steps


@UNTIMED
@given(total=SIZES, one=st.integers(1, 512), other=st.integers(1, 512), workload=WORKLOADS)
def test_fewer_sequences_never_cost_memory(total: int, one: int, other: int, workload: Workload) -> None:
    one, other = sorted((one, other))
    few, many = (
        fits(facts_26b(), gpu_report(total), replace(workload, max_num_seqs=seqs)) for seqs in (one, other)
    )
    assert_not_less(many, few)


def assert_not_less(small: object, large: object) -> None:
    if small is None:
        return
    assert large is not None
    assert large.memory.kv_blocks >= small.memory.kv_blocks
    assert large.max_model_len >= small.max_model_len


def test_humming_pads_the_experts() -> None:
    """704 columns become 768 and 1,408 become 1,536: one part in eleven."""
    facts = facts_26b()
    (padding,) = repacked_terms(facts, "humming")
    assert padding.size_bytes == facts.weight_bytes["experts"] // 11
    assert repacked_terms(facts, "marlin") == ()


def test_graphs_are_charged_for_what_a_launch_can_capture() -> None:
    """A prompt longer than every step is captured to the step's length, and costs no graph beyond."""
    for card, prompt in (("h200", 200_000), ("rtx5090", 32_000)):
        launch = plan(facts_26b(), card_report(card), workload=Workload(images=False, prompt_tokens=prompt))
        most = len(capture_sizes(launch.max_num_seqs, 4_096))
        assert launch.memory.graph_bytes <= sum(
            term.size_bytes for term in cuda_terms(most) if term.name == GRAPHS
        )


def test_a_long_prompt_is_refused_for_nothing_but_its_keys_and_values() -> None:
    asked = {"images": False, "kv_cache_dtype": "fp8"}
    by_length = plan(facts_26b(), card_report("rtx5090"), workload=Workload(max_model_len=100_001, **asked))
    by_prompt = plan(facts_26b(), card_report("rtx5090"), workload=Workload(prompt_tokens=100_000, **asked))
    assert by_prompt.max_model_len >= by_length.max_model_len


@pytest.mark.parametrize("asked", [{"max_num_seqs": 10**9}, {"prompt_tokens": 10**9}])
def test_absurd_sizes_are_refused_at_once(asked: dict[str, int]) -> None:
    """By a sum or a length, before anything is made of so many parts."""
    with pytest.raises((CapacityError, ConfigError)):
        first_plan(facts_26b(), card_report("h200"), workload=Workload(**asked))
