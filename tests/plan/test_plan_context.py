"""The longest sequence against what the workload needs."""

import pytest
from plan_facts import GIB, cpu_report, facts_26b, facts_small, gpu_report
from test_plan_launch import values

from decideploy.artifacts import sizes_of
from decideploy.errors import CapacityError, ConfigError
from decideploy.hardware import card_report
from decideploy.plan import Workload, plan
from decideploy.plan.context_length import needed_tokens

PUBLISHED = "autotrust/GEV-26B-Decide-NVFP4"


@pytest.mark.parametrize("card", ["a10g", "l4"])
def test_a_card_that_does_not_hold_the_prompts_is_refused(card: str) -> None:
    with pytest.raises(CapacityError) as caught:
        plan(sizes_of(PUBLISHED), card_report(card))
    error = caught.value
    # 1,024 of text, four images of 280, and the answer.
    assert "sequences of 2,145 tokens" in error.what
    assert error.needed_bytes > error.available_bytes
    assert "--max-images 0" in error.next_step
    fitting = plan(sizes_of(PUBLISHED), card_report(card), workload=Workload(images=False))
    assert fitting.max_model_len >= 1025


def test_what_is_needed_is_the_longest_request() -> None:
    assert needed_tokens(Workload(), images=True) == 1024 + 4 * 280 + 1
    assert needed_tokens(Workload(), images=False) == 1025
    assert needed_tokens(Workload(prompt_tokens=300, max_images=1), images=True) == 300 + 280 + 1
    thinking = Workload(thinking_share=0.1, think_tokens=500)
    assert needed_tokens(thinking, images=False) == 1024 + 500 + 64 + 1
    assert needed_tokens(Workload(think_tokens=500), images=False) == 1025
    assert needed_tokens(Workload(thinking_share=1.0), images=False) == 1024 + 4096 + 64 + 1
    assert needed_tokens(Workload(median_prompt_tokens=2000), images=False) == 2001


def test_prompts_beyond_the_default_cap_are_held() -> None:
    launch = plan(facts_26b(), gpu_report(140 * GIB), workload=Workload(prompt_tokens=100_000))
    assert launch.max_model_len == 100_000 + 4 * 280 + 1
    assert "prompt 100,000" in launch.reasons["max_model_len"]


def test_a_thought_may_not_fit_where_the_decision_does() -> None:
    facts, card = sizes_of(PUBLISHED), card_report("rtx4090")
    plan(facts, card)
    with pytest.raises(CapacityError) as caught:
        plan(facts, card, workload=Workload(thinking_share=0.2, think_tokens=131_072))
    assert "--think-tokens" in caught.value.next_step


@pytest.mark.parametrize(
    ("asked", "told"),
    [
        ({"prompt_tokens": 5000}, "more than the model's longest of 4096"),
        ({"prompt_tokens": 1000, "max_model_len": 1000}, "1001 tokens, more than the asked --max-model-len"),
        ({"think_tokens": 900, "thinking_share": 1.0, "max_model_len": 900}, "965 tokens"),
        ({"max_model_len": 5000}, "exceeds the model's 4096"),
        ({"think_tokens": 900}, "no decision is said to think"),
    ],
)
def test_lengths_that_contradict_each_other_are_refused(asked: dict[str, object], told: str) -> None:
    for hardware in (cpu_report(), gpu_report(24 * GIB)):
        with pytest.raises(ConfigError, match=told) as caught:
            plan(facts_small(), hardware, workload=Workload(**asked))
        assert caught.value.next_step


def test_a_length_that_is_forced_below_the_default_prompts_is_told() -> None:
    launch = plan(facts_26b(), gpu_report(80 * GIB), workload=Workload(max_model_len=1024))
    assert launch.max_model_len == 1024
    (note,) = [note for note in launch.notes if "longer prompts are refused" in note]
    assert "2,145 tokens" in note
    held = plan(facts_26b(), gpu_report(80 * GIB), workload=Workload(max_model_len=2145))
    assert not [note for note in held.notes if "longer prompts" in note]


def test_a_model_with_short_sequences_is_planned_and_told() -> None:
    launch = plan(facts_small(max_position_embeddings=512), cpu_report())
    assert launch.max_model_len == 512
    assert "1,025 tokens" in launch.notes[-1]


def test_a_small_card_takes_a_smaller_step_before_it_is_refused() -> None:
    roomy = plan(facts_26b(), gpu_report(26 * GIB, capability="8.9"))
    launch = None
    for size in range(22 * 1024, 24 * 1024, 16):
        try:
            launch = plan(facts_26b(), gpu_report(size * 1024**2, capability="8.9"))
            break
        except CapacityError:
            continue
    assert launch is not None
    assert roomy.max_num_batched_tokens == 2048
    assert 512 <= launch.max_num_batched_tokens < 2048
    assert launch.max_model_len >= 2145
    assert "would not fit beside it" in launch.reasons["max_num_batched_tokens"]
    assert values(launch.argv, "--max-num-batched-tokens") == [str(launch.max_num_batched_tokens)]


def test_an_asked_cache_below_what_the_engine_starts_with_is_refused() -> None:
    with pytest.raises(CapacityError) as caught:
        plan(facts_26b(), gpu_report(80 * GIB), workload=Workload(kv_cache_memory_bytes=GIB // 8))
    assert caught.value.available_bytes == GIB // 8
    assert caught.value.where == "--kv-cache-memory-bytes"
    assert "leave out --kv-cache-memory-bytes" in caught.value.next_step


@pytest.mark.parametrize(
    ("asked", "told"),
    [
        ({"max_num_batched_tokens": 32, "images": False}, "64 requests a step"),
        ({"max_num_batched_tokens": 279, "max_num_seqs": 1}, "an image's 280 tokens"),
    ],
)
def test_steps_that_the_engine_refuses_are_refused(asked: dict[str, object], told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        plan(facts_26b(), gpu_report(80 * GIB), workload=Workload(**asked))


def test_clients_that_think_are_held_against_the_cache() -> None:
    asked = Workload(thinking_share=0.5, think_tokens=2048, images=False)
    launch = plan(facts_26b(), gpu_report(25 * GIB, capability="8.9"), workload=asked)
    (note,) = [note for note in launch.notes if "think at once" in note]
    assert note.startswith("32 of 64 clients think at once")
    assert note.endswith("sequences of 2,304 tokens, the others wait")
