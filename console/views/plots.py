"""Plots as SVG text in one style, drawn by matplotlib."""

import io
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure

INK, MUTED, GRID = "#1d2330", "#737b8c", "#e6e9ef"
BLUE, GREEN, AMBER, RED, VIOLET = "#2f6fed", "#129b77", "#e29a1b", "#d5493f", "#7c5cd6"
GREY, TEAL = "#a7aebb", "#2aa5b8"
STYLE: dict[Any, Any] = {
    "svg.fonttype": "none",
    "font.family": "sans-serif",
    "font.sans-serif": ["Inter", "Helvetica Neue", "Arial", "DejaVu Sans"],
    "font.size": 10,
    "axes.edgecolor": GRID,
    "axes.labelcolor": MUTED,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": GRID,
    "xtick.color": MUTED,
    "ytick.color": MUTED,
    "text.color": INK,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.spines.left": False,
    "xtick.major.size": 0,
    "ytick.major.size": 0,
    "legend.frameon": False,
    "legend.fontsize": 9,
}


class Drawing:
    """A figure in progress; :attr:`svg` is set at the end of the body of :func:`draw_svg`."""

    def __init__(self, axes: list[Axes]) -> None:
        self.axes = axes
        self.svg = ""


@contextmanager
def draw_svg(width: float, height: float, rows: int = 1, columns: int = 1, **settings: Any) -> Iterator[Drawing]:
    """Yield the axes of a figure of ``width`` x ``height`` inches."""
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(width, height), layout="constrained")
        drawing = Drawing(list(figure.subplots(rows, columns, squeeze=False, **settings).flat))
        yield drawing
        text = io.StringIO()
        figure.savefig(text, format="svg", transparent=True)
        drawing.svg = text.getvalue()[text.getvalue().index("<svg") :]
