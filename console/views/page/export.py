"""The page as one file that opens from disk, with its scripts, style, answers and screens inlined.

The file has the report, the curves, the optimizer steps and the trajectories of the report's sample episodes. Its
content security policy allows no connection and no other script.
"""

import asyncio
import base64
import contextlib
import gzip
import html
import json
import math
import re
import urllib.parse
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from console.views.page.assets import Asset, media_type_of
from console.views.page.columns import Packer, format_figure, shorten
from console.views.page.episodes import TrajectoryView
from console.views.page.report_view import ReportView
from console.views.page.sign_in import hash_of
from console.views.page.source import NotFound, RunSource
from console.views.page.time_curves import TimeView
from console.views.page.training import MetricCurves, TrainStepView
from console.views.page.views import PageViews
from dart_streams.deadline import Deadline
from dart_streams.errors import ServiceUnavailable
from dart_streams.fsync import replace_file

WHOLE_VIEWS = ("run", "report", "steps", "metrics", "tasks", "time")
"""Views without parameters that the file has."""
TOKEN_FIGURES: dict[str, Callable[[float], object]] = {
    "logprob": lambda value: format_figure(exp_or_inf(value), 3),
    "log_ratio": lambda value: format_figure(exp_or_inf(value), 4),
    "weight": lambda value: format_figure(value, 4),
    "gradient_share": lambda value: (format_figure(value * 100, 2), math.floor(value * 100 + 0.5)),
}
"""The texts that step.js and trajectory.js print of a top token."""
TIME_LINES = ("success", "steps_per_s", "busy_slots", "acting_slots", "staleness_mean")
PLOT_RESOLUTION = 1000
"""Distinguishable parts of a plot's height, which is at most 240 pixels."""
MAX_EXPONENT = 709.0
MAX_STEPS = 500
"""Newest optimizer steps that the file has one by one; the curves have all steps."""
MAX_SCREENS = 8
"""Screens of a sample episode in the file: the first ones and the last two."""
SILENT_S = 20.0
"""Time without progress after which the source of an exported page counts as unavailable."""
POLL_INTERVAL_S = 0.1
OPENER = "/opener.js"
LEFT_OUT = frozenset({OPENER, "/form.js", "/places.js", "/runs.js"})
"""Scripts outside of the file's import map: its opener, and what needs a server: feedback, other runs."""
UNQUOTED = " !$&'()*+,-./:;<=>?@[]^_`{|}~"
"""Characters that a data URL may contain unescaped."""
LINKED = re.compile(r'<link rel="(?P<rel>icon|stylesheet)" href="(?P<style>/[^"]+)">|'
                    r'<script src="(?P<script>/[^"]+)" (?P<kind>defer|type="module")></script>')  # fmt: skip
IMPORT = re.compile(r'\b(from|import) "\./([\w-]+\.js)"')


class Archive(msgspec.Struct):
    """Answers by view and query, in the form of the page's requests, and screens by digest."""

    answers: dict[str, Any]
    screens: dict[str, bytes]


async def write(source: RunSource, files: Mapping[str, Asset], path: Path, other: RunSource | None = None) -> None:
    """Write the page of a source whose fold is complete, and its comparison with an ``other``."""
    replace_file(path, render(files, await collect(source, other), source.config.bus.run).encode())


async def wait_until_read(
    source: RunSource, reading: asyncio.Task[None] | None, report: Callable[[str], None] = lambda _: None
) -> None:
    """Return when the source has been read to its end, and report progress until then.

    Raises the error of ``reading``, or :class:`ServiceUnavailable` if there is no progress for :data:`SILENT_S`.
    """
    deadline, before = Deadline(SILENT_S), ""
    while not source.progress.ready:
        source.note_viewer()
        if reading is not None and reading.done():
            reading.result()
        if source.progress.text != before:
            deadline, before = Deadline(SILENT_S), source.progress.text
            report(before)
        if deadline.expired:
            raise ServiceUnavailable(f"the run could not be read: {before}")
        await asyncio.sleep(POLL_INTERVAL_S)


def exp_or_inf(value: float) -> float:
    """Return e to a power; infinity instead of an overflow."""
    return math.exp(value) if value < MAX_EXPONENT else math.inf


def answer_key(view: str, **query: Any) -> str:
    """Return the key of an answer, as archive.js builds it."""
    return f"{view}?{'&'.join(f'{name}={value}' for name, value in sorted(query.items()))}"


