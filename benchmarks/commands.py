"""``dart-streams bench``: what the project's own benchmarks measure on this machine, as JSON."""

import asyncio
import importlib
import itertools
import json
import tempfile
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from dart_streams.config.tasks import load
from dart_streams.console.cli import output
from dart_streams.console.cli.options import AsJson
from dart_streams.console.cli.output import cell

app = typer.Typer(no_args_is_help=True, rich_markup_mode="rich")

DESKTOP = Path("deploy/config/workload/desktop.toml")
WorkloadFile = Annotated[Path, typer.Option("--workload", help="A configuration with a workload section.")]
Plot = Annotated[Path | None, typer.Option(help="Where to draw the figures (svg).", show_default=False)]
Timeline = Annotated[Path | None, typer.Option(help="Where to draw what each slot did (svg).", show_default=False)]
Staleness = Annotated[int, typer.Option(help="Versions that data may be old.", min=0)]
Seeds = Annotated[int, typer.Option(help="Runs of each mode.", min=1)]
Curated = Annotated[bool, typer.Option(help="DART's rules of curation, in all modes.")]
Trajectories = Annotated[int, typer.Option(help="Finished rollouts to work on.", min=1)]


@app.command()
def learning(
    seeds: Annotated[int, typer.Option(help="Runs of each variant.", min=1, max=16)] = 3,
    episodes: Annotated[int, typer.Option(help="Training episodes of a run.", min=16)] = 3200,
    only: Annotated[
        list[str] | None,
        typer.Option(help="A variant beside the base; may be given again. \\[default: all]", show_default=False),
    ] = None,
    variants: Annotated[Path, typer.Option(help="The deployment and its variants.", exists=True)] = Path(
        "benchmarks/learning/variants.toml"
    ),
    folder: Annotated[Path, typer.Option(help="Where screens, policies and runs are kept.")] = Path(".dart/bench"),
    plot: Annotated[
        Path | None, typer.Option(help="Where to draw the learning curves (svg).", show_default=False)
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Gain on held-out tasks for each variant of the demonstration, over the same seeds, with 95 % intervals.

    One process and one thread, on recorded screens, without services: a run of 3200 episodes takes about a minute of a
    core. The screens are recorded first if they are not there. Runs that this code made before are not made again.
    """
    output.log_to_stderr()
    comparison, reporting = module("learning.comparison"), module("learning.report")
    runs = comparison.played(comparison.Plan(variants, folder, list(range(seeds)), episodes, only or []), output.note)
    compared = reporting.compared(runs)
    if plot is not None:
        reporting.draw(runs, plot)
    if as_json:
        output.show_json(compared)
    else:
        title = f"points gained in {episodes} episodes, with half of the 95 % interval; * where it excludes 0"
        output.show(reporting.rows(compared), as_json=False, title=title)


@app.command()
def reducers(
    trajectories: Trajectories = 50_000,
    tasks: Annotated[int, typer.Option(help="Tasks in the set.", min=1)] = 1_000,
    slots: Annotated[int, typer.Option(help="Slots that the backlog is for.", min=1)] = 64,
) -> None:
    """Events a second of CPU time through each reducer of the data manager, and the size of its state."""
    show(module("curation_reducers").measure(trajectories, tasks, slots))


@app.command()
def agents(
    trajectories: Trajectories = 10_000,
    servers: Annotated[str, typer.Option(help="The broker; its topics are made and left there.")] = "127.0.0.1:9092",
    core: Annotated[int | None, typer.Option(help="The core to keep the curator on.", show_default=False)] = None,
) -> None:
    """Finished rollouts a second through all four agents of a curator process, over Kafka."""
    with tempfile.TemporaryDirectory() as folder:
        show(asyncio.run(module("curation_agents").measure(Path(folder), servers, trajectories, core)))


@app.command()
def bundle(
    output: Annotated[Path, typer.Argument(help="The bundle to write.")],
    trajectories: Trajectories = 100_000,
    tasks: Annotated[int, typer.Option(help="Tasks in the set.", min=1)] = 1_000,
    slots: Annotated[int, typer.Option(help="Slots that the backlog is for.", min=1)] = 64,
) -> None:
    """Write a bundle of so many made-up rollouts, for `replay`."""
    show(module("bundle").make(output, trajectories, tasks, slots))


@app.command()
def decoupling(
    slots: Annotated[int, typer.Option(help="Slots.", min=1)] = 16,
    batch: Annotated[int, typer.Option(help="Groups a training step; 2 of 8 rollouts fill 16 slots.", min=1)] = 2,
    staleness: Staleness = 3,
    minutes: Annotated[
        float, typer.Option(help="Minutes on the clock, a seed and mode; answers are kept for 15.", max=14)
    ] = 4.0,
    scale: Annotated[
        float | None, typer.Option(help="Time scale. \\[default: the workload's]", show_default=False)
    ] = None,
    seeds: Seeds = 3,
    curation: Curated = True,
    workload: WorkloadFile = DESKTOP,
    plot: Plot = None,
    timeline: Timeline = None,
    as_json: AsJson = False,
) -> None:
    """Decoupled against coupled as real runs: Kafka, Cassandra and every process; times drawn from the workload.

    Starts a Kafka and a Cassandra, and ends them. Takes about an hour: four modes, three seeds, four minutes each and
    what starting and draining take. Configurations and logs of the runs stay in .dart/bench.
    """
    comparing, modes, runs, pictures = (
        module(name) for name in ("decoupling", "modes", "decoupling_run", "decoupling_plot")
    )
    shape = modes.proportioned(slots, batch * 180 / slots, staleness, curated=curation)
    player = runs.ModeRunner(minutes, output.note)
    with runs.with_services(modes.read(workload, scale)) as base:
        comparison = comparing.compared(comparing.measure(base, shape, seeds, player.play), base, shape)
    hours = minutes * comparison["time_scale"] / 60
    comparison = comparing.held_against(comparison, base, shape, hours, runs.overheads(player))
    pictures.draw(comparison, player.newest, plot, timeline, comparing.WARM_S)
    if as_json:
        output.show_json(comparison | {"core_ms_per_action": player.core_ms})
    else:
        show_comparison(comparing, comparison)
        typer.echo("core-milliseconds an executed action, of the last run of each mode")
        show_lines(dict(player.core_ms))
        typer.echo("figures as a share of what the simulation says, with the runs' own overhead a step")
        show_lines(comparison["to_simulated"])


@app.command()
def slots(
    counts: Annotated[
        list[int] | None,
        typer.Option("--slots", help="Slots; may be given again. \\[default: 1000]", show_default=False, min=1),
    ] = None,
    pace: Annotated[float, typer.Option(help="Seconds from one step of a slot to its next.", min=0.01)] = 3.0,
    minutes: Annotated[float, typer.Option(help="Minutes on the clock for each number of slots.", max=14)] = 6.0,
    workload: WorkloadFile = DESKTOP,
    as_json: AsJson = False,
) -> None:
    """How many simulated slots this machine holds at the pace of desktops, and what they cost.

    Starts a Kafka and a Cassandra, and ends them. Figures begin after three minutes. Logs and reports of the runs
    stay in .dart/bench.
    """
    crowd, crowd_run, modes, runs = (module(name) for name in ("slots", "slots_run", "modes", "decoupling_run"))
    found = []
    with runs.with_services(modes.read(workload)) as base:
        for count in counts or [1000]:
            output.note(f"{count} slots: {minutes:g} minutes and what starting and draining take")
            found.append(crowd_run.measure(base, count, pace, minutes))
    if as_json:
        output.show_json(found)
        return
    output.show(crowd.rows(found), as_json=False, title=f"a step each {pace:g} s and slot")
    typer.echo("core-milliseconds a step, services included")
    for one in found:
        show_lines({f"{one['slots']} slots": one["core_ms_per_step"]})


@app.command()
def circle(
    minutes: Annotated[float, typer.Option(help="Minutes of training, a seed and mode.", min=2)] = 5.0,
    seeds: Annotated[int, typer.Option(help="Seeds; each plays both modes.", min=1)] = 1,
    config: Annotated[Path, typer.Option(help="The deployment.", exists=True)] = Path("deploy/config/demo.toml"),
    mode: Annotated[
        Literal["coupled", "dart"] | None, typer.Option(help="Play this mode alone.", show_default=False)
    ] = None,
    timeline: Timeline = None,
    as_json: AsJson = False,
) -> None:
    """Coupled against decoupled with real parts: browsers, vLLM and torch; and where the CPU time goes.

    Starts a Kafka and a Cassandra, and ends them. Takes a quarter of an hour, and five minutes more where the tiny
    policy is still to be built. Logs of the runs stay in .dart/bench. Figures of CPU time begin after a minute.
    """
    comparing, circles, modes, runs, pictures = (
        module(name) for name in ("circle", "circle_run", "modes", "decoupling_run", "decoupling_plot")
    )
    player = circles.CircleRunner(minutes, output.note)
    with runs.with_services(modes.located(config), optimise=False) as base:
        played = comparing.measure(base, seeds, player.play, [mode] if mode else comparing.COMPARED)
        found = comparing.compared(played, circles.costs(player))
    if timeline is not None:
        pictures.draw(found, player.newest, None, timeline, comparing.WARM_S)
    if as_json:
        output.show_json(found)
        return
    output.show(comparing.rows(found), as_json=False, title="MiniWoB++, vLLM and torch on this machine")
    for name, cpu in found["cpu"].items():
        show_lines({f"{name}: core-ms a step": cpu["core_ms_per_step"], "share of CPU time": cpu["share"]})


@app.command()
def demonstration(
    runs: Annotated[int, typer.Option(help="Runs, one after another.", min=1)] = 5,
    episodes: Annotated[
        int | None,
        typer.Option(help="End training after so many episodes. \\[default: run.minutes]", min=1, show_default=False),
    ] = None,
    config: Annotated[Path, typer.Option(help="The configuration.", exists=True)] = Path("deploy/config/demo.toml"),
) -> None:
    """Gain of whole runs of a configuration: each, the median and the worst, with what else the machine did.

    A run of the demonstration takes about 13 minutes. Runs stay in their folders, with what they showed.
    """
    show(module("demonstration").measure(module("modes").located(config), runs, episodes, output.note))


@app.command()
def browser(
    rounds: Annotated[int, typer.Option(help="Turns of each way of taking screens.", min=1)] = 4,
    episodes: Annotated[int, typer.Option(help="Episodes a turn.", min=8)] = 160,
    warm_up: Annotated[int, typer.Option(help="Episodes of each before the first turn.", min=8)] = 400,
    config: Annotated[Path, typer.Option(help="The deployment.", exists=True)] = Path("deploy/config/demo.toml"),
) -> None:
    """CPU time of Chromium a step, with a frame for each screen and with screenshots, in turns; and whether they agree.

    Without broker, policy and store. Takes about two minutes.
    """
    output.log_to_stderr()
    base = module("modes").located(config)
    tasks = load(Path(base.tasks.file))
    show(asyncio.run(module("browser_cost").measure(tasks, base, rounds, episodes, warm_up)))


@app.command()
def desktops(
    slots: Annotated[int, typer.Option(help="Desktops side by side.", min=1)] = 8,
    episodes: Annotated[int, typer.Option(help="Episodes of each.", min=1)] = 6,
    family: Annotated[
        list[str] | None,
        typer.Option(
            help="A family of tasks; may be given again. \\[default: those of LibreOffice]", show_default=False
        ),
    ] = None,
    hogged: Annotated[int, typer.Option(help="Processors that other work keeps busy.", min=0)] = 0,
    starts: Annotated[
        bool, typer.Option("--starts", help="Only resets, to one task a family, whose first screens are compared.")
    ] = False,
    handovers: Annotated[int, typer.Option(help="Only hand over a prepared desktop, so many times.", min=0)] = 0,
    config: Annotated[Path, typer.Option(help="The deployment.", exists=True)] = Path("deploy/config/desktop.toml"),
) -> None:
    """Time, CPU time and memory of desktops side by side, by family: resets, steps of the oracle, clicks, idling.

    Without broker, policy and store. Needs `make desktop`. Takes one to five minutes.
    """
    output.log_to_stderr()
    base, cost = module("modes").located(config), module("desktop_cost")
    families = [cost.tasks_of(name) for name in family or ("sheet", "document", "slide")]
    if handovers:
        show({tasks[0].page: asyncio.run(cost.hand_overs(base, tasks[0], handovers)) for tasks in families})
    else:
        show(asyncio.run(cost.measure(families, base, slots, episodes, hogged=hogged, same=starts)))


@app.command()
def browsergym(
    rounds: Annotated[int, typer.Option(help="Turns of each environment.", min=1)] = 3,
    seconds: Annotated[float, typer.Option(help="Seconds a turn.", min=1)] = 12.0,
    processes: Annotated[
        list[int] | None,
        typer.Option(help="Processes of a peer; may be given again. \\[default: 1, 4]", show_default=False),
    ] = None,
    config: Annotated[Path, typer.Option(help="The deployment.", exists=True)] = Path("deploy/config/demo.toml"),
) -> None:
    """Steps a second and CPU time a step of this project's browser, BrowserGym's and plain Playwright's, in turns.

    All play the same recorded episodes of the same pages. Needs `make peers`. Takes about 8 minutes.
    """
    output.log_to_stderr()
    modes, browsers = module("modes"), module("peers.browsers")
    base = modes.located(config)
    show(asyncio.run(browsers.measure(base, load(Path(base.tasks.file)), rounds, seconds, processes or [1, 4])))


@app.command()
def trl(
    minutes: Annotated[float, typer.Option(help="Minutes of training, each.", min=0.1)] = 4.0,
    runs: Annotated[int, typer.Option(help="Runs of each, in turns.", min=1)] = 1,
    side: Annotated[
        str | None, typer.Option(help="Only trl, or only circle. \\[default: both]", show_default=False)
    ] = None,
    config: Annotated[Path, typer.Option(help="The deployment.", exists=True)] = Path("deploy/config/demo.toml"),
) -> None:
    """Held-out success of the circle and of TRL's GRPO trainer, from the same policy on the same pages of one action.

    Needs `make peers`, and the tiny policy that `make demo` builds. Takes about 12 minutes a run of both.
    """
    output.log_to_stderr()
    trainers, base = module("peers.trainers"), module("modes").located(config)
    show(trainers.measure(base, minutes, runs, [side] if side else trainers.SIDES, output.note))


@app.command()
def weights(
    workers: Annotated[int, typer.Option(help="Rollout workers.", min=1)] = 2,
    switches: Annotated[int, typer.Option(help="Versions to switch to.", min=1)] = 20,
    restarts: Annotated[int, typer.Option(help="Workers to end and start again.", min=1)] = 3,
    slots: Annotated[int, typer.Option(help="Requests under way at any time.", min=1)] = 16,
    window_s: Annotated[float, typer.Option(help="Seconds a version, and seconds between without one.")] = 3.0,
    kinds: Annotated[
        bool, typer.Option("--kinds", help="Instead: bytes a version, and seconds until it is served, by kind.")
    ] = False,
    size: Annotated[Literal["tiny", "larger"], typer.Option(help="The policy, with --kinds.")] = "tiny",
    versions: Annotated[int, typer.Option(help="Versions of each kind, with --kinds.", min=1)] = 10,
    learning_rate: Annotated[float, typer.Option(help="AdamW's, with --kinds.", min=0)] = 1e-6,
    as_json: AsJson = False,
) -> None:
    """A switch of weights in place against a restart of the engine, with real workers under steady load.

    With --kinds: what a version costs that is published whole, or as what changed since the one before, as JSON.
    Starts a Kafka, a Cassandra and the workers, and ends them. Takes about 5 minutes.
    """
    if kinds:
        by_kind = module("weight_kinds")
        with tempfile.TemporaryDirectory() as folder:
            show(by_kind.measure(Path(folder), by_kind.KindsPlan(size, versions, learning_rate)))
        return
    switching = module("weights_switching")
    plan = switching.SwitchPlan(workers, switches, restarts, slots, window_s)
    with tempfile.TemporaryDirectory() as folder:
        found = asyncio.run(switching.measure(Path(folder), plan))
    show(found) if as_json else show_lines(found)


@app.command()
def trainer(
    steps: Annotated[int, typer.Option(help="Batches to train on.", min=5)] = 500,
    groups: Annotated[int, typer.Option(help="Groups a batch.", min=1)] = 2,
    as_json: AsJson = False,
) -> None:
    """The trainer over a prepared backlog: its wait for data, and what its memory grows by a batch of screenshots.

    Starts a Kafka and a Cassandra, and ends them. Takes about 10 minutes.
    """
    with tempfile.TemporaryDirectory() as folder:
        found = module("training").measure(Path(folder), steps, groups)
    show(found) if as_json else show_lines(found)


@app.command()
def simulate(
    envs: Annotated[
        list[int] | None, typer.Option("--envs", help="Slots; may be given again. \\[default: 180]", show_default=False)
    ] = None,
    batch: Annotated[
        list[int] | None,
        typer.Option(
            help="Groups a training step, for 180 slots; other sizes in proportion. May be given again. "
            "\\[default: 24, which fill the slots]",
            show_default=False,
        ),
    ] = None,
    staleness: Staleness = 3,
    hours: Annotated[float, typer.Option(help="Hours of the desktops' time, a seed and mode.")] = 4.0,
    seeds: Seeds = 3,
    curation: Curated = True,
    workload: WorkloadFile = DESKTOP,
    plot: Plot = None,
    timeline: Timeline = None,
    as_json: AsJson = False,
) -> None:
    """Decoupled against coupled as discrete events: the same reducers, times drawn from the workload, no services."""
    comparing, modes, pictures = (module(name) for name in ("decoupling", "modes", "decoupling_plot"))
    base = modes.read(workload)
    found = []
    player = comparing.SimulatedRun(base, hours, traced=pictures.SLOTS if timeline else 0)
    for slots, groups in itertools.product(envs or [180], batch or [24]):
        shape = modes.proportioned(slots, groups, staleness, curated=curation)
        found.append(comparing.compared(comparing.measure(base, shape, seeds, player.play), base, shape))
        if not as_json:
            show_comparison(comparing, found[-1])
    pictures.draw(found[-1], player.newest, plot, timeline, comparing.WARM_S)
    if as_json:
        output.show_json(found)


def module(name: str) -> Any:
    """Import a benchmark, only the one that was asked for."""
    return importlib.import_module(f"benchmarks.{name}")


def show(found: dict[str, Any]) -> None:
    """Print a benchmark's figures."""
    typer.echo(json.dumps(found, indent=2))


def show_comparison(comparing: Any, comparison: dict[str, Any]) -> None:
    """Print a comparison of modes for people."""
    shape = comparison["shape"]
    title = f"{shape['slots']} slots, steps of {shape['batch']} groups, staleness at most {shape['max_staleness']}"
    output.show(comparing.rows(comparison), as_json=False, title=f"{title}\nunder each figure: its ratio to coupled")


def show_lines(found: dict[str, Any]) -> None:
    """Print a benchmark's figures for people, a line each."""
    for name, value in found.items():
        typer.echo(f"{name.replace('_', ' '):>20}  {cell(value) if not isinstance(value, dict) else pairs(value)}")


def pairs(value: dict[str, Any]) -> str:
    """Return the parts of a figure in a line."""
    return ", ".join(f"{name} {part}" for name, part in value.items())
