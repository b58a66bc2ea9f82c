"""Plays the runs of a comparison in one thread: the half of ``dart-streams bench learning`` that needs torch.

Training sharpens a policy, as a lower temperature does, so a gain at temperatures 0.5 and 0 is more likely skill.
"""

import argparse
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import fmean

import torch

from benchmarks.learning import policy, results, screens, variants
from benchmarks.learning.circle import LearningCircle
from benchmarks.learning.episodes import play, single_order
from benchmarks.learning.results import TEMPERATURES, CurvePoint, Evaluated, LearningRun
from dart_streams.config import Config, tasks
from dart_streams.config.tasks import Task
from dart_streams.episodes.trajectory_summary import summarize
from dart_streams.errors import UserError
from dart_streams.telemetry import setup

MARKS = 4
METRICS = (
    "entropy",
    "grad_norm",
    "clip_share",
    "kl_reference",
    "imitation_nll",
    "value_loss",
    "sequences",
    "updates",
    "mismatch",
    "kl_rollout",
    "truncated_share",
)


ROLLOUTS = {1.0: 3, 0.5: 2, 0.0: 1}
"""Rollouts of each held-out task by temperature; greedy ones are all equal."""
TRAIN_EPISODES = 480
"""Rollouts of the training tasks in all, at temperature 1; at least one of each task."""
CONCURRENCY = 384
SEED = 5
"""Sampling seed of every evaluation."""


def evaluate(
    circle: LearningCircle, temperature: float, rollouts: int | None = None, of: Sequence[Task] = ()
) -> Evaluated:
    """Play every task ``of`` these, by default the held-out ones, with the present policy; record nothing."""
    sampling = circle.config.sampling(temperature)
    answer = circle.policy.answers(torch.Generator().manual_seed(SEED))
    repeated = range(rollouts or ROLLOUTS[temperature])
    tasks = [(task, number) for task in of or circle.tasks.heldout for number in repeated]
    solved: defaultdict[str, list[bool]] = defaultdict(list)
    for start in range(0, len(tasks), CONCURRENCY):
        part = tasks[start : start + CONCURRENCY]
        begun = [circle.begin(single_order(task, "eval", number, sampling)) for task, number in part]
        for (task, _), observations in zip(part, play(begun, answer), strict=True):
            solved[task.page].append(summarize(observations).outcome == "success")
    pages = {page: fmean(results) for page, results in solved.items()}
    return Evaluated(temperature, fmean(pages.values()), pages)


def evaluate_training(circle: LearningCircle) -> Evaluated:
    """Play the training tasks."""
    tasks = circle.tasks.train
    return evaluate(circle, 1.0, max(1, TRAIN_EPISODES // len(tasks)), tasks)


class Player:
    """Plays runs over one recording, each from the same warm policy."""

    def __init__(self, recording: Path, episodes: int, marks: int = MARKS) -> None:
        self.file = recording
        self.recording = screens.read(recording)
        self.episodes = episodes
        self.marks = marks
        self.code = results.code_digest()
        self.before: dict[Path, list[Evaluated]] = {}
        self.train_before: dict[Path, Evaluated] = {}

    def play(self, variant: str, config: Config, seed: int) -> LearningRun:
        """Make one run."""
        started = time.process_time()
        task_set = tasks.load(Path(config.tasks.file))
        folder = policy.warm_policy(config, task_set, self.recording, self.file.parent)
        circle = LearningCircle(config, task_set, self.recording, folder, seed)
        if folder not in self.before:
            self.before[folder] = [evaluate(circle, temperature) for temperature in TEMPERATURES]
            self.train_before[folder] = evaluate_training(circle)
        before = self.before[folder]
        curve = [CurvePoint(0, results.rate_at(before, 1.0))]
        for mark in range(1, self.marks):
            circle.run(self.episodes * mark // self.marks)
            curve.append(CurvePoint(circle.episodes, evaluate(circle, 1.0, rollouts=1).rate))
        circle.run(self.episodes)
        after = [evaluate(circle, temperature) for temperature in TEMPERATURES]
        return LearningRun(
            variant=variant,
            seed=seed,
            made_by=results.made_by(config, self.file.name, self.episodes),
            before=before,
            curve=[*curve, CurvePoint(circle.episodes, results.rate_at(after, 1.0))],
            after=after,
            train_before=self.train_before[folder],
            train_after=evaluate_training(circle),
            steps=circle.policy.version,
            metrics=first_and_last(circle.metrics),
            cpu_s=round(time.process_time() - started, 1),
        )


def first_and_last(metrics: Sequence[dict[str, float]]) -> dict[str, tuple[float, float]]:
    """Return each metric's mean over the first and the last tenth of the steps."""
    tenth = -(-len(metrics) // 10)
    found = {}
    for name in METRICS:
        parts = [[step[name] for step in part if name in step] for part in (metrics[:tenth], metrics[-tenth:])]
        if all(parts):
            found[name] = (round(fmean(parts[0]), 4), round(fmean(parts[1]), 4))
    return found


def compare(
    player: Player, chosen: dict[str, Config], seeds: Sequence[int], file: Path, tell: Callable[[str], None]
) -> None:
    """Append missing runs to ``file``, all variants seed by seed."""
    for seed in seeds:
        for variant, config in chosen.items():
            maker = results.made_by(config, player.file.name, player.episodes)
            if any((run.seed, run.made_by) == (seed, maker) for run in results.read(file)):
                continue
            run = player.play(variant, config, seed)
            results.append(file, run)
            gains = ", ".join(f"{run.gain(one):+.1%} at T={one:g}" for one in TEMPERATURES)
            tell(f"{variant}, seed {seed}: {gains}; {run.steps} steps, {run.cpu_s:g} core-seconds")


def main() -> None:
    """Parse the arguments and play."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("recording", type=Path, help="recorded screens, as `dart-streams bench learning` makes them")
    parser.add_argument("results", type=Path, help="where runs are added to, a line each")
    parser.add_argument("--variants", type=Path, default=variants.FILE)
    parser.add_argument("--only", nargs="*", default=[], help="names of variants; all, if none is given")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--episodes", type=int, default=3200)
    parser.add_argument("--marks", type=int, default=MARKS, help="evaluations of a run, that of the end included")
    arguments = parser.parse_args()
    setup.start_logs("bench")
    torch.set_num_threads(1)
    try:
        known = variants.read(arguments.variants)
        chosen = variants.select_variants(known, arguments.only)
        player = Player(arguments.recording, arguments.episodes, arguments.marks)
        compare(player, chosen, arguments.seeds, arguments.results, lambda text: print(text, flush=True))  # noqa: T201
    except UserError as error:
        sys.exit(f"error: {error}")


if __name__ == "__main__":
    main()
