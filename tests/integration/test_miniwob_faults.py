"""No order is lost when renderers, pages and browsers break while all slots play."""

import asyncio
import contextlib
import itertools
import os
import random
from collections import Counter
from collections.abc import AsyncIterator, Iterator

import msgspec
import psutil
import pytest

from tests.integration.env_harness import Harness, order, serving, worker
from tests.task_files import page_table
from topics.observations import Observation
from topics.rollout_orders import RolloutOrder
from topics.transitions import next_attempt
from workers.env.backends.miniwob import browser
from workers.env.backends.miniwob import capture as capturing
from workers.env.backends.miniwob.oracle import NEXT

SLOTS = 8
BACKLOG = 2 * SLOTS
ATTEMPTS = 3
CALL_TIMEOUT_S = 20.0
"""Beside other tests a page that does nothing wrong may need ten seconds for an answer."""
LOOPS = {
    "click-color": "(() => { while (true) {} })()",
    "click-option": "(document.addEventListener('mousedown', () => { while (true) {} }), {x: 80, y: 120})",
    "click-shades": "(requestAnimationFrame(() => { while (true) {} }), {x: 80, y: 120})",
}
"""Pages that loop for ever, by what their oracle is made to do: at once, at the next click, and in the next frame."""
PAGES = sorted(set(NEXT) - set(LOOPS))
TASKS = "\n".join(page_table(page, "miniwob", 12, train=(0, 90), heldout=(90, 99)) for page in sorted(NEXT))
TEN = ["renderer", "loop", "browser", "renderer", "loop", "renderer", "browser", "loop", "browser", "renderer"]
SHORT = {"begin-frame": [*TEN[:3], "loop", "loop"], "screenshot": TEN[:3]}
FAULTS = dict.fromkeys(SHORT, TEN) if "DART_SLOW_TESTS" in os.environ else SHORT
"""By the way of taking screens: in short, each kind once, and each page that loops in the one that our browser has."""


class Deployment:
    """A steady backlog of demonstrations of one worker; those that end in a fault are ordered again."""

    def __init__(self, harness: Harness) -> None:
        self.harness = harness
        self.numbers = itertools.count()
        self.placed: set[str] = set()
        self.looping: set[str] = set()
        self.again: set[str] = set()
        self.rng = random.Random(0)
        self.open = True

    @property
    def ends(self) -> list[Observation]:
        return [last for ends in self.harness.ended.values() for last in ends]

    @property
    def successes(self) -> int:
        return sum(last.end.kind == "success" for last in self.ends)

    @property
    def faults(self) -> list[Observation]:
        return [last for last in self.ends if last.end.kind != "success"]

    async def place(self, page: str) -> str:
        task = f"miniwob/{page}#{self.rng.randrange(90)}"
        one = order(next(self.numbers), task, max_steps=12, purpose="demonstration")
        await self.publish(one)
        return one.order_id

    async def publish(self, one: RolloutOrder) -> None:
        self.placed.add(one.order_id)
        await self.harness.order(one)

    async def place_again(self) -> None:
        """Order a faulted episode again, as dispatch does; a page that loops is left out."""
        for last in self.faults:
            failed = last.order.order_id
            if failed not in self.unanswered:
                continue
            attempt = next_attempt(last.end.kind, last.order.attempt, ATTEMPTS)
            assert attempt is not None, f"{ATTEMPTS} attempts, the last: {last.end.reason}"
            self.again.add(failed)
            await self.publish(msgspec.structs.replace(last.order, order_id=f"{failed}-{attempt}", attempt=attempt))

    async def feed(self) -> None:
        while True:
            under_way = len(self.placed) - len(self.ends)
            for _ in range(max(0, BACKLOG - under_way) if self.open else 0):
                await self.place(self.rng.choice(PAGES))
            await self.place_again()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(1), self.harness.changed:
                    await self.harness.changed.wait()

    async def until_more_succeed(self, count: int) -> None:
        wanted = self.successes + count
        await self.harness.until(lambda: self.successes >= wanted)

    async def drain(self) -> None:
        """Place no more orders but those of faults, and return when all have ended."""
        self.open = False
        await self.harness.until(lambda: self.placed == set(self.harness.ended) and not self.unanswered)

    @property
    def unanswered(self) -> set[str]:
        """Orders that ended in a fault, and are still to be placed again."""
        return {last.order.order_id for last in self.faults} - self.looping - self.again


