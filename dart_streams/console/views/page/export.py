"""The page as one file that opens from disk: its scripts, style, answers and screens inlined; it loads nothing.

The file has the report, the curves and every optimizer step; of the trajectories those of the report's sample episodes,
which are played screen by screen. Its policy allows no connection and no script but these.
"""

import base64
import gzip
import hashlib
import html
import json
import math
import re
import urllib.parse
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from dart_streams.console.views.page import report_view
from dart_streams.console.views.page.assets import Asset, media_type_of
from dart_streams.console.views.page.columns import Packer, figure, shortest
from dart_streams.console.views.page.episodes import TrajectoryView
from dart_streams.console.views.page.source import NotFound, RunSource
from dart_streams.console.views.page.time_curves import TimeView
from dart_streams.console.views.page.training import MetricCurves, TrainStepView
from dart_streams.console.views.page.views import PageViews

WHOLE = ("run", "report", "steps", "metrics", "tasks", "time")
"""Views that are in the file as they are."""
TOKEN_FIGURES: dict[str, Callable[[float], object]] = {
    "logprob": lambda value: figure(exponential(value), 3),
    "log_ratio": lambda value: figure(exponential(value), 4),
    "weight": lambda value: figure(value, 4),
    "gradient_share": lambda value: (figure(value * 100, 2), math.floor(value * 100 + 0.5)),
}
"""What the page prints of a token that stands out: step.js, trajectory.js."""
TIME_LINES = ("success", "steps_per_s", "busy_slots", "acting_slots", "staleness_mean")
POINTS_HIGH = 1000
"""Parts of a plot's height that are distinguishable: it is 170 pixels high, 240 at most."""
LARGEST_POWER = 709.0
MOST_STEPS = 500
"""Optimizer steps that are in the file one by one, the newest ones; the curves have all."""
SCREENS = 8
"""Screens of a sample episode that are in the file: the first ones and the last two."""
OPENER = "/opener.js"
UNQUOTED = " !$&'()*+,-./:;<=>?@[]^_`{|}~"
"""Characters that a data URL may have as they are."""
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


def exponential(value: float) -> float:
    """Return e to a power, which is infinite rather than an error."""
    return math.exp(value) if value < LARGEST_POWER else math.inf


def key(view: str, **query: Any) -> str:
    """Return the key of an answer; archive.js makes the same."""
    return f"{view}?{'&'.join(f'{name}={value}' for name, value in sorted(query.items()))}"


async def collect(source: RunSource, other: RunSource | None = None) -> Archive:
    """Ask the views for what the file has."""
    views = PageViews(source, other)
    made = Archive({key(name): await views.answer(name, {}) for name in WHOLE}, {})
    made.answers[key("steps")] = lean_curves(made.answers[key("steps")])
    made.answers[key("time")] = lean_time(made.answers[key("time")])
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
    """Return an optimizer step without the ids of all its trajectories, what the curves have too, and unseen digits."""
    tokens = [
        msgspec.structs.replace(
            token, **{name: shortest(getattr(token, name), as_shown) for name, as_shown in TOKEN_FIGURES.items()}
        )
        for token in step.event.top_tokens
    ]
    event = msgspec.structs.replace(
        step.event, trajectory_ids=[], imitated=[], sft_updates=[], metrics={}, top_tokens=tokens
    )
    return msgspec.structs.replace(step, event=event)


def lean_curves(curves: MetricCurves) -> MetricCurves:
    """Return the metrics of all steps with as many digits as a plot shows, or a step's page prints."""
    return msgspec.structs.replace(curves, metrics={name: plotted(line) for name, line in curves.metrics.items()})


def lean_time(view: TimeView) -> TimeView:
    """Return the run over time with as many digits as its plots show."""
    lines = {name: plotted(getattr(view.curves, name)) for name in TIME_LINES}
    pauses = plotted([switch.pause_ms for switch in view.switches], as_pause)
    return msgspec.structs.replace(
        view,
        curves=msgspec.structs.replace(view.curves, **lines),
        switches=[msgspec.structs.replace(s, pause_ms=pause) for s, pause in zip(view.switches, pauses, strict=True)],
    )


def plotted(line: Sequence[float | None], printed: Callable[[float], object] | None = None) -> list[float | None]:
    """Return a line's values with the digits that a plot of it and the figures beside it (a metric's) show."""
    known = [value for value in line if value is not None and math.isfinite(value)]
    within = (max(known) - min(known)) / POINTS_HIGH if known else 0.0
    return [None if value is None else shortest(value, printed or as_metric, within) for value in line]


