"""The page as one file that opens from disk: its scripts, style, answers and screens inlined; it loads nothing.

The file has the report, the curves and every optimiser step; of the trajectories those of the report's sample episodes,
which are played screen by screen. Its policy allows no connection and no script but these.
"""

import base64
import gzip
import hashlib
import html
import json
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import msgspec

from dart_streams.views.page import report_view
from dart_streams.views.page.assets import Asset, media_type_of
from dart_streams.views.page.episodes import TrajectoryView
from dart_streams.views.page.source import NotFound, RunSource
from dart_streams.views.page.training import MetricCurves, TrainStepView
from dart_streams.views.page.views import PageViews

WHOLE = ("run", "report", "steps", "tasks", "time")
"""Views that are in the file as they are."""
TOKEN_FIGURES = ("logprob", "log_ratio", "weight", "gradient_share")
MOST_STEPS = 500
"""Optimiser steps that are in the file one by one, the newest ones; the curves have all."""
SCREENS = 8
"""Screens of a sample episode that are in the file: the first ones and the last two."""
LINKED = re.compile(r'<link rel="(?P<rel>icon|stylesheet)" href="(?P<style>/[^"]+)">|'
                    r'<script src="(?P<script>/[^"]+)" (?P<kind>defer|type="module")></script>')  # fmt: skip
IMPORT = re.compile(r'\b(from|import) "\./([\w-]+\.js)"')


class Archive(msgspec.Struct):
    """The answers by view and query, as the page asks for them, and the screens by digest."""

    answers: dict[str, Any]
    screens: dict[str, bytes]


async def write(source: RunSource, files: Mapping[str, Asset], path: Path, other: RunSource | None = None) -> None:
    """Write the page of a source whose fold is complete, and its comparison with an ``other``."""
    text = render(files, await collect(source, other), source.config.bus.run)
    fresh = path.with_name(path.name + ".new")
    fresh.write_text(text)
    fresh.replace(path)


def key(view: str, **query: Any) -> str:
    """Return the key of an answer; archive.js makes the same."""
    return f"{view}?{'&'.join(f'{name}={value}' for name, value in sorted(query.items()))}"


async def collect(source: RunSource, other: RunSource | None = None) -> Archive:
    """Ask the views for what the file has."""
    views = PageViews(source, other)
    made = Archive({key(name): await views.answer(name, {}) for name in WHOLE}, {})
    made.answers[key("steps")] = lean_curves(made.answers[key("steps")])
    for number in sorted(source.state.trained)[-MOST_STEPS:]:
        made.answers[key("step", id=number)] = lean(await views.answer("step", {"id": str(number)}))
    for query in comparisons(source, other):
        made.answers[key("compare", **query)] = await views.answer("compare", query)
    report: report_view.ReportView = made.answers[key("report")]
    for pair in report.samples:
        for episode in (pair.before, pair.after):
            await add_trajectory(made, views, source, episode.trajectory_id)
    return made


def comparisons(source: RunSource, other: RunSource | None) -> list[dict[str, str]]:
    """Return the comparisons that the file has: the default ones, and those at further temperatures."""
    sides: list[dict[str, str]] = [{}, *([{"of": "other"}] if other is not None else [])]
    temperatures = [f"{temperature:g}" for temperature in source.config.evaluation.temperatures[1:]]
    return [*sides, *(side | {"t": t} for side in sides for t in temperatures)]


def lean(step: TrainStepView) -> TrainStepView:
    """Return an optimiser step without the ids of all its trajectories, and with as many digits as the page shows."""
    metrics = {name: shown(value) for name, value in step.event.metrics.items()}
    tokens = [
        msgspec.structs.replace(token, **{name: shown(getattr(token, name)) for name in TOKEN_FIGURES})
        for token in step.event.top_tokens
    ]
    event = msgspec.structs.replace(step.event, trajectory_ids=[], metrics=metrics, top_tokens=tokens)
    return msgspec.structs.replace(step, event=event)


def lean_curves(curves: MetricCurves) -> MetricCurves:
    """Return the metrics of all steps with as many digits as a plot shows."""
    lines = {name: [None if value is None else shown(value) for value in line] for name, line in curves.metrics.items()}
    return msgspec.structs.replace(curves, metrics=lines)


def shown(value: float) -> float:
    """Return a number with five digits: full ones would be most of the file."""
    return float(f"{value:.5g}")


