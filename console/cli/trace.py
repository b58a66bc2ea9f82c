"""``dart-streams trace``: the lineage of an id, the slowest requests, and the coverage of traces."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape

from console.cli.options import AsJson, FromBundle, RunId, State, run_or_bundle
from console.cli.output import log_to_stderr, note, print_line, show, show_json
from console.views.console import PlainConsole
from dart_streams.errors import UserError

if TYPE_CHECKING:
    from rich.tree import Tree

    from console.lineage.lineage import Lineage, Node
    from console.lineage.traces import Coverage, Timeline
    from console.runs.bundle import Bundle
    from console.runs.run_state import RunState
    from console.views.explanations import Explanations
    from dart_streams.bus.lag import Lag
    from dart_streams.config import Config
    from topics import Topic

MAX_FIELD_CHARS = 60
"""Longest field in the tree; ``--json`` prints fields whole."""


def spans_of(config: Config, source: Bundle | None) -> Timeline:
    """Read the spans of a run's folder, or of a bundle."""
    from console.lineage import traces

    if source is None:
        return traces.Timeline(traces.lines_in(config.run.folder / "traces"))
    return traces.Timeline(source.lines("traces") if source.has("traces") else ())


def records_of(config: Config, source: Bundle | None, further: Sequence[Topic] = ()) -> RunState:
    """Read the records on the broker, or of a bundle: those of a lineage, and of ``further`` topics."""
    from console.lineage.lineage import READ
    from console.runs.run_log import read_log
    from console.runs.run_state import RunState

    return RunState(keep_steps=True).fold(read_log(source or config.bus, list(dict.fromkeys((*further, *READ)))))


def trace(
    identity: Annotated[
        str,
        typer.Argument(
            help="A request, trajectory, group, order, train step (12), weight version (v12), screenshot (sha256), "
            "proposed task or record (observations[0]@17).",
            metavar="ID",
        ),
    ] = "",
    run: RunId = "",
    state: State = Path(".dart"),
    bundle: FromBundle = None,
    slowest: Annotated[bool, typer.Option("--slowest", help="List the slowest requests.")] = False,
    most: Annotated[int, typer.Option(help="With --slowest: the number of requests.", min=1)] = 10,
    coverage: Annotated[
        bool, typer.Option("--coverage", help="Count trained steps with an unbroken chain to their screenshot.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Follow an id both ways: to what it was made from, and to what was made from it, or why nothing was.

    A group that was dropped, an order, a request without an answer, a refused proposal and a dead letter are explained.
    """
    from rich.tree import Tree

    from console.lineage import traces
    from console.lineage.lineage import Lineage
    from console.views.explanations import READ

    log_to_stderr()
    if bool(identity) + slowest + coverage != 1:
        raise UserError("give an id, or --slowest, or --coverage")
    config, source = run_or_bundle(run, state, bundle)
    spans = spans_of(config, source)
    if (sampling := config.telemetry.sampling) < 1:
        note(f"telemetry.sampling was {sampling:g}: only that share of traces was written, and spans that failed")
    if slowest:
        requests = traces.slowest_requests(spans, most)
        show(requests, as_json=as_json, title="slowest requests", empty="no request was traced")
    elif coverage:
        show_coverage(traces.measure_coverage(records_of(config, source), spans, config.bus.run), as_json=as_json)
    else:
        lineage = Lineage(records_of(config, source, READ), spans, config.bus.run)
        node = explanations_of(lineage, config, source).of(identity)
        if as_json:
            show_json(node)
        else:
            PlainConsole().print(grow_tree(Tree(label(node)), node))


async def read_lags(config: Config) -> list[Lag] | None:
    """Return the lags of the run's groups, None if the broker does not answer."""
    from dart_streams.bus.lag import lag_reader

    async with lag_reader(config.bus) as lags:
        return await lags.read()


def explanations_of(lineage: Lineage, config: Config, source: Bundle | None) -> Explanations:
    """Return the explanations of ids; a bundle has neither dead letters nor committed offsets."""
    from console.repair.dead_letters import letters_about
    from console.runs.open_orders import lost_orders
    from console.views.explanations import Explanations

    if source is not None:
        return Explanations(lineage, config)
    return Explanations(
        lineage,
        config,
        lambda identity: letters_about(config.bus, identity),
        lambda: lost_orders(lineage.state, asyncio.run(read_lags(config))),
    )


def show_coverage(found: Coverage, *, as_json: bool) -> None:
    """Print the share of trained steps that can be traced."""
    if as_json:
        show_json(found)
        return
    share = "nothing was trained" if found.coverage is None else f"{found.coverage:.2%}"
    print_line(
        f"{found.traced_steps} of {found.trained_steps} trained steps ({found.optimizer_steps} optimizer steps) "
        f"can be followed to their screenshot: {share}"
    )
    for missing, number in found.broken.items():
        print_line(f"  {number} end at: {missing}")
    for example in found.examples:
        print_line(f"  for instance {example}")


def grow_tree(tree: Tree, node: Node) -> Tree:
    """Add a node's neighbors to its tree: ``←`` its sources, ``→`` its results."""
    for arrow, others in (("←", node.made_of), ("→", node.went_into)):
        for other in others:
            grow_tree(tree.add(f"[dim]{arrow}[/dim] {label(other)}"), other)
    return tree


def label(node: Node) -> str:
    """Return the line of a node."""
    parts = [f"[bold]{node.kind}[/bold] {escape(node.id)}"]
    if node.ms is not None:
        parts.append(f"[cyan]{node.ms:,.1f} ms[/cyan]")
    parts += [f"[dim]{name}[/dim] {escape(shorten_value(value))}" for name, value in node.fields.items()]
    return "  ".join(parts)


def shorten_value(value: Any) -> str:
    """Return the text of a field's value, shortened to a part of a line."""
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, dict):
        return " ".join(f"{name}={shorten_value(item)}" for name, item in value.items())[: 3 * MAX_FIELD_CHARS]
    if isinstance(value, list):
        value = [round(item, 3) if isinstance(item, float) else item for item in value]
    text = str(value)
    return text if len(text) <= MAX_FIELD_CHARS else text[: MAX_FIELD_CHARS - 1] + "…"
