"""The plans against what one H200 gave: a change of the memory model answers to these figures."""

import pytest
from measured_plans import KV_BOUND, PLANS, TOTAL_BYTES, WEIGHTS_BOUND
from plan_facts import adapter, facts_26b, gpu_report

from decideploy.plan import plan
from decideploy.plan.allocator import ExpertLayout, rounding_bytes

MIB = 1024**2
# The checkpoint that ran: its adapter has every target, its tables of positions half the published length.
FACTS = facts_26b(
    max_position_embeddings=131_072, adapter=adapter(lora_target_modules=adapter().target_modules)
)


@pytest.mark.parametrize("name", PLANS)
def test_plan_is_what_the_card_gave(name: str) -> None:
    measured = PLANS[name]
    memory = plan(FACTS, gpu_report(TOTAL_BYTES), workload=measured.workload).memory
    assert memory.weights_bytes == pytest.approx(measured.weights_bytes, rel=WEIGHTS_BOUND)
    assert memory.kv_cache_bytes == pytest.approx(measured.kv_cache_bytes, rel=KV_BOUND)
    # Never more than there is: the engine would not start.
    assert memory.kv_cache_bytes <= measured.kv_cache_bytes


@pytest.mark.parametrize(
    ("layout", "rests_mib"),
    [(None, 209), ((1536, 2816, 2816, 768), 110)],
    ids=["marlin", "humming"],
)
def test_rests_of_blocks_are_those_of_the_card(layout: ExpertLayout | None, rests_mib: int) -> None:
    """The engine's figure less the bytes of all its tensors, of 16.7 and 17.8 GiB."""
    assert rounding_bytes(FACTS, experts=layout) / MIB == pytest.approx(rests_mib, abs=40)


def test_tensors_that_share_blocks_leave_no_rests() -> None:
    small = facts_26b(hidden_size=64, intermediate_size=128, moe_intermediate_size=64, num_experts=4)
    assert rounding_bytes(small) == 0
