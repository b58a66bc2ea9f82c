"""What the web page holds of a long run, and how long its views take: a made-up run in the page's own fold."""

import time
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import psutil

from dart_streams.config import Config, parse
from dart_streams.console.runs.run_folder import PhaseLog
from dart_streams.console.runs.run_log import (
    ActionTimes,
    EndHeader,
    ObservationHeader,
    OrderHeader,
    RecordMetadata,
    ResponseHeader,
)
from dart_streams.console.runs.run_state import RunState
from dart_streams.console.views.page import episodes, time_curves, training
from dart_streams.console.views.page.wall import SlotGrid
from topics.curated import CuratedGroup, Member
from topics.curation_log import Applied, Source
from topics.rollout_budgets import RolloutBudget
from topics.rollout_orders import RolloutOrder
from topics.task_difficulty import Cause, TaskDifficulty
from topics.trained import TrainedStep
from topics.trajectories import Trajectory
from topics.values import BlobRef, Sampling
from topics.weights import WeightVersion

GROUP = 8
GROUPS_A_STEP = 4
TASKS = 500
STEP_MS = 3000


class PageCosts(msgspec.Struct, frozen=True, kw_only=True):
    """Memory of the fold (MB, and bytes a trajectory), its time a record, and each view's in milliseconds."""

    trajectories: int
    records: int
    fold_mb: float
    bytes_a_trajectory: int
    fold_us_a_record: float
    views_ms: dict[str, float]


def measure(trajectories: int, steps: int, slots: int) -> PageCosts:
    """Fold a run of so many trajectories of ``steps`` actions, the last ``slots`` of them still under way."""
    config = parse({"env": {"slots": slots}}, "the benchmark")
    state, process = RunState(), psutil.Process()
    before, began, spent_s, records = process.memory_info().rss, time.perf_counter(), 0.0, 0
    for number in range(trajectories + slots):
        made = [*rollout(number, steps, ended=number < trajectories)]
        began = time.perf_counter()
        for topic, event in made:
            state.apply(RecordMetadata(topic, 0, records, number * 100), event)
            records += 1
        spent_s += time.perf_counter() - began
    held = process.memory_info().rss - before
    return PageCosts(
        trajectories=trajectories,
        records=records,
        fold_mb=round(held / 1e6, 1),
        bytes_a_trajectory=held // trajectories,
        fold_us_a_record=round(spent_s / records * 1e6, 2),
        views_ms={name: round(timed(view), 1) for name, view in views(state, config, trajectories * 100).items()},
    )


def views(state: RunState, config: Config, now_ms: int) -> dict[str, Callable[[], Any]]:
    """Return the views as the server calls them."""
    grid = SlotGrid(config)
    grid.update(state)
    return {
        "wall, an update": lambda: grid.update(state),
        "trajectories": lambda: episodes.table(state, {}, None),
        "trajectories, a filter that nothing passes": lambda: episodes.table(state, {"outcome": "cancelled"}, None),
        "group": lambda: training.group("g5", state, config),
        "tasks": lambda: training.tasks(state),
        "task": lambda: training.task("page/task#7", state, config),
        "train steps": lambda: training.train_steps(state),
        "time": lambda: time_curves.over_time(state, PhaseLog(), now_ms, config.env.slots),
        "find": lambda: episodes.find("page/task#7", state),
    }


def timed(view: Callable[[], Any]) -> float:
    """Return the milliseconds of the fastest of three calls, with the encoding."""
    best = float("inf")
    for _ in range(3):
        began = time.perf_counter()
        msgspec.json.encode(view())
        best = min(best, (time.perf_counter() - began) * 1000)
    return best


