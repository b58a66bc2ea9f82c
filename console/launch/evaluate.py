"""A held-out evaluation: its orders, and the wait for their trajectories."""

from console.runs import evaluation
from console.runs.evaluation import EvaluationResult
from console.runs.run_follower import RunFollower
from console.runs.run_state import RunState
from dart_streams.bus.clients import Publisher
from dart_streams.config import Config
from dart_streams.config.tasks import TaskSet
from dart_streams.deadline import Deadline
from dart_streams.errors import ServiceUnavailable
from topics import rollout_orders
from topics.rollout_orders import RolloutOrder


async def evaluate(
    config: Config, tasks: TaskSet, follower: RunFollower, publisher: Publisher, version: int
) -> EvaluationResult:
    """Order the missing episodes of ``version`` at each temperature; return the result at the first temperature."""
    each = evaluation.all_orders(config, tasks, version)
    wanted = [order for orders in each for order in orders]
    ordered: set[str] = set()

    def fresh(state: RunState) -> list[RolloutOrder]:
        return [order for order in evaluation.missing_orders(state, wanted) if order.order_id not in ordered]

    def left(state: RunState) -> int:
        return len(wanted) - sum(len(evaluation.final_trajectories(state, orders)) for orders in each)

    deadline = Deadline(config.evaluation.timeout_s)
    while left(follower.progress):
        for order in fresh(follower.progress):
            ordered.add(order.order_id)
            await publisher.publish(rollout_orders.TOPIC, order)
        try:
            await follower.until(
                lambda state: not left(state) or bool(fresh(state)),
                f"the evaluation of version {version}",
                deadline.remaining_s,
            )
        except ServiceUnavailable as error:
            raise ServiceUnavailable(
                f"{error}{left(follower.progress)} of {len(wanted)} evaluation episodes have not finished: "
                "look at the logs of env, rollout and recorder, or raise evaluation.timeout_s"
            ) from None
    return evaluation.read(config, tasks, follower.progress, version)
