"""What becomes of orders with which workers have died: suspects alone and late, after three deaths none at all."""

import asyncio
from types import SimpleNamespace
from typing import Any, cast

from tests.unit.clockwork import by_clockwork
from workers.env.health import WorkerHealth
from workers.env.health_gate import HealthGate
from workers.env.lethal_orders import HEALTHY_S, LethalOrders
from workers.runtime.death_counts import DeathCounts, DeathNote


class Orders:
    """A consumer whose group has seen deaths."""

    def __init__(self, deaths: dict[str, int], lethal: dict[str, int] | None = None) -> None:
        self.deaths: DeathCounts[int] = DeathCounts()
        self.deaths.learn(DeathNote(deaths=deaths, lethal=lethal or {}), died=False)
        self.begun: list[tuple[str, float]] = []

    async def begin(self, delivery: Any, name: str) -> None:
        self.begun.append((delivery.event.order_id, asyncio.get_running_loop().time()))


def made(orders: Orders) -> LethalOrders:
    clock = asyncio.get_running_loop().time
    return LethalOrders(cast(Any, orders), HealthGate(WorkerHealth(9), clock), clock)


async def play(lethal: LethalOrders, name: str, task: str) -> str:
    delivery: Any = SimpleNamespace(event=SimpleNamespace(order_id=name))
    if reason := lethal.refusal(delivery, task) or lethal.gate.health.refusal(task, lethal.clock()):
        return reason
    async with lethal.turn(delivery, task):
        await asyncio.sleep(5.0)
    lethal.deaths.finish(name, task)
    return ""


@by_clockwork
async def test_suspects_are_played_alone_once_the_worker_is_healthy():
    orders = Orders({"once": 1, "twice": 2, "beside": 2})
    lethal = made(orders)
    plays = [("a", "new"), ("b", "once"), ("c", "twice"), ("d", "twice"), ("e", "beside"), ("f", "new")]
    assert await asyncio.gather(*(play(lethal, *one) for one in plays)) == [""] * 6
    assert orders.begun == [("a", 0.0), ("b", 0.0), ("f", 0.0), ("c", 30.0), ("d", 35.0), ("e", 40.0)]
    assert HEALTHY_S == 30.0
    assert await play(lethal, "g", "twice") == ""
    assert orders.begun[-1] == ("g", 45.0), "it has been survived"


@by_clockwork
async def test_after_three_deaths_an_order_is_set_aside_and_its_task_rests():
    orders = Orders({"task": 3})
    lethal = made(orders)
    assert (await play(lethal, "a", "task")).startswith("set aside: orders of its task have ended their worker 3 times")
    assert "60 s: its orders have ended their worker again" in await play(lethal, "b", "task")
    assert await play(lethal, "c", "another") == ""
    await asyncio.sleep(60.0)
    assert await play(lethal, "d", "task") == "", "a trial"
    lethal.deaths.learn(DeathNote(begun=("task",)), died=True)
    assert (await play(lethal, "e", "task")).startswith("set aside: orders of its task have ended their worker 1 times")
    assert "120 s: its orders have ended" in await play(lethal, "f", "task")
    assert (orders.deaths.lethal, [name for name, _ in orders.begun]) == ({"task": 2}, ["c", "d"])


@by_clockwork
async def test_a_worker_that_starts_knows_from_the_others_which_tasks_rest():
    lethal = made(Orders({}, {"task": 3}))
    assert "240 s: its orders have ended their worker again" in await play(lethal, "a", "task")
    await asyncio.sleep(240.0)
    assert await play(lethal, "b", "task") == ""