async def collect(source: RunSource, other: RunSource | None = None) -> Archive:
    """Return the answers and screens of the file."""
    views = PageViews(source, other)
    answers: dict[str, Any] = {answer_key(name): await views.answer(name, {}) for name in WHOLE_VIEWS}
    answers[answer_key("steps")] = trim_curves(answers[answer_key("steps")])
    answers[answer_key("time")] = trim_time(answers[answer_key("time")])
    for number in sorted(source.state.trained)[-MAX_STEPS:]:
        answers[answer_key("step", id=number)] = trim_step(await views.answer("step", {"id": str(number)}))
    for query in comparison_queries(source, other):
        answers[answer_key("compare", **query)] = await views.answer("compare", query)
    archive = Archive(answers, {})
    report: ReportView = answers[answer_key("report")]
    for episode in [episode for pair in report.samples for episode in (pair.a, pair.b) if episode is not None]:
        await add_trajectory(archive, views, source, episode.trajectory_id)
    return archive


def comparison_queries(source: RunSource, other: RunSource | None) -> list[dict[str, str]]:
    """Return the comparisons in the file: the default ones, and those at further temperatures."""
    sides: list[dict[str, str]] = [{}, *([{"of": "other"}] if other is not None else [])]
    temperatures = [f"{temperature:g}" for temperature in source.config.evaluation.temperatures[1:]]
    return [*sides, *(side | {"t": t} for side in sides for t in temperatures)]


def trim_step(step: TrainStepView) -> TrainStepView:
    """Return an optimizer step without its trajectory ids, its metrics (the curves have them) and unseen digits."""
    tokens = [
        msgspec.structs.replace(
            token, **{name: shorten(getattr(token, name), printed) for name, printed in TOKEN_FIGURES.items()}
        )
        for token in step.event.top_tokens
    ]
    event = msgspec.structs.replace(
        step.event, trajectory_ids=[], imitated=[], sft_updates=[], replayed=[], metrics={}, top_tokens=tokens
    )
    return msgspec.structs.replace(step, event=event)


def trim_curves(curves: MetricCurves) -> MetricCurves:
    """Return the metrics of all steps with the digits that a plot or the page of a step shows."""
    return msgspec.structs.replace(curves, metrics={name: trim_line(line) for name, line in curves.metrics.items()})


def trim_time(view: TimeView) -> TimeView:
    """Return the run over time with the digits that its plots show."""
    lines = {name: trim_line(getattr(view.curves, name)) for name in TIME_LINES}
    pauses = trim_line([switch.pause_ms for switch in view.switches], as_pause)
    return msgspec.structs.replace(
        view,
        curves=msgspec.structs.replace(view.curves, **lines),
        switches=[msgspec.structs.replace(s, pause_ms=pause) for s, pause in zip(view.switches, pauses, strict=True)],
    )


def as_metric(value: float) -> tuple[str, ...]:
    """Return the texts that the page prints of a metric: at a plot or in a table, and on the page of its step."""
    return format_figure(value, 3), format_figure(value, 4)


def as_pause(value: float) -> tuple[object, ...]:
    """Return the texts of a pause (milliseconds): at a plot, and in its table in ms or tenths of a second."""
    return *as_metric(value), math.floor(value + 0.5), math.floor(value / 100 + 0.5)


def trim_line(line: Sequence[float | None], printed: Callable[[float], object] = as_metric) -> list[float | None]:
    """Return the values of a line with the digits that its plot and its ``printed`` texts show."""
    known = [value for value in line if value is not None and math.isfinite(value)]
    within = (max(known) - min(known)) / PLOT_RESOLUTION if known else 0.0
    return [None if value is None else shorten(value, printed, within) for value in line]


async def add_trajectory(archive: Archive, views: PageViews, source: RunSource, identity: str) -> None:
    """Add a trajectory with its prompts and screens, as far as the source has them."""
    try:
        view: TrajectoryView = await views.answer("trajectory", {"id": identity})
    except NotFound:
        return
    archive.answers[answer_key("trajectory", id=identity)] = view
    for step in range(len(view.steps) - 1):
        prompt = await views.answer("prompt", {"id": identity, "step": str(step)})
        archive.answers[answer_key("prompt", id=identity, step=step)] = prompt
    shots = [step.event.screenshot.sha256 for step in view.steps if step.event.screenshot is not None]
    for sha256 in shots if len(shots) <= MAX_SCREENS else [*shots[: MAX_SCREENS - 2], *shots[-2:]]:
        if sha256 not in archive.screens:
            with contextlib.suppress(NotFound):
                archive.screens[sha256] = await source.screenshot(sha256)


