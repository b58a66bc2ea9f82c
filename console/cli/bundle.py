"""``dart-streams capture`` and ``replay``: write a run's records into a bundle; repeat its decisions or its answers."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer
from rich.markup import escape

from console.cli import options
from console.cli.output import log_to_stderr, note, show, show_json
from console.views.console import PlainConsole
from dart_streams.errors import UserError

if TYPE_CHECKING:
    from console.bundles.recorded_answers import AnswerComparison
    from console.bundles.replay import Outcome
    from console.bundles.republish import Published, TimeSpan
    from console.bundles.whatif import WhatIfMetrics
    from console.runs.bundle import Bundle
    from dart_streams.config import Bus, Config

MAX_CHARS = 300
"""Printed characters of each side of a divergence; ``--json`` prints it whole."""


def capture(
    name: Annotated[
        str,
        typer.Argument(help="The run's id; with --verify a bundle. \\[default: the latest run]", metavar="RUN|BUNDLE"),
    ] = "",
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="The bundle to write. \\[default: RUN.dart]")
    ] = None,
    topics: Annotated[str, typer.Option(help="Topics to capture, separated by commas. \\[default: all]")] = "",
    blobs: Annotated[bool, typer.Option("--blobs", help="Capture the screenshots too.")] = False,
    verify: Annotated[bool, typer.Option("--verify", help="Check a bundle, and capture nothing.")] = False,
    run: options.RunId = "",
    state: options.State = Path(".dart"),
    config: options.RunConfig = None,
    as_json: options.AsJson = False,
) -> None:
    """Write a run's topics, configuration and task set, with --blobs its screenshots, into one file; or verify one."""
    from console.runs.bundle import verify as verify_bundle

    log_to_stderr()
    if verify:
        show(verify_bundle(Path(name)), as_json=as_json, title=f"{name} is whole")
        return
    deployment = options.run_config("" if config else name or run, state, config)
    path = output or Path(f"{deployment.bus.run}.dart")
    if path.exists():
        raise UserError(f"{path} exists: remove it, or name another file with --output")
    write(deployment, path, options.split_names(topics), blobs=blobs)
    show(verify_bundle(path), as_json=as_json, title=f"{path}, {path.stat().st_size / 1e6:.1f} MB")


def write(config: Config, path: Path, names: list[str], *, blobs: bool) -> None:
    """Capture a run, with the screenshots of its store if ``blobs``."""
    from console.bundles import capture as capturing
    from dart_streams.bus.topology import find_topic
    from topics import ALL

    folder = config.run.folder
    chosen = [find_topic(name) for name in names] or ALL
    if not blobs:
        capturing.capture(config, path, chosen, folder=folder, report=note)
        return
    from console.cli.store import store_session
    from dart_streams.store import sync_store

    with store_session(config) as session:
        capturing.capture(config, path, chosen, sync_store(session, config), folder, note)


def replay(
    path: Annotated[Path | None, typer.Argument(help="A bundle, made by `capture`.", metavar="BUNDLE")] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", help="Decide with KEY set to VALUE; may be repeated.", metavar="KEY=VALUE"),
    ] = None,
    plot: Annotated[Path | None, typer.Option(help="Where to draw the what-if (svg).")] = None,
    into: Annotated[str, typer.Option(help="Publish the records into topics of this prefix.", metavar="PREFIX")] = "",
    speed: Annotated[str, typer.Option(help="With --into: 1x, 10x, … or max.")] = "max",
    requests: Annotated[
        bool, typer.Option("--requests", help="Ask a rollout worker the recorded requests, and compare its answers.")
    ] = False,
    begin: Annotated[
        str, typer.Option("--from", help="With --into or --requests: the first offset, or time (ISO 8601).")
    ] = "",
    until: Annotated[
        str, typer.Option("--until", help="With --into or --requests: the offset, or time, to stop before.")
    ] = "",
    topics: Annotated[str, typer.Option(help="With --into: topics, separated by commas. \\[default: all]")] = "",
    run: Annotated[str, typer.Option("--run", help="With --requests: a run, in place of a bundle.")] = "",
    state: options.State = Path(".dart"),
    config: options.ConfigFile = None,
    as_json: options.AsJson = False,
) -> None:
    """Repeat a bundle's decisions without services and compare; exit code 1 at the first difference.

    With --set: what each setting alone, and all together, would have changed. With --into: publish the records into
    shadow topics of the configuration's broker. With --requests: start a rollout worker on topics of its own. It
    gets each weight version that still exists, and the requests that this version answered.
    """
    from console.bundles import replay as rerun
    from console.runs.bundle import Bundle

    log_to_stderr()
    if sum((requests, bool(into), bool(settings))) > 1:
        raise UserError("--requests, --into and --set are three replays: give one of them")
    if requests:
        span = span_of(begin, until)
        show_answers(replay_requests(path, run, state, config, span), as_json=as_json)
        return
    if path is None:
        raise UserError("name a bundle, made by `dart-streams capture`")
    bundle = Bundle(path)
    if into:
        bus = msgspec.structs.replace(options.read_config(config).bus, prefix=into)
        show(publish_records(bundle, bus, options.split_names(topics), span_of(begin, until), speed), as_json=as_json)
        return
    if settings:
        show_what_if(what_if(bundle, settings), plot, as_json=as_json)
        return
    if plot:
        raise UserError("--plot draws a what-if: give it at least one --set KEY=VALUE")
    outcome = rerun.replay(bundle, note)
    if as_json:
        show_json(outcome)
    else:
        show_outcome(outcome)
    if not outcome.equal:
        raise typer.Exit(1)


