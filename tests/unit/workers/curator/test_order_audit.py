"""What the curator's audit ends as lost: what is open before and after the barrier, while it decides on it itself."""

from collections.abc import Callable, Mapping
from typing import Any
from unittest.mock import AsyncMock

import pytest

from benchmarks.curation_world import Odds, task_set
from dart_streams.config import parse
from dart_streams.curation.lost_orders import STAGES, OpenOrder, finish_of, open_orders
from tests.unit.curation.test_lost_orders import LossyCircle, goes_on
from topics import tasks, trajectories
from topics.rollout_orders import RolloutOrder
from topics.tasks import ProposedTask
from topics.values import Purpose
from workers.curator.order_audit import OrderAudit


class Durable:
    """The runner of an agent: gives its state, or None while another curator has it."""

    def __init__(self, circle: LossyCircle, name: str) -> None:
        self.circle, self.name = circle, name
        self.looks: list[bool] = []
        self.is_owned: Callable[[], bool] = lambda: True

    async def published_states(self, *, check: bool = False) -> list[Any]:
        self.looks.append(check)
        return [self.circle.states[self.name]] if self.is_owned() else []


class Barrier:
    """Notes the stages that are passed; ``meanwhile`` is called as the last one is."""

    def __init__(self) -> None:
        self.stages: list[Any] = []
        self.meanwhile: Callable[[], object] = lambda: None

    async def passed(self, stage: Any) -> None:
        self.stages.append(stage)
        if len(self.stages) == len(STAGES):
            self.meanwhile()


class Audited:
    """A circle in which one group's orders are under way, and its audit."""

    def __init__(self, keys: Mapping[str, Any]) -> None:
        config = parse({"env": {"slots": 4, "backend": "simulated"}, **keys})
        self.circle = LossyCircle(config, task_set(7), Odds(faults=0.1), 11)
        goes_on(self.circle, groups=2)
        self.dispatch, self.barrier, self.publisher = (
            Durable(self.circle, "dispatch"),
            Barrier(),
            AsyncMock(bus=config.bus),
        )
        agents = {name: Durable(self.circle, name) for name in self.circle.states} | {"dispatch": self.dispatch}
        self.audit = OrderAudit(agents, self.publisher, self.barrier)  # type: ignore[arg-type]

    @property
    def open(self) -> set[OpenOrder]:
        return open_orders(self.circle.states["dispatch"])

    async def order_again(self, purpose: Purpose) -> list[RolloutOrder]:
        """Lose the orders of a purpose, end them by a round, and return those that follow."""
        circle = self.circle
        circle.settle()
        lost = {order.order_id for order, _ in circle.running if order.purpose == purpose}
        circle.running = [one for one in circle.running if one[0].purpose != purpose]
        assert lost and lost <= await self.ended()
        for call in self.publisher.publish.await_args_list:
            circle.publish(trajectories.TOPIC.name, call.kwargs["record_id"], call.args[1])
        circle.settle()
        return [order for order, _ in circle.running if order.purpose == purpose]

    async def ended(self) -> set[str]:
        """Make a round; return the orders that it ended."""
        await self.audit.round()
        finishes = [call.args for call in self.publisher.publish.await_args_list]
        assert all(topic is trajectories.TOPIC for topic, _ in finishes)
        assert all(event.outcome == "lost" and event.reward is None for _, event in finishes)
        return {event.order_id for _, event in finishes}


@pytest.fixture
def audited() -> Audited:
    return Audited({"tasks": {"proposals": True}})


async def test_orders_open_after_a_barrier_are_ended_as_lost(audited: Audited):
    before = audited.open
    assert await audited.ended() == {order.order_id for order in before} != set()
    assert tuple(audited.barrier.stages) == STAGES
    assert audited.dispatch.looks == [False, False, True], "before it ends any, it looks for another curator"
    run = audited.publisher.bus.run
    assert {call.kwargs["record_id"] for call in audited.publisher.publish.await_args_list} == {
        finish_of(run, order, 0).trajectory_id for order in before
    }


async def test_a_check_whose_order_is_lost_is_made_again(audited: Audited):
    """On Kubernetes no supervisor audits them: four lost checks would keep all later proposals waiting."""
    for number in range(6):
        proposal = ProposedTask(task_id=f"simulated/made#{number}", max_steps=5, maker="m")
        audited.circle.publish(tasks.TOPIC.name, f"p{number}", proposal)
    again = await audited.order_again("check")
    assert [(order.attempt, order.task_id) for order in again] == [(1, f"simulated/made#{n}") for n in range(4)]


async def test_what_ends_or_begins_meanwhile_is_not_lost(audited: Audited):
    before = audited.open

    def meanwhile() -> None:
        audited.circle.end_one()
        audited.circle.settle()

    audited.barrier.meanwhile = meanwhile
    lost = await audited.ended()
    assert lost == {order.order_id for order in before & audited.open}
    assert len(lost) < len(before)


async def test_a_curator_that_was_replaced_during_a_round_ends_nothing(audited: Audited):
    audited.dispatch.is_owned = lambda: len(audited.dispatch.looks) < 3
    assert await audited.ended() == set()
    audited.dispatch.looks.clear()
    audited.dispatch.is_owned = lambda: False
    audited.barrier.stages.clear()
    assert await audited.ended() == set()
    assert audited.barrier.stages == [], "without orders of its own it waits for nothing"
