"""Curators that overlap on one partition in every way: each request of each may be held up while others go on."""

import asyncio
import random
from typing import Any
from unittest.mock import AsyncMock

import msgspec
import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st

from benchmarks.curation_world import Odds, SimulatedCircle, task_set
from dart_streams.bus.clients import SendCoalescer
from dart_streams.bus.codec import encode
from dart_streams.config import parse
from dart_streams.curation.journal import JournalInput, record_of
from dart_streams.curation.reducer import Agent, advance
from tests.unit.workers.curator.broker import faust_event, process
from tests.unit.workers.curator.changelog_topic import ChangelogTopic, Table
from topics import BY_NAME, curation_log
from workers.curator import journaled_state
from workers.curator.durable_agent import DurableAgent
from workers.curator.journal_writer import OwnershipLost

CONFIG = parse({"env": {"slots": 4}})
CIRCLE = SimulatedCircle(CONFIG, task_set(5), Odds(faults=0.1, partial=0.1)).play_rounds(40)


def inputs_of(agent: Agent) -> dict[str, list[JournalInput]]:
    """Return the records of each of an agent's topics."""
    reads: dict[str, list[JournalInput]] = {}
    for topic in agent.inputs:
        for offset, written in enumerate(CIRCLE.logs.get(topic.name, [])):
            record = encode(BY_NAME[topic.name], written.event, (), written.id)
            read = JournalInput(topic.name, 0, offset, 1000 + offset, record.key, record.value, record.headers)
            reads.setdefault(topic.name, []).append(read)
    return reads


class Harness:
    """A changelog and the topics that are published to. A curator's requests wait until they are let on, one by one."""

    def __init__(self, agent: Agent) -> None:
        self.agent = agent
        self.inputs = inputs_of(agent)
        self.topic = ChangelogTopic()
        self.published: dict[str, bytes] = {}
        self.log: dict[str, bytes] = {}
        self.waiting: list[tuple[Curator, str, asyncio.Future[None]]] = []
        self.curators: list[Curator] = []

    def publish(self, name: str, records: list[Any]) -> None:
        for record in records:
            identity = dict(record.headers)["id"].decode()
            if name == curation_log.TOPIC.name:
                identity = f"log {identity}"
                self.log.setdefault(identity, record.value)
            assert self.published.setdefault(identity, record.value) == record.value, f"{identity} was decided twice"

    async def quiet(self) -> None:
        """Return when every curator waits for a request or has ended."""
        for _ in range(12):
            await asyncio.sleep(0)

    def start(self, seed: int) -> None:
        curator = Curator(self, seed)
        curator.task = asyncio.create_task(curator.live())
        self.curators.append(curator)

    def let_on(self, choice: int) -> None:
        if self.waiting:
            _, _, request = self.waiting.pop(choice % len(self.waiting))
            if not request.done():
                request.set_result(None)

    def let_on_one(self, curator: "Curator") -> None:
        """Let on one request of this curator, if it waits for any."""
        own = [place for place, (waiting, _, _) in enumerate(self.waiting) if waiting is curator]
        if own:
            self.let_on(own[0])

    def is_at(self, curator: "Curator", request: str) -> bool:
        """Say whether a curator waits for a request of this kind."""
        return any(waiting is curator and what == request for waiting, what, _ in self.waiting)

    async def finish(self, curator: "Curator") -> None:
        """Let one curator's requests on until it has ended; the others stay where they are."""
        while not curator.task.done():
            await self.quiet()
            self.let_on_one(curator)


class Curator(Table):
    """A curator's process, which reads its topics in an order of its own; it is a publisher too."""

    def __init__(self, harness: Harness, seed: int) -> None:
        super().__init__(harness.topic, f"curator-{len(harness.curators)}")
        self.harness = harness
        self.random = random.Random(seed)
        self.bus = CONFIG.bus
        self.stopping = False
        self.task: asyncio.Task[None]

    async def request(self, what: str) -> None:
        let_on: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.harness.waiting.append((self, what, let_on))
        await let_on

    async def send_all(self, name: str, records: list[Any]) -> None:
        await self.request("publish")
        self.harness.publish(name, records)
        await self.request("published")

    async def live(self) -> None:
        """Restore, then apply batch after batch until all is applied or it shall stop; then drain."""
        await self.recover()
        await self.request("assigned")
        agent = DurableAgent(
            self.harness.agent, self.changelog, SendCoalescer(0.0), 60.0, CONFIG.bus.prefix, one_state=True
        )
        agent.connect(self, {})
        while not self.stopping:
            batch = self.batch((await agent.owned_state(0)).state.progress.applied)
            if not batch:
                break
            await process(agent, *batch)
        await agent.drain()

    def batch(self, applied: dict[str, int]) -> list[Any]:
        """Return some of the records that come next, interleaved as they happened to arrive here."""
        left = {
            name: [read for read in reads if read.offset > applied.get(f"{name}/0", -1)]
            for name, reads in self.harness.inputs.items()
        }
        events = []
        for _ in range(self.random.randint(1, 8)):
            names = [name for name, reads in left.items() if reads]
            if names:
                events.append(faust_event(left[self.random.choice(names)].pop(0), lambda: None))
        return events


