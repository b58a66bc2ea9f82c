"""``dart-streams bench``: the commands; each imports its benchmark when it runs, so that help starts fast."""

import asyncio
import tempfile
from pathlib import Path
from typing import Annotated

import typer

from benchmarks import mode_commands
from benchmarks.command_line import DEMO, DeploymentFile, show
from benchmarks.feedback import commands as feedback_commands
from benchmarks.learning import commands as learning_commands
from benchmarks.multi_turn import commands as multi_turn_commands
from benchmarks.peers import commands as peer_commands
from console.cli import output as terminal
from console.cli.options import AsJson

app = typer.Typer(no_args_is_help=True, rich_markup_mode="rich")
Trajectories = Annotated[int, typer.Option(help="Number of finished rollouts.", min=1)]


@app.command()
def reducers(
    trajectories: Trajectories = 50_000,
    tasks: Annotated[int, typer.Option(help="Number of tasks in the set.", min=1)] = 1_000,
    slots: Annotated[int, typer.Option(help="Number of slots in the deployment.", min=1)] = 64,
    as_json: AsJson = False,
) -> None:
    """Events per CPU second of each reducer of the data manager, and the size of its state."""
    from benchmarks import curation_reducers

    show(curation_reducers.measure(trajectories, tasks, slots), as_json)


@app.command()
def agents(
    trajectories: Trajectories = 10_000,
    servers: Annotated[str, typer.Option(help="Address of the broker; new topics stay there.")] = "127.0.0.1:9092",
    core: Annotated[int | None, typer.Option(help="CPU core of the curator.", show_default=False)] = None,
    as_json: AsJson = False,
) -> None:
    """Finished rollouts per second through the four agents of a curator process, over Kafka."""
    from benchmarks import curation_agents

    with tempfile.TemporaryDirectory() as folder:
        show(asyncio.run(curation_agents.measure(Path(folder), servers, trajectories, core)), as_json)


@app.command()
def fuzz(
    surface: Annotated[str, typer.Argument(help="`records`, `documents`, `bundles`, `answers` or `requests`.")],
    minutes: Annotated[float, typer.Option(help="Time of the campaign.", min=0)] = 10.0,
    seed: Annotated[int, typer.Option(help="Seed of the mutations; a process that ends takes the next one.")] = 1,
    folder: Annotated[Path, typer.Option(help="Folder of the findings.")] = Path(".dart/fuzz"),
    as_json: AsJson = False,
) -> None:
    """Mutated samples of what others write, and those that raise, take, or write what they must not.

    It exits with 1 if it has findings.
    """
    from benchmarks.fuzz import campaign

    found = campaign.measure(surface, minutes * 60, seed, folder.absolute())
    show(found, as_json)
    raise typer.Exit(1 if found["findings"] else 0)


@app.command()
def tracing(
    rounds: Annotated[int, typer.Option(help="Rounds, of a turn without and one with spans.", min=2)] = 40,
    episodes: Annotated[int, typer.Option(help="Episodes of a turn, of three steps each.", min=1)] = 64,
    as_json: AsJson = False,
) -> None:
    """CPU time of a step with spans, divided by that without, where nothing else costs anything.

    Starts and ends a Kafka and a Cassandra. Takes about five minutes.
    """
    from benchmarks import tracing_cost

    with tempfile.TemporaryDirectory() as folder:
        show(tracing_cost.measure(Path(folder), rounds, episodes), as_json)


@app.command()
def bundle(
    output: Annotated[Path, typer.Argument(help="Path of the new bundle.")],
    trajectories: Trajectories = 100_000,
    tasks: Annotated[int, typer.Option(help="Number of tasks in the set.", min=1)] = 1_000,
    slots: Annotated[int, typer.Option(help="Number of slots in the deployment.", min=1)] = 64,
    as_json: AsJson = False,
) -> None:
    """Write a bundle of N synthetic rollouts for `replay`."""
    from benchmarks.bundle import make

    show(make(output, trajectories, tasks, slots), as_json)


@app.command()
def browser(
    rounds: Annotated[int, typer.Option(help="Rounds of each capture mode.", min=1)] = 4,
    episodes: Annotated[int, typer.Option(help="Episodes per round.", min=8)] = 160,
    warm_up: Annotated[int, typer.Option(help="Warm-up episodes of each capture mode.", min=8)] = 400,
    config: DeploymentFile = DEMO,
    as_json: AsJson = False,
) -> None:
    """CPU time of Chromium per step, with rendered frames and with screenshots, and equality of their screens.

    Without broker, policy and store. Takes about two minutes.
    """
    from benchmarks import browser_cost, modes
    from dart_streams.config.tasks import load

    terminal.log_to_stderr()
    base = modes.load_config(config)
    tasks = load(Path(base.tasks.file))
    show(asyncio.run(browser_cost.measure(tasks, base, rounds, episodes, warm_up)), as_json)


