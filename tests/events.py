"""Events of each topic with defaults: a test names only the fields that it is about."""

from typing import Any

from topics.action_requests import ActionRequest
from topics.actions import ActionResponse
from topics.curated import CuratedGroup, Member
from topics.observations import EpisodeEnd, ExecutedAction, Observation
from topics.rollout_orders import RolloutOrder
from topics.trained import TrainedStep
from topics.trajectories import Trajectory
from topics.values import OutcomeKind, Sampling, VersionSpan
from topics.weights import WeightVersion
from topics.weights_serving import WeightsServing


def rollout_order(order_id: str = "o", **changes: Any) -> RolloutOrder:
    """Return an order of one training rollout, alone in its group."""
    fields = {
        "group_id": "g",
        "group_size": 1,
        "sample": 0,
        "attempt": 0,
        "task_id": "simulated/box#1",
        "max_steps": 6,
        "purpose": "train",
        "sampling": Sampling(),
        "after_version": 0,
    }
    return RolloutOrder(order_id=order_id, **fields | changes)


def action_request(request_id: str = "t/0/0", **changes: Any) -> ActionRequest:
    """Return a request with an empty prompt whose deadline has passed."""
    fields = {
        "trajectory_id": "t",
        "step": 0,
        "turns": [],
        "sampling": Sampling(),
        "reply_partition": 0,
        "deadline_ms": 0,
    }
    return ActionRequest(request_id=request_id, **fields | changes)


def action_response(text: str = "", **changes: Any) -> ActionResponse:
    """Return a reply without tokens."""
    fields = {
        "request_id": "t/0/0",
        "trajectory_id": "t",
        "step": 0,
        "tokens": [],
        "logprobs": [],
        "entropies": [],
        "versions": [],
        "prompt_tokens": 0,
        "prompt_sha": "",
        "worker_id": "rollout-0",
        "queue_ms": 0.0,
        "generate_ms": 0.0,
    }
    return ActionResponse(text=text, **fields | changes)


def executed_action(text: str = "", **changes: Any) -> ExecutedAction:
    """Return an action without tokens; ``text`` is its canonical form too."""
    fields = {
        "request_id": "t/0/0",
        "action": text,
        "tokens": [],
        "logprobs": [],
        "entropies": [],
        "versions": [],
        "prompt_sha": "p",
        "queue_ms": 0.0,
        "generate_ms": 0.0,
        "execute_ms": 0.0,
    }
    return ExecutedAction(text=text, **fields | changes)


def observation(step: int = 0, **changes: Any) -> Observation:
    """Return a step without a screenshot or an action, a millisecond after the one before."""
    fields = {
        "trajectory_id": "t",
        "order": rollout_order(),
        "instruction": "Click.",
        "screenshot": None,
        "taken": None,
        "end": None,
        "env_host": "env-0",
        "at_ms": step,
    }
    return Observation(step=step, **fields | changes)


def trajectory(trajectory_id: str = "t", **changes: Any) -> Trajectory:
    """Return a solved training rollout of one step, alone in its group."""
    fields = {
        "order_id": "o",
        "group_id": "g",
        "group_size": 1,
        "attempt": 0,
        "task_id": "simulated/box#1",
        "purpose": "train",
        "outcome": "success",
        "reward": 1.0,
        "steps": 1,
        "step_entropies": [],
        "version_min": 0,
        "version_max": 0,
        "started_ms": 0,
        "finished_ms": 1,
    }
    return Trajectory(trajectory_id=trajectory_id, **fields | changes)


def member(trajectory_id: str = "t", version: int | None = 0, **changes: Any) -> Member:
    """Return an online member with one selected step; all its tokens are of ``version``."""
    fields = {
        "reward": 1.0,
        "advantage": 1.0,
        "selected": [0],
        "source": "online",
        "version_min": version,
        "version_max": version,
    }
    return Member(trajectory_id=trajectory_id, **fields | changes)


def curated_group(group_id: str = "g", *members: Member, **changes: Any) -> CuratedGroup:
    """Return a group of ``members``."""
    fields = {"task_id": "t", "members": list(members), "mean": 0.5, "std": 0.5}
    return CuratedGroup(group_id=group_id, **fields | changes)


def trained_step(train_step: int = 1, **changes: Any) -> TrainedStep:
    """Return an optimizer step that made the version of the same number, without groups and metrics."""
    fields = {
        "version": train_step,
        "epoch": 1,
        "group_ids": [],
        "trajectory_ids": [],
        "metrics": {},
        "at_ms": 0,
    }
    return TrainedStep(train_step=train_step, **fields | changes)


def weight_version(version: int = 0, **changes: Any) -> WeightVersion:
    """Return a full version that the optimizer step of the same number made."""
    fields = {
        "model_id": "tiny",
        "uri": "",
        "sha256": "",
        "train_step": version,
        "epoch": 1,
        "groups_consumed": 0,
    }
    return WeightVersion(version=version, **fields | changes)


def weights_serving(version: int = 0, **changes: Any) -> WeightsServing:
    """Return a heartbeat of the first rollout worker."""
    fields = {"worker_id": "rollout-0", "since_ms": 0, "alive_ms": 0}
    return WeightsServing(version=version, **fields | changes)


def episode(number: int, steps: int = 3, kind: OutcomeKind = "success") -> list[Observation]:
    """Return the observations of one trajectory, as an environment worker publishes them."""
    order = rollout_order(f"o{number}", task_id=f"simulated/box#{number % 5}")
    end = EpisodeEnd(kind=kind, reward=1.0 if kind == "success" else None)
    return [
        observation(
            step,
            trajectory_id=f"t{number}",
            order=order,
            taken=_answer(number, step) if step else None,
            end=end if step == steps else None,
            at_ms=1000 * number + step,
        )
        for step in range(steps + 1)
    ]


def _answer(number: int, step: int) -> ExecutedAction:
    return executed_action(
        "Action: wait()",
        request_id=f"t{number}/{step - 1}/0",
        tokens=[1, 2],
        logprobs=[-0.1, -0.2],
        entropies=[0.2, 0.4],
        versions=[VersionSpan(version=step, start=0, end=2)],
    )
