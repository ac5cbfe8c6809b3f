"""The plan as people read it."""

import re
import shlex

import pytest
from plan_facts import GIB, cpu_report, facts_26b, facts_small, gpu_report
from rich.console import Console

from decideploy.cli.output import WIDE
from decideploy.plan import LaunchPlan, Workload, plan, print_plan


def printed(launch: LaunchPlan, width: int) -> str:
    console = Console(width=width)
    with console.capture() as capture:
        print_plan(launch, console)
    return capture.get()


PLANS = {
    "gpu": plan(facts_26b(), gpu_report(80 * GIB)),
    "text": plan(facts_26b(), gpu_report(24 * GIB, capability="8.9"), workload=Workload(images=False)),
    "cpu": plan(facts_small(), cpu_report()),
}


@pytest.mark.parametrize("name", PLANS)
@pytest.mark.parametrize("width", [60, 80, WIDE])
def test_tables_are_never_wider_than_can_be_read(name: str, width: int) -> None:
    before_the_command = printed(PLANS[name], width).partition("VLLM_PLUGINS")[0]
    assert max(map(len, before_the_command.splitlines())) <= min(width, 110)


@pytest.mark.parametrize("name", PLANS)
@pytest.mark.parametrize("width", [60, WIDE])
def test_no_choice_is_without_a_value_and_no_figure_is_cut(name: str, width: int) -> None:
    launch = PLANS[name]
    text = printed(launch, width)
    assert "…" not in text
    cells = [line.split("│")[1].strip() for line in text.splitlines() if line.startswith("│")]
    for choice in launch.reasons:
        if len(choice) < width // 2 - 4:
            assert cells[cells.index(choice) + 1], choice
    for term in launch.memory.terms:
        assert f"{term.size_bytes / GIB:.2f}" in text


def test_the_sum_is_written_out() -> None:
    memory = PLANS["gpu"].memory
    rows = dict(re.findall(r"│ (total|can be used|KV cache) +│ +([\d.]+) │", printed(PLANS["gpu"], 110)))
    assert rows == {
        "total": f"{(memory.used_bytes + memory.kv_cache_bytes) / GIB:.2f}",
        "can be used": f"{memory.available_bytes / GIB:.2f}",
        "KV cache": f"{memory.kv_cache_bytes / GIB:.2f}",
    }


def test_a_shell_reads_the_command_as_it_is_printed() -> None:
    launch = PLANS["gpu"]
    command = printed(launch, 80).partition("VLLM_PLUGINS")[2]
    # A shell joins lines that end so.
    words = shlex.split("VLLM_PLUGINS" + command.replace("\\\n", ""))
    assert words == [*(f"{name}={value}" for name, value in launch.env.items()), *launch.argv]


def test_what_no_option_is_given_for_says_whose_choice_it_is() -> None:
    text = printed(PLANS["gpu"], 110)
    for choice in ("head_dtype", "generation_config", "attention_backend"):
        assert re.search(rf"│ {choice} +│.*\n│ default +│", text)
    assert re.search(r"│ VLLM_KEEP_ALIVE_ON_ENGINE_DEATH +│.*\n│ 1 +│", text)