@contextlib.asynccontextmanager
async def fed(harness: Harness) -> AsyncIterator[Deployment]:
    deployment = Deployment(harness)
    feeding = asyncio.create_task(deployment.feed())
    try:
        yield deployment
    finally:
        feeding.cancel()
        assert [type(ended) for ended in await asyncio.gather(feeding, return_exceptions=True)] == [
            asyncio.CancelledError
        ]


def browsers() -> list[psutil.Process]:
    return [child for child in psutil.Process().children() if "chromium" in child.name() or "headless" in child.name()]


def renderers() -> Iterator[psutil.Process]:
    for child in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):
            if "--type=renderer" in child.cmdline():
                yield child


async def inject(fault: str, deployment: Deployment, loops: Iterator[str]) -> None:
    match fault:
        case "renderer":
            max(renderers(), key=lambda one: sum(one.cpu_times()[:2])).kill()
        case "browser":
            browsers()[0].kill()
        case "loop":
            name = await deployment.place(next(loops))
            deployment.looping.add(name)
            await deployment.harness.until(lambda: name in deployment.harness.ended)


@pytest.mark.parametrize("capture", FAULTS)
async def test_faults_cost_the_episodes_that_they_hit_and_no_order(services, tmp_path, monkeypatch, capture):
    for page, script in LOOPS.items():
        monkeypatch.setitem(NEXT, page, script)
    # Beside other work a browser of low priority may take longer for a frame than a fault does.
    monkeypatch.setattr(browser, "lower_priority", lambda pid: None)
    monkeypatch.setattr(capturing, "CRASH_S", 60.0)
    (tmp_path / "tasks.toml").write_text(TASKS)
    own = {"isolation": "problem", "last_screen": False, "call_timeout_s": CALL_TIMEOUT_S, "capture": capture}
    config = services.config(
        env={"backend": "miniwob", "slots": SLOTS, "miniwob": own},
        tasks={"file": str(tmp_path / "tasks.toml")},
        run={"drain_s": 20, "state_dir": str(tmp_path)},
    )
    loops = itertools.cycle(LOOPS)
    harness = Harness(config, lambda request: None)
    async with serving(harness), worker(config), fed(harness) as deployment:
        await deployment.until_more_succeed(3 * SLOTS)
        for fault in FAULTS[capture]:
            before = len(deployment.faults)
            await inject(fault, deployment, loops)
            await deployment.until_more_succeed(2 * SLOTS)
            hit = deployment.faults[before:]
            reasons = [last.end.reason for last in hit]
            # A renderer that is killed within a frame takes the whole browser with it, one time in twenty. By then its
            # slot may have the next order.
            assert len(hit) <= {"renderer": SLOTS + 1, "loop": 1, "browser": SLOTS}[fault], f"{fault}: {reasons}"
            if fault == "loop":
                assert {last.order.order_id for last in hit} <= deployment.looping
        assert len(list(renderers())) <= 2 * SLOTS, "pages that loop were left"
        await deployment.drain()
        assert len(deployment.looping) == FAULTS[capture].count("loop")
        assert deployment.looping <= {last.order.order_id for last in deployment.faults}
        assert {(last.end.kind, last.end.reward) for last in deployment.faults} == {("env_error", None)}
        assert {len(ends) for ends in harness.ended.values()} == {1}, "each order is played once"
        tasks = Counter(last.order.task_id for last in deployment.ends if last.order.attempt == 0)
        carried_out = Counter(last.order.task_id for last in deployment.ends if last.end.kind == "success")
        looped = Counter(last.order.task_id for last in deployment.faults if last.order.order_id in deployment.looping)
        assert carried_out + looped == tasks, "each order was carried out, but for the pages that loop"
