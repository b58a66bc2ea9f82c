"""Environments side by side, without policy: ``dart-streams bench browsergym``.

All play the same recorded episodes with the same browser program, in turns of some seconds each whose order changes,
so that whatever else the machine does meets all of them. Resets, steps and the screens after each are timed; CPU time
is that of the whole process tree, the peer's Python and Playwright's driver included.
"""

import statistics
import tempfile
from pathlib import Path
from typing import Any

import psutil

from benchmarks.peers import plays
from benchmarks.peers.contestants import Contestant, Ours, Peer, Turn
from benchmarks.peers.plays import Play
from benchmarks.ratios import ratio_to
from dart_streams.config import Config
from dart_streams.config.tasks import TaskSet
from dart_streams.quantiles import interpolate_quantile

EPISODES = 64
"""Recorded ones; players go round."""
VARIANTS = ("default", "lean", "playwright")
SHIFT = 7
"""Episodes by which a round begins later than the one before."""


async def measure(config: Config, tasks: TaskSet, rounds: int, seconds: float, processes: list[int]) -> dict[str, Any]:
    """Return what each environment does a second and costs a step, over ``rounds`` turns of ``seconds`` each.

    Raises
    ------
    UserError
        If the peer's virtual environment is missing.
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
    """Return all contestants; the first is the one that others are compared with."""
    slots = config.env.slots
    found: list[Contestant] = [
        Ours("ours, as in the demonstration", config, slots, recorded),
        Ours("ours, as in the demonstration", config, 1, recorded),
        Ours("ours, a context an episode", config, slots, recorded, isolation="context", last_screen=True),
        Ours("ours, a context an episode", config, 1, recorded, isolation="context", last_screen=True),
    ]
    return found + [Peer(variant, count, file) for variant in VARIANTS for count in processes]


def contestant_metrics(turns: list[Turn], recorded: list[Play]) -> dict[str, Any]:
    """Return the figures of one contestant; of those by round the median, the smallest and the largest."""
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
    """Return each contestant's figures as multiples of the baseline's, round by round."""
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
    """Return the median, the smallest and the largest."""
    return [round(one, digits) for one in (statistics.median(values), min(values), max(values))]