@app.command()
def desktops(
    slots: Annotated[int, typer.Option(help="Concurrent desktops.", min=1)] = 8,
    episodes: Annotated[int, typer.Option(help="Episodes per desktop.", min=1)] = 6,
    family: Annotated[
        list[str] | None,
        typer.Option(help="Task family; may be repeated. \\[default: those of LibreOffice]", show_default=False),
    ] = None,
    hogged: Annotated[int, typer.Option(help="Processors kept busy by other work.", min=0)] = 0,
    starts: Annotated[
        bool, typer.Option("--starts", help="Only reset to one task per family and compare first screens.")
    ] = False,
    handovers: Annotated[int, typer.Option(help="Only hand over a prepared desktop, N times.", min=0)] = 0,
    config: DeploymentFile = Path("deploy/config/desktop.toml"),
    as_json: AsJson = False,
) -> None:
    """Time, CPU time and memory of concurrent desktops by task family: resets, oracle steps, clicks, idling.

    Without broker, policy and store. Needs `make desktop`. Takes one to five minutes.
    """
    from benchmarks import desktop_cost, modes

    terminal.log_to_stderr()
    base = modes.load_config(config)
    families = [desktop_cost.tasks_of(name) for name in family or ("sheet", "document", "slide")]
    if handovers:
        show(
            {tasks[0].page: asyncio.run(desktop_cost.hand_overs(base, tasks[0], handovers)) for tasks in families},
            as_json,
        )
    else:
        show(asyncio.run(desktop_cost.measure(families, base, slots, episodes, hogged=hogged, same=starts)), as_json)


@app.command()
def phones(
    slots: Annotated[int, typer.Option(help="Concurrent phones.", min=1)] = 4,
    episodes: Annotated[int, typer.Option(help="Episodes of each family and phone.", min=1)] = 4,
    config: DeploymentFile = Path("deploy/config/phone.toml"),
    as_json: AsJson = False,
) -> None:
    """Time, CPU time and memory of concurrent phones: resets, oracle steps, idling.

    Without broker, policy and store. Needs `make phone`. Takes one to five minutes.
    """
    from benchmarks import modes, phone_cost

    terminal.log_to_stderr()
    show(asyncio.run(phone_cost.measure(modes.load_config(config), slots, episodes)), as_json)


@app.command()
def demonstration(
    runs: Annotated[int, typer.Option(help="Number of runs, in sequence.", min=1)] = 5,
    episodes: Annotated[
        int | None,
        typer.Option(help="End training after N episodes. \\[default: run.minutes]", min=1, show_default=False),
    ] = None,
    config: Annotated[Path, typer.Option(help="Configuration file.", exists=True)] = DEMO,
    as_json: AsJson = False,
) -> None:
    """Gain of whole runs of a configuration: each run, the median, the worst, and the machine's other load.

    A demonstration run takes about 13 minutes. Runs stay in their folders.
    """
    from benchmarks import modes
    from benchmarks.demonstration import measure

    show(measure(modes.load_config(config), runs, episodes, terminal.note), as_json)


@app.command()
def trainer(
    steps: Annotated[int, typer.Option(help="Training steps.", min=5)] = 500,
    groups: Annotated[int, typer.Option(help="Groups per step.", min=1)] = 2,
    as_json: AsJson = False,
) -> None:
    """Data wait and memory growth of the trainer over a prepared backlog.

    Starts and ends a Kafka and a Cassandra. Takes about 10 minutes.
    """
    from benchmarks import training

    with tempfile.TemporaryDirectory() as folder:
        found = training.measure(Path(folder), steps, groups)
    show(found, as_json)


@app.command()
def weights(
    workers: Annotated[int, typer.Option(help="Rollout workers.", min=1)] = 2,
    switches: Annotated[int, typer.Option(help="Number of weight switches.", min=1)] = 20,
    restarts: Annotated[int, typer.Option(help="Number of worker restarts.", min=1)] = 3,
    slots: Annotated[int, typer.Option(help="Concurrent requests.", min=1)] = 16,
    window_s: Annotated[float, typer.Option(help="Seconds per window, with or without a switch.")] = 3.0,
    as_json: AsJson = False,
) -> None:
    """Weight switches in place against engine restarts, on real workers under steady load.

    Starts and ends a Kafka, a Cassandra and the workers. Takes about 5 minutes.
    """
    from benchmarks import weights_switching

    plan = weights_switching.SwitchPlan(workers, switches, restarts, slots, window_s)
    with tempfile.TemporaryDirectory() as folder:
        found = asyncio.run(weights_switching.measure(Path(folder), plan))
    show(found, as_json)


for subject in (mode_commands, learning_commands, feedback_commands, multi_turn_commands, peer_commands):
    app.add_typer(subject.app)