def publish_records(bundle: Bundle, bus: Bus, topics: list[str], span: TimeSpan, speed: str) -> list[Published]:
    """Publish a bundle's records under the prefix of ``bus``."""
    from console.bundles.republish import check_topics, choose_topics, republish

    chosen = choose_topics(bundle, topics)
    return republish(bundle, bus, chosen, check_topics(bundle, bus, chosen), span, speed_of(speed))


def replay_requests(path: Path | None, run: str, state: Path, config: Path | None, span: TimeSpan) -> AnswerComparison:
    """Ask a bundle's requests again, or those on the topics of a run.

    Of a bundle, ``config`` names broker, store, endpoint and place of the weights: the bundle may name any.
    """
    from console.bundles import capture as capturing
    from console.bundles.bundle_inputs import config_of
    from console.bundles.recorded_answers import READ
    from console.launch import request_replay
    from console.runs.bundle import Bundle

    if path is not None and run:
        raise UserError("a bundle and --run are two sources of requests: name one of them")
    if path is not None:
        bundle = Bundle(path)
        settings = request_replay.deployed_here(config_of(bundle), options.read_config(config))
        return request_replay.replay_requests(bundle, settings, span, note)
    settings, _ = options.run_or_bundle(run, state, None)
    with tempfile.TemporaryDirectory(prefix="replay-") as scratch:
        captured = Path(scratch) / "requests.dart"
        capturing.capture(settings, captured, READ)
        return request_replay.replay_requests(Bundle(captured), settings, span, note)


def show_answers(found: AnswerComparison, *, as_json: bool) -> None:
    """Print a comparison of answers; raise ``typer.Exit`` with 1 unless all are equal."""
    from rich.table import Table

    if as_json:
        show_json(found)
        raise typer.Exit(not found.equal)
    console = PlainConsole(highlight=False)
    table = Table(box=None, pad_edge=False)
    for name in ("version", "answers", "generated", "tokens", "different", "largest difference, nats"):
        table.add_column(name, justify="right")
    for each in found.versions:
        counts = (each.version, each.answers, each.generated, each.tokens, each.different)
        table.add_row(*(f"{number:,}" for number in counts), f"{each.max_nats:.2g}")
    console.print(table)
    for reason, number in sorted(found.left_out.items()):
        console.print(f"not compared: {number:,}, {reason}", soft_wrap=True)
    if found.equal:
        answers = sum(each.answers for each in found.versions)
        console.print(f"[green]equal[/green]: {answers:,} answers, within {found.tolerance_nats:g} nats a token")
        return
    if (first := found.difference) is None:
        console.print("[red]nothing compared[/red]: no answer has a version whose weights are there")
    else:
        place = "" if first.token is None else f", token {first.token}"
        step = f"step {first.step} of {escape(first.trajectory_id)}, version {first.version}"
        console.print(f"[red]differs[/red] first at {escape(first.request_id)}, {step}: {first.what}{place}")
        for side in ("recorded", "replayed"):
            console.print(f"  {side}: {escape(str(getattr(first, side))[:MAX_CHARS])}", soft_wrap=True)
    raise typer.Exit(1)


