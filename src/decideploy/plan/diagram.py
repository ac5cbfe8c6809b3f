"""The plan's memory as one stacked bar."""

from __future__ import annotations

from typing import TYPE_CHECKING

from decideploy.plan.launch_plan import LaunchPlan
from decideploy.plan.memory import GIB
from decideploy.plan.table import parts
from decideploy.plotting import new_figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def draw_memory(plan: LaunchPlan) -> Figure:
    """A bar of what takes the memory, in GiB; ConfigError when matplotlib is absent."""
    figure = new_figure(width=9, height=3)
    axes = figure.subplots()
    left = 0.0
    for name, size in parts(plan.memory).items():
        gib = size / GIB
        axes.barh([plan.device], [gib], left=left, label=f"{name} {gib:.2f}")
        left += gib
    axes.set_xlabel("GiB that the engine may take")
    axes.set_title(f"{plan.model}: {plan.max_model_len} tokens, {plan.max_num_seqs} sequences")
    figure.legend(loc="outside lower center", ncols=4, fontsize="small")
    return figure
