"""Reliability diagrams, PNG and SVG, one pair of files a kind."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from decideploy.calibrate.kinds import KindReport
from decideploy.calibrate.metrics import Bin, Metrics
from decideploy.calibrate.run import CalibrationReport
from decideploy.plotting import new_figure, save_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def draw_diagrams(report: CalibrationReport, folder: Path) -> tuple[Path, ...]:
    """Draw each kind that has examples into ``folder``; returns the files."""
    folder.mkdir(parents=True, exist_ok=True)
    return tuple(
        path
        for kind in report.kinds
        if kind.before is not None
        for path in draw_diagram(kind, report.folds, folder)
    )


def draw_diagram(kind: KindReport, folds: int, folder: Path) -> tuple[Path, ...]:
    """Before and after side by side; after is held out where there are folds."""
    after = kind.held_out or kind.after
    stages: list[tuple[str, tuple[Bin, ...], Metrics]] = []
    if kind.before is not None:
        stages.append((f"before, T = {kind.served:.3f}", kind.bins_before, kind.before))
    if after is not None:
        how = f"{folds}-fold" if kind.held_out else "in-sample"
        stages.append((f"after ({how}), T = {kind.temperature:.3f}", kind.bins_after, after))
    figure = new_figure(width=4.5 * len(stages), height=5.5)
    axes: Any = figure.subplots(
        2, len(stages), sharex=True, squeeze=False, gridspec_kw={"height_ratios": [3, 1]}
    )
    for column, (title, bins, metrics) in enumerate(stages):
        draw_accuracy(
            axes[0][column], bins, f"{kind.kind} {title}\nECE {metrics.ece_10.value:.3f}, n = {kind.n}"
        )
        draw_counts(axes[1][column], bins)
    return save_figure(figure, folder / f"reliability-{kind.kind}")


def draw_accuracy(axes: Axes, bins: tuple[Bin, ...], title: str) -> None:
    """Accuracy of each bin that has examples, at their mean confidence, against the diagonal."""
    full = [bin_ for bin_ in bins if bin_.count]
    axes.bar(
        [bin_.low for bin_ in full],
        [bin_.accuracy for bin_ in full],
        width=[bin_.high - bin_.low for bin_ in full],
        align="edge",
        color="tab:blue",
        edgecolor="white",
        alpha=0.6,
    )
    axes.plot([0, 1], [0, 1], linestyle="--", color="gray", linewidth=1)
    confidence = [bin_.confidence for bin_ in full]
    axes.plot(
        confidence, [bin_.accuracy for bin_ in full], "o", color="tab:blue", markersize=4, clip_on=False
    )
    axes.set(title=title, ylabel="accuracy", xlim=(0, 1), ylim=(0, 1))


def draw_counts(axes: Axes, bins: tuple[Bin, ...]) -> None:
    """How many examples each bin has, in figures above the bars."""
    bars = axes.bar(
        [bin_.low for bin_ in bins],
        [bin_.count for bin_ in bins],
        width=[bin_.high - bin_.low for bin_ in bins],
        align="edge",
        color="tab:gray",
        edgecolor="white",
    )
    axes.bar_label(bars, labels=[str(bin_.count) if bin_.count else "" for bin_ in bins], fontsize=7)
    axes.margins(y=0.25)
    axes.set(xlabel="probability of the likeliest option", ylabel="examples")
