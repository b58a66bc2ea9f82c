"""Agreement of a judge's verdicts with the environment's rewards, by task. Pure."""

from collections.abc import Iterable

import msgspec

from topics.outcomes import is_success
from topics.trajectories import Trajectory
from topics.transitions import REWARDED

EXAMPLES = 3
"""Trajectories that are named for each kind of disagreement of a task."""
ALL = "all tasks"


class TaskAgreement(msgspec.Struct, kw_only=True):
    """Counts of a task's rollouts: verdict against reward, and those without a verdict.

    ``agreement`` is the share of equal ones among those with a verdict, null without any. ``only_judge`` are successes
    to the judge alone, ``only_reward`` to the environment alone; the last fields name trajectories of each.
    """

    task: str
    rollouts: int = 0
    agreement: float | None = None
    both_success: int = 0
    both_failure: int = 0
    only_judge: int = 0
    only_reward: int = 0
    no_verdict: int = 0
    only_judge_examples: list[str] = []
    only_reward_examples: list[str] = []

    def add(self, trajectory: Trajectory, reward: float) -> None:
        """Count a trajectory."""
        self.rollouts += 1
        verdict, success = trajectory.verdict, is_success(reward)
        if verdict is None or verdict.success is None:
            self.no_verdict += 1
        elif verdict.success == success:
            self.both_success += success
            self.both_failure += not success
        else:
            self.only_judge += verdict.success
            self.only_reward += success
            examples = self.only_judge_examples if verdict.success else self.only_reward_examples
            if len(examples) < EXAMPLES:
                examples.append(trajectory.trajectory_id)
        judged = self.rollouts - self.no_verdict
        self.agreement = round((self.both_success + self.both_failure) / judged, 4) if judged else None


def compare_verdicts(trajectories: Iterable[Trajectory]) -> list[TaskAgreement]:
    """Return the agreement over all tasks, then of each task, those with most disagreements first.

    Rollouts of the purposes ``train`` and ``eval`` with a reward count, each once. Partial credit is no success.
    """
    total, tasks, seen = TaskAgreement(task=ALL), dict[str, TaskAgreement](), set[str]()
    for trajectory in trajectories:
        judged = trajectory.purpose in ("train", "eval") and trajectory.outcome in REWARDED
        if not judged or trajectory.reward is None or trajectory.trajectory_id in seen:
            continue
        seen.add(trajectory.trajectory_id)
        for row in (total, tasks.setdefault(trajectory.task_id, TaskAgreement(task=trajectory.task_id))):
            row.add(trajectory, trajectory.reward)
    rows = sorted(tasks.values(), key=lambda row: (-(row.only_judge + row.only_reward), row.task))
    return [total, *rows]
