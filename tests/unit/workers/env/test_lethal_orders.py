"""What becomes of orders with which workers have died: suspects alone and late, after three deaths none at all."""

import asyncio
import contextlib
from typing import Any, NamedTuple, cast

from tests.unit.clockwork import by_clockwork
from workers.env.health import WorkerHealth
from workers.env.health_gate import HealthGate
from workers.env.lethal_orders import HEALTHY_S, LethalOrders
from workers.runtime.death_counts import DeathCounts


class Order(NamedTuple):
    order_id: str
    died: int


class Delivered(NamedTuple):
    event: Order


class Orders:
    """A consumer with which so many members have died as an order says."""

    def __init__(self, lethal: dict[str, int] | None = None) -> None:
        self.deaths: DeathCounts[int] = DeathCounts()
        self.deaths.lethal.update(lethal or {})
        self.begun: list[tuple[str, float]] = []

    def deaths_with(self, delivery: Delivered) -> int:
        return delivery.event.died

    async def begin(self, delivery: Delivered) -> None:
        self.begun.append((delivery.event.order_id, asyncio.get_running_loop().time()))


def made(orders: Orders) -> LethalOrders:
    def clock() -> float:
        with contextlib.suppress(RuntimeError):
            return asyncio.get_running_loop().time()
        return 0.0

    return LethalOrders(cast(Any, orders), HealthGate(WorkerHealth(9), clock), clock)


def order(name: str, died: int) -> Any:
    return Delivered(Order(name, died))


async def play(lethal: LethalOrders, name: str, died: int, task: str) -> str:
    if reason := lethal.refusal(order(name, died), task):
        return reason
    if reason := lethal.gate.health.refusal(task, lethal.clock()):
        return reason
    async with lethal.turn(order(name, died), task):
        await asyncio.sleep(5.0)
    return ""


@by_clockwork
async def test_orders_that_were_beside_a_death_go_on_and_suspects_are_played_alone_once_the_worker_is_healthy():
    orders = Orders()
    lethal = made(orders)
    plays = [("a", 0), ("b", 1), ("c", 2), ("d", 2), ("e", 0)]
    assert await asyncio.gather(*(play(lethal, name, died, name) for name, died in plays)) == [""] * 5
    assert orders.begun == [("a", 0.0), ("b", 0.0), ("e", 0.0), ("c", HEALTHY_S), ("d", HEALTHY_S + 5.0)]


@by_clockwork
async def test_after_three_deaths_an_order_is_set_aside_and_its_task_rests_twice_as_long_each_time():
    orders = Orders()
    lethal = made(orders)
    assert (await play(lethal, "a", 3, "task")).startswith("set aside: it has ended its worker 3 times")
    assert "60 s: orders of it have ended their worker 1 times over" in await play(lethal, "b", 0, "task")
    assert await play(lethal, "c", 0, "another") == ""
    await asyncio.sleep(60.0)
    assert await play(lethal, "d", 0, "task") == "", "a trial"
    assert (await play(lethal, "e", 1, "task")).startswith("set aside: it has ended its worker 1 times")
    assert "120 s: orders of it" in await play(lethal, "f", 0, "task")
    assert (orders.deaths.lethal, [name for name, _ in orders.begun]) == ({"task": 2}, ["c", "d"])


@by_clockwork
async def test_orders_of_a_suspect_s_task_wait_with_it_and_rest_with_it_without_being_counted():
    orders = Orders()
    lethal = made(orders)
    plays = [("a", 2, "task"), ("b", 0, "task"), ("c", 0, "another")]
    assert await asyncio.gather(*(play(lethal, *one) for one in plays)) == [""] * 3
    assert [name for name, _ in orders.begun] == ["c", "a", "b"]
    assert await play(lethal, "d", 0, "task") == ""
    assert (await play(lethal, "e", 3, "task")).startswith("set aside: it has ended its worker 3 times")
    for died in (3, 2, 0):
        assert "60 s: orders of it have ended their worker 1 times over" in await play(lethal, "f", died, "task")
    assert orders.deaths.lethal == {"task": 1}


@by_clockwork
async def test_a_worker_that_starts_knows_from_the_others_which_tasks_rest():
    lethal = made(Orders({"task": 3}))
    assert "240 s: orders of it have ended their worker 3 times over" in await play(lethal, "a", 0, "task")
    await asyncio.sleep(240.0)
    assert await play(lethal, "b", 0, "task") == ""
