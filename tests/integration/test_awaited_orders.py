"""The supervisor finds evaluations and demonstrations whose orders are lost, and does not wait for ever."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from console.launch import evaluate, order_audit
from console.launch.order_audit import audit_orders
from console.runs.run_follower import follow_run
from dart_streams.bus import flush_barrier
from dart_streams.bus.clients import Publisher, commit_within, create_consumer, start_within
from dart_streams.config import Config
from dart_streams.config.tasks import load
from dart_streams.curation.order_tracker import ORDER_ATTEMPTS
from dart_streams.episodes.demonstrations import demonstration_order
from tests.task_files import write_tasks
from topics import rollout_orders

BOUND_S = 120.0


@pytest.fixture
def config(services: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Config:
    monkeypatch.setattr(order_audit, "ROUND_INTERVAL_S", 0.2)
    monkeypatch.setattr(flush_barrier, "POLL_INTERVAL_S", 0.1)
    monkeypatch.setattr("console.runs.run_follower.FETCH_MS", 50)
    tasks = write_tasks(tmp_path, "box", train=(0, 2), heldout=(50, 53))
    return services.config(tasks=tasks, evaluation={"episodes": 3})


@contextlib.asynccontextmanager
async def taken(config: Config) -> AsyncIterator[asyncio.Event]:
    """Have a stranger in the place of all env workers, who commits what it takes; what is yielded lets it begin."""
    begin = asyncio.Event()

    async def take() -> None:
        stays = {"group": "env", "session_timeout_ms": 60_000}
        member = create_consumer(config.bus, rollout_orders.TOPIC, client_id="stranger", **stays)
        await start_within(member, config.bus)
        try:
            await begin.wait()
            while True:
                polled = await member.getmany(timeout_ms=200)
                if polled:
                    await commit_within(member, {place: batch[-1].offset + 1 for place, batch in polled.items()})
        finally:
            await member.stop()

    task = asyncio.create_task(take())
    try:
        yield begin
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def test_an_evaluation_orders_lost_rollouts_again_and_ends_with_faults(config: Config):
    shown: list[str] = []
    tasks = load(Path(config.tasks.file))
    async with (
        asyncio.timeout(BOUND_S),
        Publisher(config.bus, "test") as publisher,
        follow_run(config.bus, publisher, 60.0) as follower,
        audit_orders(follower, publisher, shown.append),
        taken(config) as begin,
    ):
        begin.set()
        result = await evaluate.evaluate(config, tasks, follower, publisher, 0)
        await follower.until(lambda _: bool(shown), "the lost orders at the terminal", BOUND_S)
    assert (result.faults, result.overall.trials) == (3, 0)
    orders = [identity for identity in follower.progress.orders if identity.startswith("eval-v0-")]
    assert len(orders) == 3 * ORDER_ATTEMPTS
    assert follower.progress.lost == 3 * ORDER_ATTEMPTS
    assert "orders were lost" in shown[0]


async def test_orders_that_wait_for_an_absent_worker_are_not_lost(config: Config):
    task = load(Path(config.tasks.file)).train[0]
    ordered = demonstration_order(f"demonstration-{task.task_id}", task.task_id, task.max_steps, config)
    async with (
        asyncio.timeout(BOUND_S),
        Publisher(config.bus, "test") as publisher,
        follow_run(config.bus, publisher, 60.0) as follower,
        taken(config) as begin,
    ):
        audit = order_audit.AwaitedOrderAudit(follower, publisher)
        await publisher.publish(rollout_orders.TOPIC, ordered)
        await follower.until(lambda state: len(state.orders) == 1, "the order", BOUND_S)
        waiting = asyncio.create_task(audit.round())
        done, _ = await asyncio.wait({waiting}, timeout=3 * flush_barrier.POLL_INTERVAL_S)
        assert not done
        begin.set()
        await waiting
        await follower.until(lambda state: ordered.order_id in state.finished, "its finish", BOUND_S)
        assert follower.progress.finished[ordered.order_id].outcome == "lost"
        assert audit.open_orders() == set()