ACTIONS = st.one_of(
    *[st.tuples(st.just("go on"), st.integers(0, 50))] * 3,
    st.tuples(st.sampled_from(["go on alone", "go on to publish", "die when about to publish"]), st.integers(0, 50)),
    st.tuples(st.just("start"), st.integers(0, 2**16)),
    st.tuples(st.sampled_from(["kill", "stop"]), st.integers(0, 50)),
    st.tuples(st.just("compact"), st.just(0)),
)


async def overlap(agent: Agent, actions: list[tuple[str, int]], wake: list[int]) -> Harness:
    """Start, hold up, wake, stop and kill curators; then let those left go on, and one more finish the work."""
    harness = Harness(agent)
    harness.start(0)
    for action, number in actions:
        await harness.quiet()
        await act(harness, action, number)
    harness.start(1)
    await harness.finish(harness.curators[-1])
    for number in wake:
        await harness.quiet()
        harness.let_on(number)
    for curator in harness.curators:
        await harness.finish(curator)
    harness.start(2)
    await harness.finish(harness.curators[-1])
    ends = await asyncio.gather(*(curator.task for curator in harness.curators), return_exceptions=True)
    for end in ends:
        if isinstance(end, Exception) and not isinstance(end, OwnershipLost):
            raise end
    event(f"{sum(isinstance(end, OwnershipLost) for end in ends)} of {len(ends)} curators lost the partition")
    return harness


async def act(harness: Harness, action: str, number: int) -> None:
    """Do one thing to the harness, or to one of the curators that are alive."""
    alive = [curator for curator in harness.curators if not curator.task.done()]
    match action:
        case "start":
            harness.start(number)
        case "compact":
            harness.topic.compact()
        case "go on":
            harness.let_on(number)
        case "kill" if alive:
            alive[number % len(alive)].task.cancel()
        case "stop" if alive:
            alive[number % len(alive)].stopping = True
        case "go on alone" if alive:
            await go_on(harness, alive[number % len(alive)], "")
        case "go on to publish" | "die when about to publish" if alive:
            curator = alive[number % len(alive)]
            await go_on(harness, curator, "publish")
            if action.startswith("die"):
                curator.task.cancel()


async def go_on(harness: Harness, curator: Curator, request: str) -> None:
    """Let one curator's requests on, a few of them, until it is about to make one of this kind."""
    for _ in range(20):
        await harness.quiet()
        if harness.is_at(curator, request):
            return
        harness.let_on_one(curator)


def check(harness: Harness) -> None:
    """Check that what was published is one history: that of applying the inputs in the order of curation-log."""
    agent, state, again = harness.agent, harness.agent.state(), {}
    reads = {(read.topic, read.offset): read for reads in harness.inputs.values() for read in reads}
    for line in harness.log.values():
        entry = msgspec.json.decode(line, type=curation_log.Applied)
        step = advance(agent, state, record_of(reads[entry.source.topic, entry.source.offset]))
        state = step.state
        assert step.applied == entry
        again |= {decision.id: encode(decision.topic, decision.event, (), "").value for decision in step.decisions}
    decided = {identity: value for identity, value in harness.published.items() if not identity.startswith("log ")}
    assert decided == again
    assert len(harness.log) == len(reads)


@pytest.mark.parametrize("name", ["dispatch", "groups"])
@settings(max_examples=60, deadline=None)
@given(actions=st.lists(ACTIONS, min_size=5, max_size=60), wake=st.lists(st.integers(0, 50), max_size=30))
def test_however_curators_overlap_their_decisions_are_those_of_one_history(name, actions, wake):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(journaled_state, "SNAPSHOT_ENTRIES", 3)
        patch.setattr(journaled_state, "read_log_entries", AsyncMock(return_value=[]))
        check(asyncio.run(overlap(CIRCLE.agents[name], actions, wake)))