def as_metric(value: float) -> tuple[str, str]:
    """Return a metric as the page prints it: at a plot or in a table, and on its step's page."""
    return figure(value, 3), figure(value, 4)


def as_pause(value: float) -> tuple[object, ...]:
    """Return a pause (milliseconds) as the page prints it: at a plot, and in its table in ms or tenths of a second."""
    return *as_metric(value), math.floor(value + 0.5), math.floor(value / 100 + 0.5)


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
    opener = inlined.element("script", "", files[OPENER].data.decode())
    policy = (
        f"default-src 'none'; script-src {inlined.allowed('script')} data:; style-src {inlined.allowed('style')}; "
        "img-src data:; base-uri 'none'; form-action 'none'"
    )
    head = f'<meta charset="utf-8">\n  <meta http-equiv="Content-Security-Policy" content="{policy}">'
    text = text.replace('<meta charset="utf-8">', head, 1)
    text = text.replace("<title>dart_streams", f"<title>{html.escape(run.removeprefix('dart.'))} · dart_streams", 1)
    screens = {sha256: data_url(media_type_of(image), image) for sha256, image in archive.screens.items()}
    held = (
        f'<script type="application/octet-stream" id="archive">{compressed(packed(archive.answers))}</script>\n'
        f'<script type="application/json" id="screens">{json.dumps(screens)}</script>\n'
        f'<script type="application/octet-stream" id="scripts">{compressed(inlined.scripts)}</script>\n{opener}\n'
    )
    return text.replace("</body>", held + "</body>", 1)


def packed(answers: Mapping[str, Any]) -> dict[str, Any]:
    """Return the answers as columns, a view at a time, with the table of the ids in them."""
    views: dict[str, dict[str, list[Any]]] = {}
    for name, answer in answers.items():
        view, _, query = name.partition("?")
        rows = views.setdefault(view, {"queries": [], "answers": []})
        rows["queries"].append(query)
        rows["answers"].append(msgspec.json.decode(msgspec.json.encode(answer)))
    packer = Packer()
    written = packer.pack(views)
    return {"table": packer.table(), "views": written}


def compressed(value: Any) -> str:
    """Return a value as JSON, compressed, as text."""
    return base64.b64encode(gzip.compress(msgspec.json.encode(value), 9, mtime=0)).decode()


class Inlined:
    """Puts styles in the place of the tags that refer to them, takes the scripts, and keeps the digests of both."""

    def __init__(self, files: Mapping[str, Asset]) -> None:
        self.files = files
        self.digests: dict[str, list[str]] = {"script": [], "style": []}
        self.scripts: list[tuple[str, str]] = []

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
            self.script("text/javascript", self.files[found["script"]].data.decode())
        else:
            imports = {"imports": {f"dart{path}": module(asset) for path, asset in modules(self.files)}}
            self.script("importmap", json.dumps(imports))
            self.script("module", f'import "dart{found["script"]}";')
        return ""

    def script(self, kind: str, text: str) -> None:
        """Take a script, which the policy will allow, for the opener to start."""
        self.scripts.append((kind, text))
        self.allow("script", text)

    def allow(self, kind: str, text: str) -> None:
        """Let the policy allow a text."""
        self.digests[kind].append(base64.b64encode(hashlib.sha256(text.encode()).digest()).decode())

    def element(self, name: str, attributes: str, text: str) -> str:
        """Return an element with its text, which the policy will allow."""
        assert f"</{name}" not in text.lower()
        self.allow(name, text)
        return f"<{name}{attributes}>{text}</{name}>"


def modules(files: Mapping[str, Asset]) -> Iterable[tuple[str, Asset]]:
    """Return the page's own scripts, by path."""
    own = ((path, asset) for path, asset in files.items() if path.endswith(".js") and path != OPENER)
    return ((path, asset) for path, asset in own if not path.startswith("/vendor/"))


def module(asset: Asset) -> str:
    """Return a script as a data URL; it names the others as the import map does, for such a URL has no folder.

    As text, not as Base64, which does not compress.
    """
    text = IMPORT.sub(r'\1 "dart/\2"', asset.data.decode())
    return f"data:text/javascript,{urllib.parse.quote(text, safe=UNQUOTED)}"


def data_url(media_type: str, data: bytes) -> str:
    """Return bytes as a URL."""
    return f"data:{media_type};base64,{base64.b64encode(data).decode()}"
