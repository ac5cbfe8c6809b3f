"""The plan for people."""

from __future__ import annotations

import shlex
from itertools import pairwise, takewhile

from rich.console import Console
from rich.table import Table
from rich.text import Text

from decideploy.plan.launch_plan import LaunchPlan
from decideploy.plan.memory import GIB, MemoryPlan
from decideploy.plan.reconcile import Figure, Reconciliation

# Wider lines are hard to read, and a terminal cuts them.
_MOST_COLUMNS, _MEMORY_COLUMNS = 110, 90
_COLOURS = ("blue", "cyan", "magenta", "yellow", "red", "bright_blue", "bright_magenta", "green", "white")


def print_plan(plan: LaunchPlan, console: Console | None = None) -> None:
    """Print choices with reasons, the memory sum, then environment and command as a shell reads them."""
    console = console or Console()
    width = min(console.width, _MOST_COLUMNS)
    console.print(_choices(plan, width))
    console.print(_memory(plan, width))
    console.print(_bar(plan.memory, width), width=width)
    for note in plan.notes:
        console.print(f"note: {note}", style="yellow", markup=False, highlight=False, width=width)
    for name, value in plan.env.items():
        console.print(f"{name}={shlex.quote(value)} \\", markup=False, highlight=False, soft_wrap=True)
    console.print(" \\\n  ".join(_command_lines(plan.argv)), markup=False, highlight=False, soft_wrap=True)


def _command_lines(argv: tuple[str, ...]) -> list[str]:
    """The command, and each of its options with its values."""
    starts = [0, *(place for place, word in enumerate(argv) if word.startswith("--")), len(argv)]
    return [shlex.join(argv[start:end]) for start, end in pairwise(starts)]


def _choices(plan: LaunchPlan, width: int) -> Table:
    title = f"Launch plan ({plan.platform})"
    table = Table("choice and value", "why", title=title, width=width, show_lines=True)
    table.columns[0].overflow, table.columns[0].max_width = "fold", 40
    for name, reason in plan.reasons.items():
        table.add_row(Text.assemble((name, "bold"), "\n", _value(plan, name)), Text(reason))
    return table


def _value(plan: LaunchPlan, name: str) -> str:
    """As it was chosen; "default" where neither an option nor a variable tells the engine."""
    sizes = plan.capture_sizes
    if name == "cudagraph_capture_sizes":
        return f"{len(sizes)} sizes, {sizes[0]} to {sizes[-1]}"
    return plan.env.get(name) or _option_value(plan.argv, f"--{name.replace('_', '-')}") or "default"


def _option_value(argv: tuple[str, ...], option: str) -> str:
    """The option's values, "yes" for one without any, nothing where it is not given."""
    if option not in argv:
        return ""
    rest = argv[argv.index(option) + 1 :]
    return " ".join(takewhile(lambda word: not word.startswith("--"), rest)) or "yes"


def _memory(plan: LaunchPlan, width: int) -> Table:
    memory = plan.memory
    width = min(width, _MEMORY_COLUMNS)
    table = Table("part", "GiB", "formula", title=f"Memory of {plan.device}", width=width)
    table.columns[1].justify = "right"
    table.columns[1].no_wrap = True
    for term in memory.terms:
        table.add_row(term.name, _gib(term.size_bytes), term.formula)
    table.add_row(
        "KV cache",
        _gib(memory.kv_cache_bytes),
        f"{memory.kv_blocks:,} blocks of {memory.kv_block_bytes:,} B; {memory.sequences:.1f} full sequences; "
        f"the engine starts with {_gib(memory.kv_floor_bytes)} GiB or more",
    )
    table.add_section()
    table.add_row("total", _gib(memory.used_bytes + memory.kv_cache_bytes), "")
    table.add_row("can be used", _gib(memory.available_bytes), "")
    return table


def _gib(size_bytes: int) -> str:
    return f"{size_bytes / GIB:.2f}"


def parts(memory: MemoryPlan) -> dict[str, int]:
    """Bytes by what takes them, largest first, the KV cache and what is left last."""
    sizes: dict[str, int] = {}
    for term in memory.terms:
        name = term.name.removeprefix("weights: ") if term.name.startswith("weights: ") else term.name
        sizes[name] = sizes.get(name, 0) + term.size_bytes
    taken = {name: size for name, size in sorted(sizes.items(), key=lambda part: -part[1]) if size > 0}
    free = memory.available_bytes - memory.used_bytes - memory.kv_cache_bytes
    return {**taken, "KV cache": memory.kv_cache_bytes, **({"left free": free} if free > 0 else {})}


def _bar(memory: MemoryPlan, columns: int) -> Text:
    """One line of blocks in the parts' proportions, and a legend of those that are wide enough to be seen."""
    bar, legend = Text(), Text()
    end = done = 0
    for number, (name, size) in enumerate(parts(memory).items()):
        end += size
        width = round(end * columns / memory.available_bytes) - done
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