async def add_trajectory(made: Archive, views: PageViews, source: RunSource, identity: str) -> None:
    """Add a trajectory with its prompts and screens; what the source has not is left out."""
    try:
        found: TrajectoryView = await views.answer("trajectory", {"id": identity})
    except NotFound:
        return
    made.answers[key("trajectory", id=identity)] = found
    for step in range(len(found.steps) - 1):
        prompt = await views.answer("prompt", {"id": identity, "step": str(step)})
        made.answers[key("prompt", id=identity, step=step)] = prompt
    shots = [step.event.screenshot.sha256 for step in found.steps if step.event.screenshot is not None]
    for sha256 in shots if len(shots) <= SCREENS else [*shots[: SCREENS - 2], *shots[-2:]]:
        if sha256 not in made.screens:
            try:
                made.screens[sha256] = await source.screenshot(sha256)
            except NotFound:
                continue


def render(files: Mapping[str, Asset], archive: Archive, run: str) -> str:
    """Return the file: the page's own frame with everything that it refers to inside."""
    inlined = Inlined(files)
    text = LINKED.sub(inlined.tag, files["/"].data.decode())
    policy = (
        f"default-src 'none'; script-src {inlined.allowed('script')} data:; style-src {inlined.allowed('style')}; "
        "img-src data:; base-uri 'none'; form-action 'none'"
    )
    head = f'<meta charset="utf-8">\n  <meta http-equiv="Content-Security-Policy" content="{policy}">'
    text = text.replace('<meta charset="utf-8">', head, 1)
    text = text.replace("<title>dart_streams", f"<title>{html.escape(run.removeprefix('dart.'))} · dart_streams", 1)
    screens = {sha256: data_url(media_type_of(image), image) for sha256, image in archive.screens.items()}
    answers = base64.b64encode(gzip.compress(msgspec.json.encode(archive.answers), 9, mtime=0)).decode()
    held = (
        f'<script type="application/octet-stream" id="archive">{answers}</script>\n'
        f'<script type="application/json" id="screens">{json.dumps(screens)}</script>\n'
    )
    return text.replace("</body>", held + "</body>", 1)


class Inlined:
    """Puts files in the place of the tags that refer to them, and keeps the digests that the policy allows."""

    def __init__(self, files: Mapping[str, Asset]) -> None:
        self.files = files
        self.digests: dict[str, list[str]] = {"script": [], "style": []}

    def allowed(self, kind: str) -> str:
        """Return the sources that the policy allows."""
        return " ".join(f"'sha256-{digest}'" for digest in self.digests[kind])

    def tag(self, found: re.Match[str]) -> str:
        """Return what stands for one tag."""
        if (path := found["style"]) is not None:
            asset = self.files[path]
            if found["rel"] == "icon":
                return f'<link rel="icon" href="{data_url(asset.media_type, asset.data)}">'
            return self.element("style", "", asset.data.decode())
        if found["kind"] == "defer":
            return self.element("script", "", self.files[found["script"]].data.decode())
        imports = {"imports": {f"dart{path}": module(asset) for path, asset in modules(self.files)}}
        entry = f'import "dart{found["script"]}";'
        return "\n  ".join(
            [
                self.element("script", ' type="importmap"', json.dumps(imports)),
                self.element("script", ' type="module"', entry),
            ]
        )

    def element(self, name: str, attributes: str, text: str) -> str:
        """Return an element with its text, which the policy will allow."""
        assert f"</{name}" not in text.lower()
        self.digests[name].append(base64.b64encode(hashlib.sha256(text.encode()).digest()).decode())
        return f"<{name}{attributes}>{text}</{name}>"


def modules(files: Mapping[str, Asset]) -> Iterable[tuple[str, Asset]]:
    """Return the page's own scripts, by path."""
    return ((path, asset) for path, asset in files.items() if path.endswith(".js") and not path.startswith("/vendor/"))


def module(asset: Asset) -> str:
    """Return a script as a data URL; it names the others as the import map does, for such a URL has no folder."""
    return data_url("text/javascript", IMPORT.sub(r'\1 "dart/\2"', asset.data.decode()).encode())


def data_url(media_type: str, data: bytes) -> str:
    """Return bytes as a URL."""
    return f"data:{media_type};base64,{base64.b64encode(data).decode()}"
