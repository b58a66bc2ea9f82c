"""Failing resets set a task aside, or make a host give its orders to others and come back."""

import itertools
from collections.abc import Callable, Iterator
from typing import ClassVar

import pytest
from structlog.testing import capture_logs

from dart_streams.deadline import Deadline
from tests.integration.env_harness import BOUND_S, Harness, order, played_config, serving, solve, worker
from topics.observations import Observation
from workers.env import health, main
from workers.env.backends.simulated import SimulatedBackend, SimulatedEnvironment
from workers.env.environment import EnvironmentFault
from workers.env.health import RestRule

SLOTS = 4
BATCH = 20


class Breakable(SimulatedBackend):
    """Makes environments whose reset fails where ``broken`` says: a host's, or a page's."""

    broken: ClassVar[set[str]] = set()
    tried: ClassVar[list[str]] = []
    hosts = itertools.count()

    def __init__(self, config):
        super().__init__(config)
        self.host = f"host-{next(Breakable.hosts)}"

    async def open(self, task) -> SimulatedEnvironment:
        if {self.host, task.page} & Breakable.broken:
            Breakable.tried.append(task.page)
            raise EnvironmentFault(f"{self.host} makes no environment for {task.page}")
        return await super().open(task)


@pytest.fixture
def config(services, tmp_path, monkeypatch):
    """A configuration whose workers' environments can be broken; rests are short."""
    monkeypatch.setattr(main, "backend_of", Breakable)
    monkeypatch.setattr(Breakable, "broken", set())
    monkeypatch.setattr(Breakable, "tried", [])
    monkeypatch.setattr(Breakable, "hosts", itertools.count())
    monkeypatch.setattr(health, "SLOT", RestRule(3, 0.05, 0.1))
    monkeypatch.setattr(health, "TASK", RestRule(3, 600.0, 600.0))
    monkeypatch.setattr(health, "HOST", RestRule(8, 5.0, 20.0))
    monkeypatch.setattr(health, "HOST_SPAN_S", 0.0)
    return played_config(services, tmp_path, slots=SLOTS)


async def order_until(
    harness: Harness, numbers: Iterator[int], condition: Callable[[dict[str, Observation]], bool]
) -> None:
    """Order episodes of two pages, a batch at a time, until a condition on the ends of all (by order) holds.

    Which host of a group plays how many is up to when each has joined it.
    """
    deadline = Deadline(BOUND_S)
    while not condition({name: ends[0] for name, ends in harness.ended.items()}):
        assert not deadline.expired
        batch = list(itertools.islice(numbers, BATCH))
        await harness.order(*(order(n, f"simulated/{('box', 'steps-3')[n % 2]}#{n % 50}") for n in batch))
        await harness.until(lambda batch=batch: {f"o{n}" for n in batch} <= harness.ended.keys())


async def test_a_host_whose_resets_fail_gives_its_orders_away_and_comes_back(config):
    Breakable.broken = {"host-0"}
    harness, numbers = Harness(config, solve), itertools.count()
    with capture_logs() as logs:

        def drained_and_replaced(ends: dict[str, Observation]) -> bool:
            played = {last.end.kind for last in ends.values()}
            return "success" in played and any(line["event"] == "host drained" for line in logs)

        async with serving(harness), worker(config, "env-0"), worker(config, "env-1"):
            await order_until(harness, numbers, drained_and_replaced)
            ends = [last for lasts in harness.ended.values() for last in lasts]
            Breakable.broken.clear()
            failed = [last for last in ends if last.end.kind != "success"]
            [broken] = {last.env_host for last in failed}

            def plays_again(ends: dict[str, Observation]) -> bool:
                return any(last.env_host == broken and last.end.kind == "success" for last in ends.values())

            await order_until(harness, numbers, plays_again)
    assert {(last.end.kind, last.end.reward) for last in failed} == {("env_error", None)}
    assert {last.env_host for last in ends if last.end.kind == "success"} == {"env-0", "env-1"} - {broken}
    trials = sum(line["event"] == "host tries an order again" for line in logs)
    assert 8 <= len(failed) <= 8 + SLOTS + trials
    drained = [line for line in logs if line["event"] == "host drained"]
    assert drained[0]["rest_s"] == 5.0
    assert "host-0 makes no environment" in drained[0]["reason"]
    assert any(line["event"] == "host takes orders again" for line in logs)


async def test_a_task_whose_set_up_fails_is_set_aside_and_named(config):
    Breakable.broken = {"steps-3"}
    harness = Harness(config, solve)
    with capture_logs() as logs:
        async with serving(harness), worker(config, "env-0"):
            await harness.order(*(order(n, f"simulated/{('box', 'steps-3')[n % 2]}#0") for n in range(40)))
            await harness.until(lambda: len(harness.ended) == 40)
    kinds = {n: harness.outcome(n) for n in range(40)}
    assert kinds == {n: "env_error" if n % 2 else "success" for n in range(40)}
    assert 3 <= len(Breakable.tried) <= 3 + SLOTS
    reasons = [harness.ended[f"o{n}"][0].end.reason for n in range(1, 40, 2)]
    refused = [reason for reason in reasons if reason.startswith("set aside on this host")]
    assert len(refused) == 20 - len(Breakable.tried)
    assert all("host-0 makes no environment for steps-3" in reason for reason in reasons)
    [named] = [line for line in logs if line["event"] == "task set aside"]
    assert (named["task"], named["rest_s"]) == ("simulated/steps-3#0", 600.0)
