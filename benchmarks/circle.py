"""Coupled against decoupled modes with real parts: ``dart-streams bench circle``.

Both modes have the same slots, batch, curation and processes, and alternate over the seeds. Metrics are those of
:mod:`benchmarks.utilization`, by wall clock. The cost of a step has parts: ``browser`` (children of env workers),
``engine`` (rollout worker without its event loop), ``trainer``; the rest is this project's overhead. With a
``[workload]`` there is no browser, model and optimizer, and overhead is nearly all.
"""

import functools
from collections.abc import Callable, Iterable, Sequence
from operator import attrgetter
from typing import Any

import msgspec
from rich.console import Console

from benchmarks import decoupling_run
from benchmarks.decoupling import Play, by_turns, median_metrics, median_ratios, ratio_spreads
from benchmarks.decoupling_run import ModeRunner, by_kind
from benchmarks.modes import DISPATCH, Mode
from benchmarks.utilization import UtilizationMetrics, utilization_metrics
from console.launch import processes
from console.launch.session import Finish, Session
from console.runs import run_folder as folder
from console.runs.process_usage import USAGE_FILE, ProcessUsage, cpu_seconds, read_usage
from dart_streams.config import Config

COMPARED: tuple[Mode, ...] = ("coupled", "dart")
WARM_S = 60.0
"""Seconds before the first version that counts."""
NOT_OURS = frozenset(["browser", "engine", "trainer"])


class CircleRow(msgspec.Struct, frozen=True):
    """A mode in the printed table."""

    mode: str
    steps_per_s: float
    trained_steps_per_s: float
    env_utilisation: str
    rollout_utilisation: str
    staleness_max: int
    core_ms_per_step: float
    of_them_ours: float


def circle_config(base: Config, mode: Mode, seed: int) -> Config:
    """Return ``base`` with a mode's dispatch and switch width."""
    replace, coupled = msgspec.structs.replace, DISPATCH[mode] == "coupled"
    dispatch = replace(base.curation.dispatch, mode=DISPATCH[mode], seed=seed)
    return replace(
        base,
        rollout=replace(base.rollout, roll_width=base.rollout.workers if coupled else base.rollout.roll_width),
        curation=replace(base.curation, dispatch=dispatch),
    )


def measure(
    base: Config, seeds: int, play: Play, modes: Sequence[Mode] = COMPARED
) -> dict[Mode, list[UtilizationMetrics]]:
    """Play the modes with every seed; return the metrics of each."""
    return by_turns(
        modes, seeds, lambda mode, seed: utilization_metrics(play(circle_config(base, mode, seed), mode, seed), WARM_S)
    )


def step_costs(usage: Iterable[ProcessUsage], start_ms: int, end_ms: int, steps: int) -> dict[str, Any]:
    """Return the cost of a step between two times (epoch ms), in core-milliseconds, by part and in total."""
    usage = list(usage)
    tree, own, loop = (
        by_kind(cpu_seconds(usage, start_ms, end_ms, attrgetter(what))) for what in ("cpu_s", "own_s", "loop_s")
    )
    parts = dict(tree)
    parts["env"], parts["browser"] = own["env"], tree["env"] - own["env"]
    parts["rollout"], parts["engine"] = loop["rollout"], tree["rollout"] - loop["rollout"]
    total = sum(parts.values())
    core_ms = {name: round(1000 * cpu_s / steps, 2) for name, cpu_s in sorted(parts.items())}
    return {
        "core_ms_per_step": core_ms,
        "share": {name: round(cpu_s / total, 3) for name, cpu_s in sorted(parts.items())},
        "all": round(1000 * total / steps, 1),
        "ours": round(sum(value for name, value in core_ms.items() if name not in NOT_OURS), 1),
        "steps": steps,
        "cores": round(1000 * total / (end_ms - start_ms), 2),
    }


def compare_runs(found: dict[Mode, list[UtilizationMetrics]], cpu: dict[Mode, dict[str, Any]]) -> dict[str, Any]:
    """Return medians, ratios to the first mode, and costs, as printed with ``--json``."""
    first = next(iter(found.values()))
    return {
        "modes": {mode: median_metrics(runs) for mode, runs in found.items()},
        "ratios": {mode: median_ratios(runs, first) for mode, runs in found.items()},
        "spread": {mode: ratio_spreads(runs, first) for mode, runs in found.items()},
        "cpu": cpu,
        "seeds": len(first),
    }


def table_rows(comparison: dict[str, Any]) -> list[CircleRow]:
    """Return the rows of the table."""
    return [
        CircleRow(
            mode=mode,
            steps_per_s=round(made["actions_per_min"] / 60, 2),
            trained_steps_per_s=round(made["trained_steps_per_min"] / 60, 2),
            env_utilisation=f"{made['env_utilisation']:.1%}",
            rollout_utilisation=f"{made['rollout_utilisation']:.1%}",
            staleness_max=made["staleness_max"],
            core_ms_per_step=comparison["cpu"][mode]["all"],
            of_them_ours=comparison["cpu"][mode]["ours"],
        )
        for mode, made in comparison["modes"].items()
    ]


class CircleRunner(ModeRunner):
    """Runs a mode for N minutes of wall clock with its configured processes."""

    def __init__(self, minutes: float, tell: Callable[[str], None]) -> None:
        super().__init__(minutes, tell, bounded=limit_run, wired=session_of)


def limit_run(config: Config, minutes: float) -> Config:
    """Return a configuration that only trains, for ``minutes``."""
    if config.workload is not None:
        return decoupling_run.clock_config(config, minutes)
    run = msgspec.structs.replace(config.run, minutes=minutes, demonstrate=False)
    return msgspec.structs.replace(config, run=run, evaluation=msgspec.structs.replace(config.evaluation, episodes=0))


def session_of(made: folder.RunFolder, console: Console, finish: Finish) -> Session:
    """Return the session of a run, which builds the tiny policy if needed; a workload has a stand-in trainer."""
    if made.config().workload is not None:
        return decoupling_run.session_of(made, console, finish)
    found = processes.find_programs()
    run_processes = processes.processes_of(made.config(), made.config_file, found)
    find_policy = functools.partial(processes.find_policy, made, found=found)
    return Session(made, run_processes, finish, console, find_policy=find_policy)


def measure_costs(played: CircleRunner) -> dict[Mode, dict[str, Any]]:
    """Return the cost of a step in the last run of each mode, after its warm-up."""
    found = {}
    for mode, made in played.folders.items():
        phase = made.journal().phase("circle")
        assert phase is not None and phase.ended_ms is not None
        start_ms, end_ms = phase.started_ms + round(1000 * WARM_S), phase.ended_ms
        steps = sum(at_s >= WARM_S for at_s in played.newest[mode].actions)
        samples = read_usage(made.path / "metrics" / USAGE_FILE)
        found[mode] = step_costs(samples, start_ms, end_ms, steps)
    return found
