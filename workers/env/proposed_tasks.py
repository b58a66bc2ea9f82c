"""Proposed tasks of a run, read from the beginning of their topic; pages are files of a folder of this process."""

import asyncio
import contextlib
import tempfile
from hashlib import sha256
from pathlib import Path

from aiokafka import AIOKafkaConsumer

from dart_streams.bus.clients import Publisher, event_of, open_topics
from dart_streams.bus.codec import Undecodable
from dart_streams.config import Config
from dart_streams.config.tasks import Task, TaskSet
from dart_streams.curation.proposals import MOST_PAGES, MOST_PROPOSALS
from dart_streams.errors import ConfigError
from topics import tasks
from topics.tasks import ProposedTask

WAIT_S = 20.0
"""Time in which a proposal has to be read whose order is already here."""
POLL_TIMEOUT_MS = 1000


class ProposedTasks:
    """The tasks by id, read from ``records``. Of two proposals with an id the first counts, as for the curator."""

    def __init__(self, records: AIOKafkaConsumer, folder: Path) -> None:
        self.records = records
        self.folder = folder
        self.tasks: dict[str, Task] = {}
        self._room = MOST_PAGES
        self._added = asyncio.Event()

    def add(self, proposed: ProposedTask) -> None:
        """Add a task, and write its page; ignored are ids that name no task, and what is beyond a run's bounds."""
        place, _, seed = proposed.task_id.rpartition("#")
        environment, _, page = place.partition("/")
        known = proposed.task_id in self.tasks or len(self.tasks) >= MOST_PROPOSALS
        if known or not (page and seed.isdecimal() and seed.isascii()):
            return
        file = ""
        if proposed.document:
            document = proposed.document.encode()
            path = self.folder / f"{sha256(document).hexdigest()}.html"
            if not path.exists():
                if len(document) > self._room:
                    return
                self._room -= len(document)
                path.write_bytes(document)
            file = str(path)
        self.tasks[proposed.task_id] = Task(
            environment=environment, page=page, seed=int(seed), max_steps=proposed.max_steps, split="train", file=file
        )
        self._added.set()

    async def find(self, task_id: str) -> Task:
        """Return a task, which may be a little later than its order; raise ConfigError if it does not come."""
        try:
            async with asyncio.timeout(WAIT_S):
                while task_id not in self.tasks:
                    self._added.clear()
                    await self._added.wait()
        except TimeoutError:
            raise ConfigError(f"unknown task {task_id!r}: neither task set nor proposals have it") from None
        return self.tasks[task_id]

    async def read(self) -> None:
        """Add tasks until cancelled. The curator sends unreadable records to the dead letters."""
        while True:
            for batch in (await self.records.getmany(timeout_ms=POLL_TIMEOUT_MS)).values():
                for record in batch:
                    try:
                        self.add(event_of(tasks.TOPIC, record))
                    except Undecodable:
                        continue


async def open_proposals(config: Config, publisher: Publisher, resources: contextlib.AsyncExitStack) -> ProposedTasks:
    """Return the proposals of a run, whose :meth:`ProposedTasks.read` must run; raise ServiceUnavailable."""
    records = await resources.enter_async_context(open_topics(config.bus, publisher, (tasks.TOPIC,)))
    folder = resources.enter_context(tempfile.TemporaryDirectory(prefix="dart-pages-", ignore_cleanup_errors=True))
    return ProposedTasks(records, Path(folder))


async def find_task(task_set: TaskSet, proposed: ProposedTasks | None, task_id: str) -> Task:
    """Return the task of an order; raise ConfigError if it is unknown."""
    if proposed is None or task_id in task_set:
        return task_set.get(task_id)
    return await proposed.find(task_id)
