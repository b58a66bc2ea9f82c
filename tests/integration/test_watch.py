"""A follower of a run sees its last record."""

from types import SimpleNamespace

import pytest
from aiokafka import TopicPartition

from console.runs import open_orders
from console.runs.run_follower import follow_run
from console.runs.run_state import Retention, RunState
from console.views import report
from dart_streams.bus.clients import Publisher, create_consumer, start_within
from dart_streams.bus.lag import Lag
from dart_streams.episodes.trajectory_summary import broken_trajectory
from tests.events import episode
from topics import rollout_orders, trajectories

NUMBER = 50


@pytest.fixture
def bus(services):
    return services.config().bus


async def test_what_was_published_just_before_the_end_is_seen(bus):
    async with Publisher(bus, "test") as publisher, follow_run(bus, publisher, 60) as watch:
        for number in range(NUMBER):
            await publisher.publish(rollout_orders.TOPIC, episode(number)[0].order)
        await watch.read_final()
        seen = set(watch.progress.orders)
        await publisher.publish(rollout_orders.TOPIC, episode(NUMBER)[0].order)
    assert seen == {f"o{number}" for number in range(NUMBER)}
    assert set(watch.progress.orders) == seen


async def commit_as_env(bus) -> TopicPartition:
    """Commit the only order, as an environment worker does at the end of its episode; return its partition."""
    client = create_consumer(bus, rollout_orders.TOPIC, group="env", client_id="env-0")
    await start_within(client, bus)
    try:
        record = await client.getone()
        await client.commit()
        return TopicPartition(record.topic, record.partition)
    finally:
        await client.stop()


async def test_an_order_whose_trajectory_is_announced_a_moment_later_is_not_lost(bus):
    last = episode(1)[-1]
    finished = broken_trajectory(last, "the test says so")
    async with Publisher(bus, "test") as publisher, follow_run(bus, publisher, 60) as watch:
        await publisher.publish(rollout_orders.TOPIC, last.order)
        place = await commit_as_env(bus)
        read_to_end, seen = watch.read_to_end, []

        async def read_and_announce():
            await read_to_end()
            seen.extend(
                open_orders.lost_orders(watch.progress, [Lag("env", rollout_orders.TOPIC.name, place.partition, 1, 1)])
            )
            await publisher.publish(trajectories.TOPIC, finished)

        watch.read_to_end = read_and_announce
        lags = await watch.read_final()
    assert seen == [last.order.order_id]
    assert open_orders.lost_orders(watch.progress, lags) == open_orders.orders_under_way(watch.progress, lags) == []


@pytest.mark.parametrize("keep", [1, 20])
async def test_what_was_forgotten_of_a_long_run_is_read_again_for_its_report(services, monkeypatch, keep):
    config = services.config()
    reported: list[RunState] = []

    async def write_files(folder, progress, lags, plots):
        reported.append(progress)
        return ""

    monkeypatch.setattr(report, "write_files", write_files)
    orders = {f"o{number}" for number in range(5)}
    async with (
        Publisher(config.bus, "test") as publisher,
        follow_run(config.bus, publisher, 60, keep=Retention(keep, keep)) as watch,
    ):
        for number in range(5):
            last = episode(number)[-1]
            await publisher.publish(rollout_orders.TOPIC, last.order)
            await publisher.publish(trajectories.TOPIC, broken_trajectory(last, "the test says so"))
        await watch.until(lambda state: state.train_finished == 5, "five episodes", 60)
        await report.finish(SimpleNamespace(config=lambda: config), watch, None, None)
        assert len(watch.progress.finished) == min(keep, 5)
    assert reported[0].finished.keys() == reported[0].orders.keys() == orders
    assert reported[0].is_whole
    assert (reported[0] is watch.progress) == (keep == 20)
