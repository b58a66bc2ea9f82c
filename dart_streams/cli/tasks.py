"""``dart-streams tasks``: what the data manager knows and decides of each task, and why."""

import asyncio
import contextlib
import difflib
from collections.abc import Mapping, Sequence
from typing import Annotated

import typer
from aiokafka import ConsumerRecord
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from dart_streams.bus.clients import Publisher, event_of
from dart_streams.bus.codec import ID, Undecodable, header
from dart_streams.cli.options import AsJson, ConfigFile, read_config
from dart_streams.cli.output import show
from dart_streams.config import Bus, Config
from dart_streams.curation import dispatch
from dart_streams.curation.reducer import InputRecord
from dart_streams.curation.task_history import TaskHistory, TaskRow
from dart_streams.errors import UserError
from dart_streams.history.run_follower import read_to_end, reading
from topics import BY_NAME, Topic, curated, curation_log, rollout_budgets, rollout_orders, task_difficulty, trajectories
from topics.curation_log import Applied
from topics.rollout_orders import RolloutOrder

READ = (trajectories, task_difficulty, rollout_budgets, rollout_orders, curated, curation_log)
Records = dict[tuple[int, int], InputRecord]


def tasks(
    task: Annotated[str, typer.Argument(help="A task: show its groups instead of all tasks.", show_default=False)] = "",
    config: ConfigFile = None,
    as_json: AsJson = False,
) -> None:
    """Show each task's success rate, budget and groups; or of one task the history of its groups, with the reasons."""
    deployment = read_config(config)
    history = asyncio.run(told(deployment))
    if not task:
        rows = history.rows()
        if as_json or not rows:
            show(rows, as_json=as_json, empty=f"nothing was decided yet under {deployment.bus.prefix!r}")
        else:
            Console().print(table_of(rows))
        return
    if task not in history.tasks:
        near = difflib.get_close_matches(task, history.tasks, n=1)
        raise UserError(f"nothing was decided of task {task!r}" + (f": did you mean {near[0]!r}?" if near else ""))
    show(list(history.tasks[task].groups.values()), as_json=as_json, title=task, empty="no group was opened yet")


def table_of(rows: Sequence[TaskRow]) -> Table:
    """Return a line a task; the reason, which is long, gets what room is left."""
    table = Table(box=None, pad_edge=False, expand=True)
    for name in ("task", "rate", "N", "cap", "groups", "curated", "dropped", "pool"):
        table.add_column(name, no_wrap=True)
    table.add_column("why", no_wrap=True, overflow="ellipsis", ratio=1)
    for row in rows:
        rate = "" if row.success_rate is None else f"{row.success_rate:.2f}"
        numbers = (row.rollouts, row.max_steps or "", row.groups, row.curated, row.dropped, row.pool)
        table.add_row(row.task, rate, *map(str, numbers), escape(row.why))
    return table


async def told(config: Config) -> TaskHistory:
    """Read the run's topics as they are now and fold them, dispatch's inputs in the order that it applied them."""
    found = await everything(config.bus)
    history = TaskHistory(config)
    for record in found[task_difficulty.TOPIC.name].values():
        history.rate(record.event.task_id, record.event.success_rate)
    orders = {record.id: record.event for record in found[rollout_orders.TOPIC.name].values()}
    for record in found[curation_log.TOPIC.name].values():
        if record.event.agent == dispatch.NAME:
            decided(history, record.event, found[rollout_budgets.TOPIC.name], orders)
    for record in found[trajectories.TOPIC.name].values():
        history.trajectory(record)
    for record in found[curated.TOPIC.name].values():
        history.curated(record.event)
    return history


def decided(history: TaskHistory, entry: Applied, budgets: Records, orders: Mapping[str, RolloutOrder]) -> None:
    """Fold one input of dispatch, and the orders that came of it."""
    source = entry.source
    if source.topic == rollout_budgets.TOPIC.name and (source.partition, source.offset) in budgets:
        history.budget(budgets[source.partition, source.offset].event)
    for order_id in entry.decisions:
        if order_id in orders:
            history.order(orders[order_id])


async def everything(bus: Bus) -> dict[str, Records]:
    """Return the records that the topics have now, by topic, and by partition and offset; in order a partition."""
    found: dict[str, Records] = {module.TOPIC.name: {} for module in READ}
    async with (
        Publisher(bus, "tasks") as publisher,
        reading(bus, publisher, tuple(module.TOPIC for module in READ)) as records,
    ):
        async for polled in read_to_end(records):
            for batch in polled.values():
                for one in batch:
                    keep(found, BY_NAME[one.topic.removeprefix(bus.prefix)], one)
    return found


def keep(found: dict[str, Records], topic: Topic, one: ConsumerRecord) -> None:
    """Add a record, if it decodes."""
    with contextlib.suppress(Undecodable):
        identity = (header(one.headers, ID) or b"").decode(errors="replace")
        record = InputRecord(topic.name, one.partition, one.offset, event_of(topic, one), identity, one.timestamp)
        found[topic.name][one.partition, one.offset] = record
