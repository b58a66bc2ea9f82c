"""What bounds each mode, worked out from the workload alone: the terms beside a comparison's figures. Pure.

With S slots, batches of G groups of N rollouts, and an episode of E seconds on average, which hangs included:

- A coupled cycle lasts the slowest of G N rollouts, the optimiser step and the switch; so its slots are busy for
  ``G N E / (S (slowest of a batch + optimiser + switch))`` of the time, if the batch fits into the slots at once.
- dart with all slots busy opens ``S / (E N)`` groups a second. A group is trained on when its slowest rollout has
  ended, its batch is full and the optimiser step is over; meanwhile versions are made. So full slots need a staleness
  of about ``1 + groups a second (slowest of a group + optimiser) / G``, and the optimiser must make ``groups a second
  / G`` steps.

Curation is left out: it makes groups smaller and episodes shorter in all modes.
"""

import random
import statistics

import msgspec

from benchmarks.modes import DeploymentShape
from dart_streams.config.tasks import Task, TaskSet
from dart_streams.config.workload import Workload, course, typical_steps

GROUPS = 400
"""Groups that are drawn at least; not fewer than a batch has, or its slowest would be too quick."""
BATCHES = 200
FULLNESS = 0.3
"""How full engines are taken to be."""


class ModeBounds(msgspec.Struct, frozen=True):
    """The terms (seconds of the desktops' time), and what they bound."""

    episode_s: float
    slowest_of_group_s: float
    slowest_of_batch_s: float
    coupled_env_utilisation: float
    restart_env_utilisation: float
    groups_per_s: float
    staleness_for_full_slots: float
    trainer_share_for_full_slots: float


def bounds(workload: Workload, tasks: TaskSet, shape: DeploymentShape, rollouts: int) -> ModeBounds:
    """Return the bounds for groups of ``rollouts``."""
    chance = random.Random(workload.seed)
    draws = range(max(GROUPS, shape.batch))
    groups = [drawn_group(workload, chance.choice(tasks.train), rollouts, chance) for _ in draws]
    episode_s = statistics.mean(seconds for group in groups for seconds in group)
    slowest = [max(group) for group in groups]
    batch_s = statistics.mean(max(chance.choices(slowest, k=shape.batch)) for _ in range(BATCHES))
    optimiser_s = statistics.mean(workload.optimiser_s.draw(chance) for _ in range(BATCHES))
    groups_per_s = shape.slots / (episode_s * rollouts)

    def busy(switch_s: float) -> float:
        wave_s = max(batch_s, shape.batch * rollouts * episode_s / shape.slots)
        return shape.batch * rollouts * episode_s / (shape.slots * (wave_s + optimiser_s + switch_s))

    return ModeBounds(
        episode_s=round(episode_s, 1),
        slowest_of_group_s=round(statistics.mean(slowest), 1),
        slowest_of_batch_s=round(batch_s, 1),
        coupled_env_utilisation=round(busy(workload.switch_s), 4),
        restart_env_utilisation=round(busy(workload.restart_s), 4),
        groups_per_s=round(groups_per_s, 4),
        staleness_for_full_slots=round(1 + groups_per_s * (statistics.mean(slowest) + optimiser_s) / shape.batch, 2),
        trainer_share_for_full_slots=round(groups_per_s * optimiser_s / shape.batch, 3),
    )


def drawn_group(workload: Workload, task: Task, rollouts: int, chance: random.Random) -> list[float]:
    """Return how long each rollout of a group takes, with the tries that hang before it."""
    return [rollout_s(workload, task, chance) for _ in range(rollouts)]


def rollout_s(workload: Workload, task: Task, chance: random.Random) -> float:
    """Return how long a rollout takes; one that hangs is played again."""
    drawn = course(workload, task.task_id, typical_steps(task.page) or 1, chance)
    if drawn.hangs_at is None:
        return played_s(workload, drawn.steps, chance) + workload.evaluate_s.draw(chance)
    before_s = played_s(workload, drawn.hangs_at - 1, chance) if drawn.hangs_at else 0.0
    return before_s + workload.call_s + rollout_s(workload, task, chance)


def played_s(workload: Workload, steps: int, chance: random.Random) -> float:
    """Return how long a reset and so many steps take."""
    engine = workload.generation
    acted_s = sum(
        workload.settle_s.draw(chance) + engine.takes_s(engine.tokens.draw(chance), FULLNESS) for _ in range(steps)
    )
    return workload.reset_s.draw(chance) + acted_s
