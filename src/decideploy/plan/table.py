"""The plan for people."""

from __future__ import annotations

import shlex

from rich.console import Console
from rich.table import Table
from rich.text import Text

from decideploy.plan.launch_plan import LaunchPlan
from decideploy.plan.memory import GIB, MemoryPlan
from decideploy.plan.reconcile import Figure, Reconciliation

_BAR_WIDTH = 78
_COLOURS = ("blue", "cyan", "magenta", "yellow", "red", "bright_blue", "bright_magenta", "green", "white")


def print_plan(plan: LaunchPlan, console: Console | None = None) -> None:
    """Print choices with reasons, the memory sum, then environment and command as a shell reads them."""
    console = console or Console()
    console.print(_choices(plan))
    console.print(_memory(plan))
    console.print(_bar(plan.memory))
    for note in plan.notes:
        console.print(f"note: {note}", style="yellow", markup=False, highlight=False, soft_wrap=True)
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
    blocks = (
        f"{memory.kv_blocks:,} blocks of {memory.kv_block_bytes:,} B; {memory.sequences:.1f} full sequences"
    )
    table.add_row("KV cache", f"{memory.kv_cache_bytes / GIB:.2f}", blocks)
    table.add_row(
        "startup floor of it", f"{memory.kv_floor_bytes / GIB:.2f}", "blocks of one sequence in chunks"
    )
    table.add_row("can be used", f"{memory.available_bytes / GIB:.2f}", "")
    return table


def parts(memory: MemoryPlan) -> dict[str, int]:
    """Bytes by what takes them, largest first, the KV cache and what is left last."""
    sizes: dict[str, int] = {}
    for term in memory.terms:
        name = term.name.removeprefix("weights: ") if term.name.startswith("weights: ") else term.name
        sizes[name] = sizes.get(name, 0) + term.size_bytes
    taken = {name: size for name, size in sorted(sizes.items(), key=lambda part: -part[1]) if size > 0}
    free = memory.available_bytes - memory.used_bytes - memory.kv_cache_bytes
    return {**taken, "KV cache": memory.kv_cache_bytes, **({"left free": free} if free > 0 else {})}


def _bar(memory: MemoryPlan) -> Text:
    """One line of blocks in the parts' proportions, and a legend of those that are wide enough to be seen."""
    bar, legend = Text(), Text()
    end = done = 0
    for number, (name, size) in enumerate(parts(memory).items()):
        end += size
        width = round(end * _BAR_WIDTH / memory.available_bytes) - done
        done += width
        if width:
            style = _COLOURS[number % len(_COLOURS)]
            bar.append("█" * width, style)
            legend.append("█ ", style)
            legend.append(f"{name} {size / GIB:.2f}  ")
    return Text.assemble(bar, "\n", legend)


def print_reconciliation(found: Reconciliation, console: Console | None = None) -> None:
    """Print predicted beside observed."""
    console = console or Console()
    table = Table("figure", "predicted", "observed", "error", title="Start, planned and observed")
    for name in ("predicted", "observed", "error"):
        next(column for column in table.columns if column.header == name).justify = "right"
    for figure in found.figures:
        error = "" if figure.error is None else f"{figure.error:+.1%}"
        table.add_row(figure.name, _number(figure, figure.predicted), _number(figure, figure.observed), error)
    table.add_row("expert kernel", found.predicted_moe_backend or "auto", found.observed_moe_backend or "")
    console.print(table)


def _number(figure: Figure, value: float | None) -> str:
    if value is None:
        return "not told"
    if figure.unit == "bytes":
        return f"{value / GIB:.2f} GiB"
    return f"{value:,.0f}" if figure.unit == "blocks" else f"{value:.1f} s"
