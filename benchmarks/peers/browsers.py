"""Comparison of environments without policy: ``dart-streams bench browsergym``.

All play the same recorded episodes with the same browser binary, in turns whose order alternates, so that other load
meets all alike. CPU time is that of the whole process tree, Python and Playwright's driver included.
"""

import statistics
import tempfile
from pathlib import Path
from typing import Any

import psutil

from benchmarks.peers import plays
from benchmarks.peers.contestants import Contestant, Ours, Peer, Turn
from benchmarks.peers.plays import Play
from benchmarks.utilization import ratio_to
from dart_streams.config import Config
from dart_streams.config.tasks import TaskSet
from dart_streams.portable_math import interpolate_quantile

EPISODES = 64
"""Recorded episodes, played in a cycle."""
VARIANTS = ("default", "lean", "playwright")
SHIFT = 7
"""Offset of a round's first episode to the previous round's."""


async def measure(config: Config, tasks: TaskSet, rounds: int, seconds: float, processes: list[int]) -> dict[str, Any]:
    """Return each environment's rate and cost over ``rounds`` turns.

    Raises UserError without the peer's environment.
    """
    recorded = await plays.record_plays(config, tasks, EPISODES)
    with tempfile.TemporaryDirectory() as folder:
        contestants = enter(config, recorded, plays.write(recorded, Path(folder) / "plays.json"), processes)
        turns: dict[str, list[Turn]] = {one.name: [] for one in contestants}
        loads = [psutil.getloadavg()[0]]
        try:
            for one in contestants:
                await one.turn(0, one.warm_s)
            for number in range(rounds):
                for one in contestants[:: 1 if number % 2 else -1]:
                    turns[one.name].append(await one.turn(number * SHIFT, seconds))
                loads.append(psutil.getloadavg()[0])
        finally:
            for one in contestants:
                await one.stop()
    return {
        "contestants": {name: contestant_metrics(own, recorded) for name, own in turns.items()},
        "ratios": compare_contestants(turns, contestants[0].name),
        "rounds": rounds,
        "load_average": [round(load, 1) for load in loads],
    }


def enter(config: Config, recorded: list[Play], file: Path, processes: list[int]) -> list[Contestant]:
    """Return all contestants, the baseline first."""
    slots = config.env.slots
    found: list[Contestant] = [
        Ours("ours, as in the demonstration", config, slots, recorded),
        Ours("ours, as in the demonstration", config, 1, recorded),
        Ours("ours, a context an episode", config, slots, recorded, isolation="context", last_screen=True),
        Ours("ours, a context an episode", config, 1, recorded, isolation="context", last_screen=True),
    ]
    return found + [Peer(variant, count, file) for variant in VARIANTS for count in processes]


def contestant_metrics(turns: list[Turn], recorded: list[Play]) -> dict[str, Any]:
    """Return the metrics of one contestant, as median, minimum and maximum over rounds."""
    slots = [slot for turn in turns for slot in turn.slots]
    ends = [end for slot in slots for end in slot.ends]
    return {
        "steps_per_s": median_range([turn.steps_per_s for turn in turns]),
        "core_ms_per_step": median_range([turn.core_ms() for turn in turns]),
        "of_which": {
            kind: round(statistics.median(turn.core_ms(kind) for turn in turns), 1) for kind in turns[0].cpu_s
        },
        "reset_ms_p50": round(
            1000 * interpolate_quantile(sorted(taken for slot in slots for taken in slot.reset_s) or [0.0], 0.5), 1
        ),
        "step_ms_p50": round(
            1000 * interpolate_quantile(sorted(taken for slot in slots for taken in slot.step_s) or [0.0], 0.5), 1
        ),
        "episodes": len(ends),
        "faults": sum(slot.faults for slot in slots),
        "steps": sum(turn.steps for turn in turns),
        "same_reward": sum(
            (done, reward) == (recorded[number].done, recorded[number].reward) for number, done, reward in ends
        ),
    }


def compare_contestants(turns: dict[str, list[Turn]], baseline: str) -> dict[str, dict[str, list[float]]]:
    """Return each contestant's ratios to the baseline, round by round."""
    return {
        name: {
            "steps_per_s": median_range(
                [ratio_to(a.steps_per_s, b.steps_per_s, 4) for a, b in zip(own, turns[baseline], strict=True)], 3
            ),
            "core_ms_per_step": median_range(
                [ratio_to(a.core_ms(), b.core_ms(), 4) for a, b in zip(own, turns[baseline], strict=True)], 2
            ),
        }
        for name, own in turns.items()
        if name != baseline
    }


def median_range(values: list[float], digits: int = 1) -> list[float]:
    """Return median, minimum and maximum."""
    return [round(one, digits) for one in (statistics.median(values), min(values), max(values))]
