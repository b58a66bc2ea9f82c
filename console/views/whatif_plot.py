"""The plot of a what-if: optimizer steps over rollouts by setting, as SVG and as bars of text."""

from collections.abc import Sequence

from console.bundles.whatif import WhatIfMetrics
from console.views.plots import AMBER, BLUE, GREEN, GREY, RED, TEAL, VIOLET, draw_svg
from console.views.terminal import draw_sparkline

COLORS = (GREY, BLUE, GREEN, AMBER, VIOLET, RED, TEAL)
WIDTH = 48


def draw_whatif(settings: Sequence[WhatIfMetrics]) -> str:
    """Draw optimizer steps over rollouts, and samples trained on and left out beside them; return SVG."""
    lines = [figures for figures in settings if figures.curve]
    with draw_svg(10.5, 3.6, columns=2) as drawing:
        steps, samples = drawing.axes
        for figures, color in zip(lines, COLORS, strict=False):
            steps.plot([x for x, _ in figures.curve], [y for _, y in figures.curve], color=color, label=figures.name)
        steps.set_xlabel("rollouts ended")
        steps.set_ylabel("optimizer steps")
        steps.legend()
        names = [figures.name for figures in lines][::-1]
        trained, saved = [f.samples for f in lines][::-1], [f.samples_saved for f in lines][::-1]
        samples.barh(names, trained, color=BLUE, label="samples trained on")
        samples.barh(names, saved, left=trained, color=GREY, label="left out")
        samples.legend()
    return drawing.svg


def draw_bars(figures: WhatIfMetrics, highest: int) -> str:
    """Return a setting's optimizer steps over its rollouts as bars of text, scaled to the ``highest`` of all."""
    curve = [steps for _, steps in figures.curve]
    sampled = [curve[index * len(curve) // WIDTH] for index in range(WIDTH)] if len(curve) > WIDTH else curve
    return draw_sparkline([steps / (highest + 1) for steps in sampled])
