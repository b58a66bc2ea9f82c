"""``dart-streams bench``: decoupled against coupled modes, and the number of slots."""

import itertools
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from benchmarks.command_line import DEMO, DeploymentFile, show_lines
from console.cli import output
from console.cli.options import AsJson

app = typer.Typer()

DESKTOP = Path("deploy/config/workload/desktop.toml")
WorkloadFile = Annotated[Path, typer.Option("--workload", help="Configuration file with a workload section.")]
Staleness = Annotated[int, typer.Option(help="Maximum staleness of training data, in weight versions.", min=0)]
Seeds = Annotated[int, typer.Option(help="Number of runs of each mode.", min=1)]
Curated = Annotated[bool, typer.Option(help="Use DART's curation rules in all modes.")]


@app.command()
def decoupling(
    slots: Annotated[int, typer.Option(help="Number of slots.", min=1)] = 16,
    batch: Annotated[int, typer.Option(help="Groups per training step; 2 of 8 rollouts fill 16 slots.", min=1)] = 2,
    staleness: Staleness = 2,
    minutes: Annotated[
        float, typer.Option(help="Wall-clock minutes per seed and mode; answers are kept for 15.", max=14)
    ] = 4.0,
    scale: Annotated[
        float | None, typer.Option(help="Time scale. \\[default: the workload's]", show_default=False)
    ] = None,
    seeds: Seeds = 3,
    curation: Curated = True,
    workload: WorkloadFile = DESKTOP,
    as_json: AsJson = False,
) -> None:
    """Decoupled against coupled modes in real runs with times from a workload.

    Starts and ends a Kafka and a Cassandra. Takes over an hour: five modes, three seeds, four minutes each.
    Configurations and logs stay in .dart/bench.
    """
    from benchmarks import decoupling as comparing
    from benchmarks import decoupling_run, modes

    shape = modes.scale_shape(slots, batch * 180 / slots, staleness, curated=curation)
    player = decoupling_run.ModeRunner(minutes, output.note)
    with decoupling_run.with_services(modes.load_workload(workload, scale)) as base:
        comparison = comparing.compare_modes(comparing.measure(base, shape, seeds, player.play), base, shape)
    hours = minutes * comparison["time_scale"] / 60
    comparison = comparing.add_simulation(comparison, base, shape, hours, decoupling_run.measure_overheads(player))
    if as_json:
        output.show_json(comparison | {"core_ms_per_action": player.core_ms})
    else:
        show_comparison(comparison)
        typer.echo("core-milliseconds per executed action, last run of each mode")
        show_lines(player.core_ms)
        typer.echo("metrics as a ratio to the simulation with measured overheads")
        show_lines(comparison["to_simulated"])


@app.command()
def simulate(
    envs: Annotated[
        list[int] | None,
        typer.Option("--envs", help="Number of slots; may be repeated. \\[default: 180]", show_default=False),
    ] = None,
    batch: Annotated[
        list[int] | None,
        typer.Option(
            help="Groups per training step at 180 slots, scaled for other sizes; may be repeated. "
            "\\[default: 24, which fill the slots]",
            show_default=False,
        ),
    ] = None,
    staleness: Staleness = 2,
    hours: Annotated[float, typer.Option(help="Simulated hours per seed and mode.")] = 4.0,
    seeds: Seeds = 3,
    curation: Curated = True,
    workload: WorkloadFile = DESKTOP,
    as_json: AsJson = False,
) -> None:
    """Decoupled against coupled modes as discrete events with times from a workload, without services."""
    from benchmarks import decoupling as comparing
    from benchmarks import modes

    base = modes.load_workload(workload)
    found = []
    player = comparing.SimulatedRun(base, hours)
    for slots, groups in itertools.product(envs or [180], batch or [24]):
        shape = modes.scale_shape(slots, groups, staleness, curated=curation)
        found.append(comparing.compare_modes(comparing.measure(base, shape, seeds, player.play), base, shape))
        if not as_json:
            show_comparison(found[-1])
    if as_json:
        output.show_json(found)


