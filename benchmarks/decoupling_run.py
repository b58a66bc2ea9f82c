"""Real run of one mode: Kafka, Cassandra, Faust and all processes, with modeled environment and model."""

import asyncio
import contextlib
import re
import sys
import uuid
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
from rich.console import Console

from benchmarks.logged import READ, Clock, build_account
from benchmarks.modes import Mode, workload_of
from benchmarks.private_services import private_services
from benchmarks.simulation import Overheads
from benchmarks.utilization import Account
from console.launch import processes
from console.launch.services.local import folder_of
from console.launch.session import Finish, Session, run_session
from console.launch.supervisor import ProcessSpec
from console.launch.training_run import TrainingRun
from console.runs import run_folder as folder
from console.runs.metrics_reader import MetricsReader
from console.runs.process_usage import USAGE_FILE, cpu_seconds, read_usage
from console.runs.run_log import read_log
from console.runs.run_state import RunState
from dart_streams.config import Config
from dart_streams.telemetry import names

REQUEST_TIMEOUT_S = 60.0
"""Wall-clock timeout of a request, so that a busy machine does not lose answers."""
TRAINER = "benchmarks.stand_in_trainer"


def clock_config(config: Config, minutes: float) -> Config:
    """Return a configuration whose timeouts are the workload's in wall-clock time."""
    replace, workload = msgspec.structs.replace, workload_of(config)
    return replace(
        config,
        run=replace(config.run, minutes=minutes, demonstrate=False, drain_s=4.0),
        evaluation=replace(config.evaluation, episodes=0),
        env=replace(
            config.env,
            simulated=replace(config.env.simulated, call_timeout_s=workload.clock_s(workload.call_s)),
            episode_timeout_s=workload.clock_s(workload.episode_s) + REQUEST_TIMEOUT_S,
            request_timeout_s=REQUEST_TIMEOUT_S,
        ),
    )


def place_config(config: Config, running: Config) -> Config:
    """Return a configuration with the services of ``running`` and its own runs folder."""
    replace, state = msgspec.structs.replace, Path(config.run.state_dir) / "bench"
    return replace(
        config,
        run=replace(config.run, state_dir=str(state)),
        bus=replace(config.bus, servers=running.bus.servers),
        store=replace(config.store, hosts=running.store.hosts, port=running.store.port),
    )


@contextlib.contextmanager
def with_services(config: Config, *, optimise: bool = True) -> Iterator[Config]:
    """Yield a configuration with private broker and database; ``optimise`` enables both JVM compilers."""
    with private_services(optimise=optimise) as running:
        ours = place_config(config, running)
        link = folder_of(ours)
        link.parent.mkdir(parents=True, exist_ok=True)
        link.unlink(missing_ok=True)
        link.symlink_to(folder_of(running))
        try:
            yield ours
        finally:
            link.unlink()


class ModeRunner:
    """Runs deployments for N minutes of wall clock.

    ``bounded`` limits a configuration to that time, ``wired`` makes its session. ``newest`` has each mode's last
    account, ``folders`` its run folder.
    """

    def __init__(
        self,
        minutes: float,
        tell: Callable[[str], None],
        bounded: Callable[[Config, float], Config] | None = None,
        wired: Callable[[folder.RunFolder, Console, Finish], Session] | None = None,
    ) -> None:
        self.minutes = minutes
        self.tell = tell
        self.bounded = bounded or clock_config
        self.wired = wired or session_of
        self.newest: dict[Mode, Account] = {}
        self.folders: dict[Mode, folder.RunFolder] = {}

    @property
    def core_ms(self) -> dict[str, dict[str, float]]:
        """Core-milliseconds per executed action by kind of process, in each mode's last run."""
        return {mode: core_ms(made, len(self.newest[mode].actions)) for mode, made in self.folders.items()}

    def play(self, config: Config, mode: Mode, seed: int) -> Account:
        """Run a deployment and return its account; raise UserError if a process fails for good or a wait times out."""
        self.tell(f"{mode}, seed {seed}: {self.minutes:g} minutes plus start and drain")
        name = f"{mode}-{seed}-{uuid.uuid4().hex[:6]}"
        made = folder.create(self.bounded(config, self.minutes), Path(config.tasks.file), name, resume=False)
        found: list[Account] = []

        async def finish(circle: TrainingRun) -> None:
            found.append(await asyncio.to_thread(account_of, circle.config, clock_of(circle)))

        run_session(made, lambda log: self.wired(made, Console(file=log), finish))
        self.newest[mode], self.folders[mode] = found[0], made
        return found[0]


def session_of(made: folder.RunFolder, console: Console, finish: Finish) -> Session:
    """Return the session of a run with the stand-in trainer."""
    stand_in = ProcessSpec("trainer", (sys.executable, "-m", TRAINER, str(made.config_file)))
    run = processes.processes_of(made.config(), made.config_file, processes.find_programs())
    return Session(made, msgspec.structs.replace(run, trainer=(stand_in,)), finish, console)


def core_ms(made: folder.RunFolder, actions: int) -> dict[str, float]:
    """Return core-milliseconds per action by kind of process, heartbeats included."""
    phase = made.journal().phase("circle")
    if phase is None or not actions:
        return {}
    costs = cpu_seconds(read_usage(made.path / "metrics" / USAGE_FILE), phase.started_ms, phase.ended_ms or 0)
    return {name: round(1000 * cpu_s / actions, 2) for name, cpu_s in by_kind(costs).items()}


def measure_overheads(player: ModeRunner) -> dict[Mode, Overheads]:
    """Return the mean overhead of a step in each mode's last run, in simulated seconds."""
    return {mode: Overheads(step_s=overhead_s(made)) for mode, made in player.folders.items()}


def overhead_s(made: folder.RunFolder) -> float:
    """Return the mean time of a step beside generation and execution, in simulated seconds."""
    phase, metrics = made.journal().phase("circle"), MetricsReader(made.path / "metrics")
    assert phase is not None
    found = metrics.distribution(names.ENV_OVERHEAD_MS, phase.started_ms, phase.ended_ms or 0)
    mean_ms = found.mean if found is not None else None
    return (mean_ms or 0.0) / 1000 * workload_of(made.config()).time_scale


def clock_of(circle: TrainingRun) -> Clock:
    """Return the clock of the training phase."""
    phase = next(phase for phase in circle.journal.phases if phase.name == "circle")
    workload = circle.config.workload
    return Clock(phase.started_ms, phase.ended_ms or phase.started_ms, workload.time_scale if workload else 1.0)


def account_of(config: Config, clock: Clock) -> Account:
    """Return the account of a run from its topics."""
    state = RunState(keep_steps=True).fold(read_log(config.bus, READ))
    slots = config.env.workers * config.env.slots
    return build_account(state, clock, slots, config.rollout.workers, config.rollout.max_in_flight)


def by_kind(by_process: dict[str, float]) -> dict[str, float]:
    """Sum values by kind of process: ``env-0`` and ``env-1`` are ``env``."""
    found: defaultdict[str, float] = defaultdict(float)
    for name, value in by_process.items():
        found[re.sub(r"-\d+$", "", name)] += value
    return {name: round(value, 1) for name, value in sorted(found.items())}
