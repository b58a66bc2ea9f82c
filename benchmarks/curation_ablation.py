"""What each rule of the data manager is worth on tasks of known difficulty.

``dart-streams bench curation`` runs the circle in memory, once for each configuration of a folder (as shipped,
``deploy/config/ablation``) and seed, with a learner instead of a policy. It is a model, not a measurement of DART: it
shows whether the rules do what they are for, under assumptions that are here:

- A task is solved with probability ``sigmoid(skill)``, skills spread from hopeless to easy. A success takes the task's
  own length and up to two steps more; a failure wastes all the steps it is allowed.
- Training on a group raises its task's skill by ``RATE`` times the mean of ``|advantage| * entropy`` over the trained
  steps, and every other task's by ``SHARED`` of that. Steps of low entropy thus teach little and dilute the mean.
- The price is environment steps until the mean success rate reaches the target.
"""

import math
import statistics
from pathlib import Path
from typing import Any

import msgspec

from benchmarks.curation_world import Odds, SimulatedCircle, play, task_set
from benchmarks.ratios import times
from dart_streams import stateless_random as chance
from dart_streams.config import Config, load
from dart_streams.errors import ConfigError
from topics import trajectories
from topics.curated import CuratedGroup
from topics.rollout_orders import RolloutOrder
from topics.trajectories import Trajectory

TASKS = 40
MAX_STEPS = 15
RATE = 0.5
SHARED = 0.01
TARGET = 0.8
MOST_STEPS = 400_000
CONFIGS = Path(__file__).parents[1] / "deploy/config/ablation"
BASE = "base"
"""The configuration that the others are compared with."""


class SimulatedLearner:
    """The skill (a logit) of each task, and what training adds to it."""

    def __init__(self, task_ids: list[str], seed: int) -> None:
        self.seed = seed
        self.skills = {task_id: 6.0 * chance.share("skill", seed, task_id) - 4.5 for task_id in task_ids}
        self.shared = 0.0

    def rate(self, task_id: str) -> float:
        """Return the success rate of a task."""
        return 1.0 / (1.0 + math.exp(-self.skills[task_id] - self.shared))

    def mean_rate(self) -> float:
        """Return the mean success rate over all tasks."""
        return sum(map(self.rate, self.skills)) / len(self.skills)

    def learn(self, group: CuratedGroup, seen: dict[str, Trajectory]) -> None:
        """Train on the selected steps of a group."""
        taught = [
            abs(member.advantage) * seen[member.trajectory_id].step_entropies[step]
            for member in group.members
            for step in member.selected
        ]
        if taught:
            gain = RATE * sum(taught) / len(taught)
            self.skills[group.task_id] += gain
            self.shared += SHARED * gain


class LearningCircle(SimulatedCircle):
    """A circle whose rollouts succeed as the learner can, and whose trainer teaches it."""

    def __init__(self, config: Config, seed: int) -> None:
        tasks = task_set(TASKS, MAX_STEPS)
        self.learner = SimulatedLearner([task.task_id for task in tasks.train], seed)
        self.seen: dict[str, Trajectory] = {}
        self.steps = 0
        self.learnt = 0
        super().__init__(config, tasks, Odds(), seed)

    def end_first(self) -> None:
        """Let the oldest rollout under way end."""
        order, version = self.running.pop(0)
        trajectory = self.rollout(order, version)
        self.seen[trajectory.trajectory_id] = trajectory
        self.steps += trajectory.steps
        self.publish(trajectories.TOPIC.name, trajectory.trajectory_id, trajectory)

    def rollout(self, order: RolloutOrder, version: int) -> Trajectory:
        """Return how an order ends, by the learner's present skill."""
        needed = 3 + chance.number("length", self.seed, order.task_id) % 6
        needed += chance.number("detour", self.seed, order.order_id) % 3
        lucky = chance.share("luck", self.seed, order.order_id) < self.learner.rate(order.task_id)
        won = lucky and needed <= order.max_steps
        steps = needed if won else order.max_steps
        return msgspec.structs.replace(
            play(order, version, self.odds, self.seed),
            outcome="success" if won else "failure",
            reward=float(won),
            steps=steps,
            step_entropies=[chance.share("entropy", self.seed, order.order_id, step) for step in range(steps)],
        )

    def teach(self) -> None:
        """Train on the groups that wait."""
        self.train()
        for group in self.trainer.trained[self.learnt :]:
            self.learner.learn(group, self.seen)
        self.learnt = len(self.trainer.trained)


def steps_to_target(config: Config, seed: int) -> tuple[int, list[tuple[int, float]]]:
    """Return the environment steps until the target (or the bound), and the curve on the way."""
    circle = LearningCircle(config, seed)
    circle.settle()
    curve = [(0, circle.learner.mean_rate())]
    while curve[-1][1] < TARGET and circle.steps < MOST_STEPS:
        circle.end_first()
        circle.settle()
        circle.teach()
        circle.settle()
        curve.append((circle.steps, circle.learner.mean_rate()))
    return circle.steps, curve[:: max(1, len(curve) // 200)]


def variants(folder: Path) -> dict[str, Config]:
    """Return the configurations of a folder by the names of their files: ``base``, those that add to it, ``all``.

    Raises
    ------
    ConfigError
        If a file is not a configuration, or none is called ``base``.
    """
    files = {file.stem: load(file) for file in sorted(folder.glob("*.toml"))}
    if BASE not in files:
        raise ConfigError(f"{folder}: no {BASE}.toml to compare the other configurations with")
    names = sorted(files, key=lambda name: (name != BASE, name == "all", name))
    return {name if name in (BASE, "all") else f"+{name}": files[name] for name in names}


def compare(seeds: int, plot: Path | None, folder: Path = CONFIGS) -> dict[str, Any]:
    """Return the median and the range of each configuration over the same seeds, and draw their curves."""
    found: dict[str, Any] = {}
    curves = {}
    for variant, config in variants(folder).items():
        runs = [steps_to_target(config, seed) for seed in range(seeds)]
        counts = sorted(steps for steps, _ in runs)
        curves[variant] = [curve for _, curve in runs]
        found[variant] = {"median": round(statistics.median(counts)), "least": counts[0], "most": counts[-1]}
    for figures in found.values():
        figures["of_base"] = times(figures["median"], found[BASE]["median"], 3)
    if plot is not None:
        draw(curves, plot)
    return {"target": TARGET, "tasks": TASKS, "seeds": seeds, "steps_to_target": found}


def draw(curves: dict[str, list[list[tuple[int, float]]]], path: Path) -> None:
    """Plot success over environment steps, a colour a variant and a line a seed."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 5), layout="constrained")
    axes = figure.subplots()
    for index, (variant, lines) in enumerate(curves.items()):
        for number, line in enumerate(lines):
            steps, rates = zip(*line, strict=True)
            axes.plot(steps, rates, color=f"C{index}", alpha=0.6, label=variant if number == 0 else None)
    axes.set(xlabel="environment steps", ylabel="mean success rate", ylim=(0, 1))
    axes.legend()
    figure.savefig(path)