@app.command()
def routing(
    slots: Annotated[
        list[int] | None,
        typer.Option(help="Number of slots; may be repeated. \\[default: 24 and 180]", show_default=False, min=1),
    ] = None,
    workers: Annotated[
        list[int] | None,
        typer.Option(help="Rollout workers; may be repeated. \\[default: 2, 4, 8]", show_default=False, min=1),
    ] = None,
    hours: Annotated[float, typer.Option(help="Simulated hours per seed.")] = 4.0,
    seeds: Annotated[int, typer.Option(help="Number of seeds.", min=1)] = 3,
    at_once: Annotated[bool, typer.Option("--at-once", help="All rollout workers switch weights at once.")] = False,
    workload: WorkloadFile = DESKTOP,
    as_json: AsJson = False,
) -> None:
    """Requests by the trajectory's partition against requests by load, as discrete events, without services.

    With equal rollout workers and with one of half the speed. A request that moves to another worker lacks its prefix
    cache there.
    """
    from benchmarks import modes
    from benchmarks import routing as comparing

    base = modes.load_workload(workload)
    found = comparing.measure(base, slots or [24, 180], workers or [2, 4, 8], seeds, hours, at_once)
    output.show(
        found,
        as_json=as_json,
        title="requests by trajectory, unless its worker is behind (overflow), by load",
    )


@app.command()
def circle(
    minutes: Annotated[float, typer.Option(help="Minutes of training per seed and mode.", min=2)] = 5.0,
    seeds: Annotated[int, typer.Option(help="Number of seeds; each plays both modes.", min=1)] = 1,
    config: DeploymentFile = DEMO,
    mode: Annotated[
        Literal["coupled", "dart"] | None, typer.Option(help="Play this mode only.", show_default=False)
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Decoupled against coupled modes with real browsers, vLLM and torch, and their CPU time by part.

    Starts and ends a Kafka and a Cassandra. Takes a quarter of an hour, and five minutes more to build the tiny policy.
    Logs stay in .dart/bench. CPU metrics begin after a minute.
    """
    from benchmarks import circle as comparing
    from benchmarks import decoupling_run, modes

    player = comparing.CircleRunner(minutes, output.note)
    with decoupling_run.with_services(modes.load_config(config), optimise=False) as base:
        played = comparing.measure(base, seeds, player.play, [mode] if mode else comparing.COMPARED)
        found = comparing.compare_runs(played, comparing.measure_costs(player))
    if as_json:
        output.show_json(found)
        return
    output.show(comparing.table_rows(found), as_json=False, title="MiniWoB++, vLLM and torch on this machine")
    for name, cpu in found["cpu"].items():
        show_lines({f"{name}: core-ms per step": cpu["core_ms_per_step"], "share of CPU time": cpu["share"]})


@app.command()
def slots(
    counts: Annotated[
        list[int] | None,
        typer.Option("--slots", help="Number of slots; may be repeated. \\[default: 1000]", show_default=False, min=1),
    ] = None,
    pace: Annotated[float, typer.Option(help="Seconds between steps of a slot.", min=0.01)] = 3.0,
    minutes: Annotated[float, typer.Option(help="Wall-clock minutes for each number of slots.", min=3.1, max=14)] = 6.0,
    workload: WorkloadFile = DESKTOP,
    as_json: AsJson = False,
) -> None:
    """Number of simulated slots that this machine serves at the pace of desktops, and their cost.

    Starts and ends a Kafka and a Cassandra. Metrics begin after three minutes. Logs and reports stay in .dart/bench.
    """
    from benchmarks import decoupling_run, modes
    from benchmarks import slots as crowd

    found = []
    with decoupling_run.with_services(modes.load_workload(workload)) as base:
        for count in counts or [1000]:
            output.note(f"{count} slots: {minutes:g} minutes plus start and drain")
            found.append(crowd.measure(base, count, pace, minutes))
    if as_json:
        output.show_json(found)
        return
    output.show(crowd.table_rows(found), as_json=False, title=f"one step per slot every {pace:g} s")
    typer.echo("core-milliseconds per step, services included")
    for one in found:
        show_lines({f"{one['slots']} slots": one["core_ms_per_step"]})


def show_comparison(comparison: dict[str, Any]) -> None:
    """Print a comparison of modes as a table."""
    from benchmarks.decoupling import table_rows

    shape = comparison["shape"]
    title = f"{shape['slots']} slots, steps of {shape['batch']} groups, maximum staleness {shape['max_staleness']}"
    output.show(table_rows(comparison), as_json=False, title=f"{title}\nunder each metric: its ratio to coupled")