def span_of(begin: str, until: str) -> TimeSpan:
    """Return the bounds of two options."""
    from console.bundles.republish import TimeSpan

    (first, first_timed), (end, end_timed) = bound_of(begin), bound_of(until)
    return TimeSpan(first, end, first_timed, end_timed)


def speed_of(text: str) -> float | None:
    """Return the factor on the recorded speed; None for ``max``."""
    if text == "max":
        return None
    try:
        speed = float(text.removesuffix("x"))
    except ValueError:
        speed = 0.0
    if not 0 < speed < float("inf"):
        raise UserError(f"--speed {text!r}: give max, or a multiple such as 1x or 10x")
    return speed


def bound_of(text: str) -> tuple[int | None, bool]:
    """Return an offset and False, or a time in epoch milliseconds and True; None is no bound."""
    if not text:
        return None, False
    if text.isdecimal():
        return int(text), False
    try:
        return int(datetime.fromisoformat(text).timestamp() * 1000), True
    except ValueError:
        raise UserError(f"{text!r} is neither an offset nor a time such as 2026-01-31T12:00:00+00:00") from None


def show_outcome(outcome: Outcome) -> None:
    """Print a replay's outcome."""
    from rich.table import Table

    console = PlainConsole(highlight=False)
    table = Table(box=None, pad_edge=False)
    for name in ("agent", "inputs", "decisions", "compared byte for byte", "rounded otherwise"):
        table.add_column(name, justify="left" if name == "agent" else "right")
    for count in outcome.agents:
        table.add_row(count.agent, *(f"{number:,}" for number in msgspec.structs.astuple(count)[1:]))
    console.print(table)
    found = outcome.divergence
    if found is None:
        decisions = sum(count.decisions for count in outcome.agents)
        console.print(f"[green]equal[/green]: {decisions:,} decisions; digest {outcome.digest}")
        return
    console.print(f"[red]differs[/red] first at {escape(found.input)}, agent {found.agent}: {escape(found.what)}")
    for side in ("recorded", "replayed"):
        text = str(getattr(found, side))
        console.print(f"  {side}: {escape(text[:MAX_CHARS] + ('…' if len(text) > MAX_CHARS else ''))}", soft_wrap=True)
    console.print(f"  cause: {escape(found.cause)}", soft_wrap=True)


def what_if(bundle: Bundle, settings: Sequence[str]) -> list[WhatIfMetrics]:
    """Run the circle for each setting alone and, if there are several, for all together."""
    from console.bundles import whatif
    from console.bundles.bundle_inputs import config_of, tasks_of

    variants = {setting: config_of(bundle, [setting]) for setting in settings}
    if len(settings) > 1:
        variants["all of these"] = config_of(bundle, settings)
    return whatif.compare(whatif.RecordedOutcomes(bundle), tasks_of(bundle), config_of(bundle), variants)


def show_what_if(found: Sequence[WhatIfMetrics], plot: Path | None, *, as_json: bool) -> None:
    """Print a column for each setting and its optimizer steps as bars; draw the plot if ``plot`` names a file."""
    from rich.table import Table

    from console.bundles.whatif import WhatIfMetrics
    from console.views import whatif_plot

    if plot:
        plot.write_text(whatif_plot.draw_whatif(found), encoding="utf-8")
        note(f"drawn: {plot}")
    if as_json:
        show_json(found)
        return
    table = Table(title="what if", title_justify="left")
    table.add_column("")
    for figures in found:
        table.add_column(escape(figures.name), justify="right", overflow="fold")
    for field in msgspec.structs.fields(WhatIfMetrics):
        if field.name not in ("name", "curve"):
            values = [getattr(figures, field.name) for figures in found]
            table.add_row(field.name.replace("_", " "), *("" if value is None else f"{value:,}" for value in values))
    console = PlainConsole()
    console.print(table)
    curves = [figures for figures in found if figures.curve]
    most = max((figures.curve[-1][1] for figures in curves), default=0)
    console.print("optimizer steps over rollouts ended")
    for figures in curves:
        console.print(
            f"  {whatif_plot.draw_bars(figures, most)} {figures.steps_trained:>6,}  {escape(figures.name)}",
            soft_wrap=True,
        )
