"""The report as one self-contained page: the template filled in with figures, plots and sample episodes."""

import re
from datetime import UTC, datetime
from importlib import resources
from typing import Any

import jinja2
import tomli_w
from markupsafe import Markup

from dart_streams.history.run_folder import RunFolder
from dart_streams.views import metrics as figures
from dart_streams.views import plots
from dart_streams.views.report_inputs import ReportInputs
from dart_streams.views.sample_episodes import SampleEpisode

TEMPLATE = "report.html.j2"


def render(
    folder: RunFolder,
    materials: ReportInputs,
    report: dict[str, Any],
    samples: list[tuple[SampleEpisode, SampleEpisode]],
) -> str:
    """Return the page."""
    environment = jinja2.Environment(
        autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters |= {"share": share, "figure": figure, "signed": signed, "brief": brief}
    template = environment.from_string(resources.files("dart_streams.views").joinpath(TEMPLATE).read_text())
    phases = materials.journal.phases
    started = datetime.fromtimestamp(phases[0].started_ms / 1000, UTC) if phases else datetime.now(UTC)
    return template.render(
        run=folder.id,
        started=f"{started:%d %B %Y, %H:%M} UTC",
        config=materials.config,
        report=report,
        minutes=materials.circle_s / 60,
        cards=cards(report),
        ranked=ranked(report["per_task"]),
        plots=drawn(materials, report),
        samples=samples,
        settings=tomli_w.dumps(folder.settings()),
    )


def drawn(materials: ReportInputs, report: dict[str, Any]) -> dict[str, Markup]:
    """Return every plot by name; empty where there is no data for it."""
    before, after = figures.evaluations(materials)
    steps = {part: report["step_ms"][part]["mean"] for part in ("queue", "generate", "overhead", "execute")}
    slots = {state: value * 100 for state, value in report["slot_time"].items()}
    cpu = dict(sorted(report["cpu_s"].items(), key=lambda item: -item[1]))
    made = {
        "success": plots.success(materials, before, after),
        "pages": plots.pages(before, after),
        "flow": plots.flow(materials),
        "staleness": plots.staleness(materials),
        "pauses": plots.pauses(materials),
        "learning": plots.learning(materials),
        "outcomes": plots.outcomes(materials),
        "phases": plots.phases(materials),
        "steps": plots.shares("One environment step, mean", {k: v for k, v in steps.items() if v}, " ms"),
        "slots": plots.shares("Slot time in training", slots, " %"),
        "cpu": plots.shares("CPU seconds in training, by process", cpu, " s", 9.6),
    }
    # The text is SVG that this program drew.
    return {name: Markup(svg or "") for name, svg in made.items()}


def cards(report: dict[str, Any]) -> list[tuple[str, str, str]]:
    """Return the key figures: value, name, and what it means."""
    stale, pause, overhead = report["staleness"], report["weight_switch_ms"], report["overhead_ms"]
    return [
        (
            figure(report["env_steps_per_s"]),
            "env steps/s",
            f"{report['env_steps']:,} in {report['episodes']:,} episodes",
        ),
        (share(report["env_utilisation"]), "environments busy", "slot time with an episode under way"),
        (
            f"{figure(overhead['p50'])} ms",
            "overhead a step, p50",
            f"p99 {figure(overhead['p99'])} ms, without generation",
        ),
        (
            str(report["versions_served"]),
            "versions served in place",
            f"{report['train_steps']} optimiser steps",
        ),
        (f"{figure(pause['p50'])} ms", "weight switch pause, p50", f"longest {figure(pause['max'])} ms"),
        (figure(stale["mean"]), "versions stale, mean", f"oldest {figure(stale['max'])}"),
        (share(report["trainer"]["idle_share"]), "trainer idle", "of training time, waiting for groups"),
        (str(report["lost"]), "lost orders", f"{report['requests']['timed_out']} requests timed out"),
    ]


def ranked(per_task: dict[str, Any]) -> list[tuple[str, Any]]:
    """Return the pages, those with the highest success first, as the plot has them."""
    return sorted(per_task.items(), key=lambda item: -((item[1]["after"] or {}).get("rate") or 0.0))


def brief(action: str) -> str:
    """Shorten an action's text for a caption."""
    text = re.sub(r"(start_box|end_box|content|key|direction)=", "", action.removeprefix("Action:").strip())
    return re.sub(r"'\((\d+), ?(\d+)\)'", r"\1,\2", text)


def share(value: float | None) -> str:
    """Write a share as a percentage."""
    return "–" if value is None else f"{value:.0%}"


def figure(value: float | None) -> str:
    """Write a figure with three digits."""
    return "–" if value is None else f"{value:,.3g}" if isinstance(value, float) else f"{value:,}"


def signed(value: float | None) -> str:
    """Write a change in points."""
    return "–" if value is None else f"{value * 100:+.0f}"
