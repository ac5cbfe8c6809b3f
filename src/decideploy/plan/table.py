"""The plan for people."""

from __future__ import annotations

import shlex

from rich.console import Console
from rich.table import Table

from decideploy.plan.launch_plan import LaunchPlan
from decideploy.plan.memory import GIB


def print_plan(plan: LaunchPlan, console: Console | None = None) -> None:
    """Print choices with reasons, the memory sum, then environment and command as a shell reads them."""
    console = console or Console()
    console.print(_choices(plan))
    console.print(_memory(plan))
    for name, value in plan.env.items():
        console.print(f"{name}={shlex.quote(value)} \\", markup=False, highlight=False, soft_wrap=True)
    console.print(shlex.join(plan.argv), markup=False, highlight=False, soft_wrap=True)


def _choices(plan: LaunchPlan) -> Table:
    table = Table("choice", "value", "why", title=f"Launch plan ({plan.platform})")
    values = {
        "moe_backend": plan.moe_backend or "auto",
        "max_model_len": plan.max_model_len,
        "max_num_seqs": plan.max_num_seqs,
        "max_num_batched_tokens": plan.max_num_batched_tokens,
        "cudagraph_capture_sizes": _span(plan.capture_sizes),
        "VLLM_CPU_KVCACHE_SPACE": plan.env.get("VLLM_CPU_KVCACHE_SPACE"),
    }
    for name, reason in plan.reasons.items():
        value = values.get(name)
        table.add_row(name, _flag_value(plan, name) if value is None else str(value), reason)
    return table


def _span(sizes: tuple[int, ...]) -> str | None:
    return f"{len(sizes)} sizes, {sizes[0]} to {sizes[-1]}" if sizes else None


def _flag_value(plan: LaunchPlan, name: str) -> str:
    """The flag's values in argv, "yes" for a bare flag, empty when the plan sets none."""
    flag = f"--{name.replace('_', '-')}"
    if flag not in plan.argv:
        return ""
    rest = plan.argv[plan.argv.index(flag) + 1 :]
    end = next((i for i, word in enumerate(rest) if word.startswith("--")), len(rest))
    return " ".join(rest[:end]) or "yes"


def _memory(plan: LaunchPlan) -> Table:
    memory = plan.memory
    table = Table("part", "GiB", "formula", title="Memory")
    table.columns[1].justify = "right"
    for term in memory.terms:
        table.add_row(term.name, f"{term.size_bytes / GIB:.2f}", term.formula)
    table.add_section()
    table.add_row("KV cache", f"{memory.kv_cache_bytes / GIB:.2f}", f"{memory.sequences:.1f} full sequences")
    table.add_row(
        "startup floor of it", f"{memory.kv_floor_bytes / GIB:.2f}", "blocks of one sequence in chunks"
    )
    table.add_row("can be used", f"{memory.available_bytes / GIB:.2f}", "")
    return table
