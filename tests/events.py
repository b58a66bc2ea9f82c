"""Events of each topic with defaults: a test names only the fields that it is about."""

import functools
from typing import Any, TypeVar

import msgspec

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

T = TypeVar("T", bound=msgspec.Struct)


def _event(kind: type[T], fields: dict[str, Any], changes: dict[str, Any]) -> T:
    """Return an event; a required field that neither has is 0, empty or None."""
    return kind(**{name: _zero(of) for name, of in _required(kind).items()} | fields | changes)


@functools.cache
def _required(kind: type) -> dict[str, Any]:
    declared = msgspec.inspect.type_info(kind).fields  # type: ignore[attr-defined]
    return {field.name: field.type for field in declared if field.required}


def _zero(kind: Any) -> Any:
    match kind:
        case msgspec.inspect.IntType():
            return 0
        case msgspec.inspect.FloatType():
            return 0.0
        case msgspec.inspect.StrType():
            return ""
        case msgspec.inspect.ListType():
            return []
        case msgspec.inspect.DictType():
            return {}
    return None


def rollout_order(order_id: str = "o", **changes: Any) -> RolloutOrder:
    """Return an order of one training rollout, alone in its group."""
    fields = {"order_id": order_id, "group_id": "g", "group_size": 1, "task_id": "simulated/box#1", "max_steps": 6}
    return _event(RolloutOrder, fields | {"purpose": "train", "sampling": Sampling()}, changes)


def action_request(request_id: str = "t/0/0", **changes: Any) -> ActionRequest:
    """Return a request with an empty prompt whose deadline has passed."""
    return _event(ActionRequest, {"request_id": request_id, "trajectory_id": "t", "sampling": Sampling()}, changes)


def action_response(text: str = "", to: ActionRequest | None = None, **changes: Any) -> ActionResponse:
    """Return a reply without tokens."""
    fields = {name: getattr(to or action_request(), name) for name in ("request_id", "trajectory_id", "step")}
    fields |= {"text": text, "worker_id": "rollout-0"}
    return _event(ActionResponse, fields, changes)


def executed_action(text: str = "", **changes: Any) -> ExecutedAction:
    """Return an action without tokens; ``text`` is its canonical form too."""
    return _event(ExecutedAction, {"text": text, "request_id": "t/0/0", "action": text, "prompt_sha": "b"}, changes)


def observation(step: int = 0, **changes: Any) -> Observation:
    """Return a step without a screenshot or an action, a millisecond after the one before."""
    fields = {"step": step, "trajectory_id": "t", "order": rollout_order(), "instruction": "Click."}
    return _event(Observation, fields | {"env_host": "env-0", "at_ms": step}, changes)


def trajectory(trajectory_id: str = "t", **changes: Any) -> Trajectory:
    """Return a solved training rollout of one step, alone in its group."""
    fields = {
        "trajectory_id": trajectory_id,
        "order_id": "o",
        "group_id": "g",
        "group_size": 1,
        "task_id": "simulated/box#1",
        "purpose": "train",
        "outcome": "success",
        "reward": 1.0,
        "steps": 1,
        "version_min": 0,
        "version_max": 0,
        "finished_ms": 1,
    }
    return _event(Trajectory, fields, changes)


def member(trajectory_id: str = "t", version: int | None = 0, **changes: Any) -> Member:
    """Return an online member with one selected step; all its tokens are of ``version``."""
    fields = {"trajectory_id": trajectory_id, "reward": 1.0, "advantage": 1.0, "selected": [0], "source": "online"}
    return _event(Member, fields | {"version_min": version, "version_max": version}, changes)


def curated_group(group_id: str = "g", *members: Member, **changes: Any) -> CuratedGroup:
    """Return a group of ``members``."""
    fields = {"group_id": group_id, "task_id": "t", "members": list(members), "mean": 0.5, "std": 0.5}
    return _event(CuratedGroup, fields, changes)


def trained_step(train_step: int = 1, **changes: Any) -> TrainedStep:
    """Return an optimizer step that made the version of the same number, without groups and metrics."""
    return _event(TrainedStep, {"train_step": train_step, "version": train_step, "epoch": 1}, changes)


def weight_version(version: int = 0, **changes: Any) -> WeightVersion:
    """Return a full version that the optimizer step of the same number made."""
    fields = {"version": version, "model_id": "tiny", "train_step": version, "epoch": 1}
    return _event(WeightVersion, fields, changes)


def weights_serving(version: int = 0, **changes: Any) -> WeightsServing:
    """Return a heartbeat of the first rollout worker."""
    return _event(WeightsServing, {"version": version, "worker_id": "rollout-0"}, changes)


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