def render(files: Mapping[str, Asset], archive: Archive, run: str) -> str:
    """Return the text of the file: the frame of the page with all of its references inlined."""
    inlined = Inlined(files)
    text = LINKED.sub(inlined.replace_tag, files["/"].data.decode())
    opener = inlined.element("script", files[OPENER].data.decode())
    scripts, styles = (" ".join(inlined.hashes[kind]) for kind in ("script", "style"))
    policy = (
        f"default-src 'none'; script-src {scripts} 'strict-dynamic'; style-src {styles}; "
        "img-src data:; base-uri 'none'; form-action 'none'"
    )
    head = f'<meta charset="utf-8">\n  <meta http-equiv="Content-Security-Policy" content="{policy}">'
    text = text.replace('<meta charset="utf-8">', head, 1)
    text = text.replace("<title>dart_streams", f"<title>{html.escape(run.removeprefix('dart.'))} · dart_streams", 1)
    screens = {sha256: data_url(media_type_of(image), image) for sha256, image in archive.screens.items()}
    escaped = json.dumps(screens).replace("<", "\\u003c")
    blocks = (
        f'<script type="application/octet-stream" id="archive">{compress(pack_answers(archive.answers))}</script>\n'
        f'<script type="application/json" id="screens">{escaped}</script>\n'
        f'<script type="application/octet-stream" id="scripts">{compress(inlined.scripts)}</script>\n{opener}\n'
    )
    return text.replace("</body>", blocks + "</body>", 1)


def pack_answers(answers: Mapping[str, Any]) -> dict[str, Any]:
    """Return the answers as columns by view, and the table of their ids."""
    views: dict[str, dict[str, list[Any]]] = {}
    for name, answer in answers.items():
        view, _, query = name.partition("?")
        rows = views.setdefault(view, {"queries": [], "answers": []})
        rows["queries"].append(query)
        rows["answers"].append(msgspec.json.decode(msgspec.json.encode(answer)))
    packer = Packer()
    packed = packer.pack(views)
    return {"table": packer.table(), "views": packed}


def compress(value: Any) -> str:
    """Return a value as compressed JSON in Base64."""
    return base64.b64encode(gzip.compress(msgspec.json.encode(value), 9, mtime=0)).decode()


class Inlined:
    """Inlines styles in place of their tags, collects the scripts, and keeps the hashes of both."""

    def __init__(self, files: Mapping[str, Asset]) -> None:
        self.files = files
        self.hashes: dict[str, list[str]] = {"script": [], "style": []}
        self.scripts: list[tuple[str, str]] = []

    def replace_tag(self, tag: re.Match[str]) -> str:
        """Return the replacement of a tag that refers to a file."""
        if (path := tag["style"]) is not None:
            asset = self.files[path]
            if tag["rel"] == "icon":
                return f'<link rel="icon" href="{data_url(asset.media_type, asset.data)}">'
            return self.element("style", asset.data.decode())
        if tag["kind"] == "defer":
            self.add_script("text/javascript", self.files[tag["script"]].data.decode())
        else:
            scripts = [path for path in self.files if path.endswith(".js") and not path.startswith("/vendor/")]
            urls = {f"dart{path}": module_url(self.files[path]) for path in scripts if path not in LEFT_OUT}
            self.add_script("importmap", json.dumps({"imports": urls}))
            self.add_script("module", f'import "dart{tag["script"]}";')
        return ""

    def add_script(self, kind: str, text: str) -> None:
        """Collect and allow a script, which the opener starts."""
        self.scripts.append((kind, text))
        self.hashes["script"].append(hash_of(text))

    def element(self, name: str, text: str) -> str:
        """Return an allowed element with its text."""
        assert f"</{name}" not in text.lower()
        self.hashes[name].append(hash_of(text))
        return f"<{name}>{text}</{name}>"


def module_url(asset: Asset) -> str:
    """Return a script as a data URL of text, which compresses better than Base64.

    A data URL has no folder, so its imports are renamed to the names of the import map.
    """
    text = IMPORT.sub(r'\1 "dart/\2"', asset.data.decode())
    return f"data:text/javascript,{urllib.parse.quote(text, safe=UNQUOTED)}"


def data_url(media_type: str, data: bytes) -> str:
    """Return bytes as a data URL."""
    return f"data:{media_type};base64,{base64.b64encode(data).decode()}"
