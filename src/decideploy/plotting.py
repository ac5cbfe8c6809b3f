"""Figures by matplotlib, which is an optional part: imported only where something is drawn."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import TYPE_CHECKING

from decideploy.errors import ConfigError

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def check_plotting() -> None:
    """Raise ConfigError when matplotlib is absent."""
    if importlib.util.find_spec("matplotlib") is None:
        raise ConfigError(
            "matplotlib is not installed, so nothing can be drawn",
            next_step="install the extra: `pip install 'decideploy[plot]'`, or leave the plot out",
        )


def new_figure(*, width: float, height: float) -> Figure:
    """An empty figure of ``width`` by ``height`` inches; ConfigError when matplotlib is absent."""
    check_plotting()
    # Not pyplot: it keeps figures alive and may want a display.
    from matplotlib.figure import Figure  # noqa: PLC0415

    return Figure(figsize=(width, height), layout="constrained")


def save_figure(figure: Figure, stem: Path) -> tuple[Path, Path]:
    """Write ``stem``.png and ``stem``.svg, the same bytes for the same figure; returns both paths."""
    import matplotlib  # noqa: PLC0415

    png, svg = stem.with_name(f"{stem.name}.png"), stem.with_name(f"{stem.name}.svg")
    figure.savefig(png, dpi=150)
    with matplotlib.rc_context({"svg.hashsalt": "decideploy"}):
        figure.savefig(svg, metadata={"Date": None})
    return png, svg