def rollout(number: int, steps: int, *, ended: bool) -> Iterator[tuple[str, Any]]:
    """Yield the records of one rollout, as they are when decoded, in the order in which they are written."""
    group, task, at_ms = f"g{number // GROUP}", f"page/task#{number // GROUP % TASKS}", number * 100
    identity, order_id = f"01a20c69-{number:08d}-7c7c-a0e8-9f3e27482eaf", f"{group}/{number % GROUP}/0"
    yield (
        "rollout-orders",
        RolloutOrder(
            order_id=order_id,
            group_id=group,
            group_size=GROUP,
            sample=number % GROUP,
            attempt=0,
            task_id=task,
            max_steps=steps,
            purpose="train",
            sampling=Sampling(),
            after_version=0,
        ),
    )
    order = OrderHeader(order_id, "train", task)
    for step in range(steps + ended):
        shot = BlobRef(sha256=f"{number:032x}{step:032x}", size=9000, width=160, height=210)
        times = ActionTimes(1.0, 200.0, 20.0, "click(start_box='(84,120)')") if step else None
        end = EndHeader("success", 1.0) if step == steps else None
        yield (
            "observations",
            ObservationHeader(identity, order, step, end, "env-0", at_ms + step * STEP_MS, times, shot),
        )
        yield "actions", ResponseHeader("rollout-0", f"{identity}/{step}/0", 200.0)
    if ended:
        yield from announced(number, identity, order_id, group, task, steps, at_ms)


def announced(
    number: int, identity: str, order_id: str, group: str, task: str, steps: int, at_ms: int
) -> Iterator[tuple[str, Any]]:
    """Yield what follows the end of a rollout: its summary, decisions and, of the last of a group, what is trained."""
    reward = float(number % 3 == 0)
    cause = Cause(trajectory_id=identity, order_id=order_id, group_id=group, outcome="success", attempt=0)
    yield (
        "trajectories",
        Trajectory(
            trajectory_id=identity,
            order_id=order_id,
            group_id=group,
            group_size=GROUP,
            attempt=0,
            task_id=task,
            purpose="train",
            outcome="success",
            reward=reward,
            steps=steps,
            step_entropies=[0.5] * steps,
            version_min=number // 100,
            version_max=number // 100,
            started_ms=at_ms,
            finished_ms=at_ms + steps * STEP_MS,
        ),
    )
    yield (
        "task-difficulty",
        TaskDifficulty(task_id=task, attempts=8, successes=4.0, success_rate=0.5, longest_success=steps, cause=cause),
    )
    reason = "8 rollouts because 4 of the last 8 succeeded; at most 10 steps, the longest success"
    yield "rollout-budgets", RolloutBudget(task_id=task, rollouts=8, max_steps=steps, reason=reason, cause=cause)
    for agent, topic in (("difficulty", "trajectories"), ("groups", "trajectories"), ("dispatch", "rollout-budgets")):
        source = Source(topic=topic, partition=0, offset=number)
        yield "curation-log", Applied(agent=agent, source=source, decisions=[order_id], state_digest=f"{number:064x}")
    if number % GROUP == GROUP - 1:
        yield from trained(number, group, task)


def trained(number: int, group: str, task: str) -> Iterator[tuple[str, Any]]:
    """Yield a curated group and, of every fourth, the optimiser step and version."""
    first = number - GROUP + 1
    members = [
        Member(
            trajectory_id=f"01a20c69-{one:08d}-7c7c-a0e8-9f3e27482eaf",
            reward=float(one % 3 == 0),
            advantage=0.5,
            selected=[0, 1, 2],
            source="online",
            version_min=first // 100,
            version_max=first // 100,
        )
        for one in range(first, number + 1)
    ]
    yield "curated", CuratedGroup(group_id=group, task_id=task, members=members, mean=0.5, std=0.5)
    index = number // GROUP
    if index % GROUPS_A_STEP == GROUPS_A_STEP - 1:
        step, at_ms = index // GROUPS_A_STEP + 1, number * 100
        groups = [f"g{one}" for one in range(index - GROUPS_A_STEP + 1, index + 1)]
        metrics = {name: 0.5 for name in ("reward", "loss", "entropy", "grad_norm", "kl", "clip_fraction", "tokens")}
        yield (
            "trained",
            TrainedStep(
                train_step=step,
                version=step,
                epoch=1,
                group_ids=groups,
                trajectory_ids=[],
                metrics=metrics,
                at_ms=at_ms,
            ),
        )
        yield (
            "weights",
            WeightVersion(
                model_id="m", version=step, uri="", sha256="", train_step=step, epoch=1, groups_consumed=index
            ),
        )
