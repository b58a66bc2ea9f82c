"""A table and a publisher of a few lines, which note the order of an agent's effects, and a stream."""

import asyncio
from collections.abc import AsyncIterator, Callable
from types import SimpleNamespace
from typing import Any

import msgspec

from benchmarks.curation_world import Odds, play, task_set
from dart_streams.bus.clients import SendCoalescer
from dart_streams.bus.codec import encode
from dart_streams.config import parse
from dart_streams.curation.agents import bind_agents
from dart_streams.curation.changelog import parse_key
from dart_streams.curation.journal import JournalInput
from tests import events
from tests.unit.workers.curator.changelog_topic import ChangelogTopic, Table
from topics import trajectories
from workers.curator import agents
from workers.curator.durable_agent import DurableAgent

CONFIG = parse({})
DIFFICULTY = bind_agents(CONFIG, task_set(3))[0]


WRITTEN = {b"claim": "claimed", b"snapshot": "snapshot"}


class Broker(Table):
    """A curator's table and publisher that note what they are given, in order, as long as they are up."""

    def __init__(self, topic: ChangelogTopic | None = None, owner: str = "curator-0") -> None:
        super().__init__(topic or ChangelogTopic(), owner)
        self.bus = CONFIG.bus
        self.effects: list[str] = []
        self.published: dict[str, list[str]] = {}
        self.up = True
        self.inputs: dict[int, Any] = {}
        """What the input topic has, by offset, where the consumer does not deliver all of it."""
        self.inputs_read = 0

    async def send_changelog(self, partition: int, key: bytes, value: bytes | None) -> Any:
        self.effects.append("deleted" if value is None else WRITTEN.get(parse_key(key).kind, "journaled"))
        return await super().send_changelog(partition, key, value)

    async def send_all(self, name, records) -> None:
        if not self.up:
            raise ConnectionError("the broker is down")
        self.effects.append("published")
        self.published.setdefault(name, []).extend(dict(record.headers)["id"].decode() for record in records)

    async def send(self, name: str, *_: Any) -> None:
        self.effects.append(f"sent to {name}")

    async def read_inputs(self, topic: str, partition: int, offset: int, stop: int | None) -> list[Any]:
        self.inputs_read += 1
        assert stop is not None
        return [self.inputs[at] for at in range(offset, stop) if at in self.inputs]

    def has(self, *offsets: int) -> None:
        """Let the input topic have these records."""
        self.inputs |= {offset: self.event(offset).message for offset in offsets}

    def agent(self) -> DurableAgent:
        agent = DurableAgent(DIFFICULTY, self.changelog, SendCoalescer(0.0), 60.0, CONFIG.bus.prefix, one_state=False)
        agent.connect(self, {})
        return agent

    async def owning(self) -> DurableAgent:
        """Return an agent that has claimed the partition."""
        agent = self.agent()
        await agent.owned_state(0)
        self.effects.clear()
        return agent

    def event(self, offset: int, value: bytes | None = None, generation: int = 1) -> SimpleNamespace:
        """Return Faust's event of a finished rollout."""
        order = events.rollout_order(f"g{offset:06d}/0/0", group_id=f"g{offset:06d}")
        record = encode(trajectories.TOPIC, play(order, 0, Odds(), 0), (), f"t{offset}")
        read = JournalInput("trajectories", 0, offset, 1500, record.key, value or record.value, record.headers)
        return faust_event(read, lambda: self.effects.append("acknowledged"), generation)


def faust_event(read: JournalInput, ack: Callable[[], None], generation: int = 1) -> SimpleNamespace:
    """Return Faust's event of a record."""
    fields = msgspec.structs.asdict(read) | {"topic": CONFIG.bus.prefix + read.topic, "timestamp": read.at_ms / 1000}
    return SimpleNamespace(message=SimpleNamespace(**fields, generation_id=generation), ack=ack)


class Stream:
    """A stream of some events, which are in its buffer; more may be put there until it is closed."""

    def __init__(self, *events: Any) -> None:
        self.channel = SimpleNamespace(queue=asyncio.Queue())
        for event in events:
            self.put(event)

    def put(self, event: Any) -> None:
        self.channel.queue.put_nowait(event)

    def close(self) -> None:
        self.put(None)

    def noack(self) -> "Stream":
        return self

    async def events(self) -> AsyncIterator[Any]:
        while (event := await self.channel.queue.get()) is not None:
            yield event


async def process(agent: DurableAgent, *events: Any) -> None:
    """Run the agent's function over a stream of these events."""
    stream = Stream(*events)
    stream.close()
    await agents.BODIES[agent.reducer.name](agent, stream)  # type: ignore[arg-type]
