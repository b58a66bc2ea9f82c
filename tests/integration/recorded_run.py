"""A small run played in memory, with real episodes, the real data manager and real screens, as a bundle.

Episodes run concurrently, so ids, times and the order of observations differ from run to run. What is decided does
not: :func:`missed_click` says how each order ends, whatever the machine's speed, and what else is random is drawn from
a seed of the order and the step. So all runs of a length have the same tasks, outcomes, groups, selected steps and
versions; ``tests/unit/console/runs/test_recorded_run.py`` has what the users of a run presume.
"""

import asyncio
import hashlib
import math
import random
from pathlib import Path
from typing import Any, cast

import msgspec
import tomli_w

import topics
from console.bundles.bundle_inputs import CONFIG, TASKS, TOKENS
from console.runs import evaluation
from console.runs.bundle import Blob, BundleRecord, Manifest, Writer
from console.runs.run_folder import without_nulls
from console.runs.token_texts import format_pieces
from dart_streams.bus.clients import Publisher
from dart_streams.bus.codec import encode
from dart_streams.clock import now_ms
from dart_streams.config import Config
from dart_streams.config.tasks import TaskSet, parse
from dart_streams.curation.in_memory import InMemoryCircle
from dart_streams.curation.order_tracker import parse_order_id
from dart_streams.curation.reducer import Agent, InputRecord, ReducerResult
from dart_streams.episodes.episode import Episode
from dart_streams.screens import smart_resize
from dart_streams.store import AsyncStore
from examples.in_memory_run import InMemoryRun, ObservationLog
from tests import events
from topics.action_requests import ActionRequest
from topics.actions import ActionResponse
from topics.rollout_orders import RolloutOrder
from topics.trained import TrainedToken
from topics.values import VersionSpan
from workers.env.backends.simulated import SIZE, SimulatedBackend, opposite_place, required_clicks
from workers.env.episode_runner import EpisodeRunner
from workers.env.policy_client import PolicyClient

HOSTILE = "<img src=x onerror=\"document.title='owned'\"><script>document.title='owned'</script>"
"""What an agent may write, and a page or a task be called."""
PIECES = {number: f" word{number}".encode() for number in range(500)}
"""The bytes of the tokens that the answers have."""
EQUAL_EVERY = 4
"""Of this many groups, the last has only failures: its rewards are equal, and it is not curated."""
LEARNT_BY = 4
"""The version from which on more rollouts of a group succeed."""
PAGES = [
    {"environment": "simulated", "page": page, "max_steps": 5, "train_seeds": [0, 6], "heldout_seeds": [100, 102]}
    for page in ("box", "steps-3")
]


class RecordingCircle(InMemoryCircle):
    """Keeps when each record was written, and the curation log."""

    def __init__(self, config: Config, tasks: TaskSet) -> None:
        self.written_ms: dict[tuple[str, int], int] = {}
        super().__init__(config, tasks)

    def publish(self, topic: str, record_id: str, event: Any) -> None:
        super().publish(topic, record_id, event)
        self.written_ms[topic, len(self.logs[topic]) - 1] = now_ms()

    def apply(self, agent: Agent, record: InputRecord) -> ReducerResult:
        result = super().apply(agent, record)
        if result.applied is not None:
            self.publish(
                topics.curation_log.TOPIC.name, f"{agent.name}/{record.topic}/0/{record.offset}", result.applied
            )
        return result


class RecordingLog(ObservationLog):
    """Keeps every observation and screenshot."""

    def __init__(self, circle: RecordingCircle) -> None:
        super().__init__()
        self.circle = circle
        self.blobs: dict[str, bytes] = {}

    async def publish(self, topic: topics.Topic, event: Any, **headers: Any) -> None:
        await super().publish(topic, event, **headers)
        self.circle.publish(topic.name, f"{event.trajectory_id}/{event.step}", event)

    async def put_blob(self, data: bytes, *_: Any) -> None:
        self.blobs[hashlib.sha256(data).hexdigest()] = data


class RecordingEpisodes(EpisodeRunner):
    """Keeps which order each trajectory plays."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.orders: dict[str, RolloutOrder] = {}

    def new_episode(self, order: RolloutOrder, max_steps: int) -> Episode:
        episode = super().new_episode(order, max_steps)
        self.orders[episode.trajectory_id] = order
        return episode


def succeeds(order: RolloutOrder) -> bool:
    """Say whether an order's episode is to succeed.

    Of a group that is curated, some rollouts fail and some succeed, more of them from a version on. In the first
    evaluation a third of the episodes succeed; in a later one all but an eighth, and the first episode of each task.
    """
    if order.purpose == "eval":
        return order.sample % 8 != 7 if order.after_version else order.sample % 3 == 2
    key = parse_order_id(order.order_id)
    assert key is not None
    if key.number % EQUAL_EVERY == EQUAL_EVERY - 1:
        return False
    return order.sample % 2 == 1 or (order.sample % 4 == 2 and order.after_version >= LEARNT_BY)


def missed_click(order: RolloutOrder) -> int | None:
    """Return the click that is to go beside the box and so ends the episode; None for a success."""
    page = order.task_id.partition("/")[2].partition("#")[0]
    return None if succeeds(order) else order.sample % required_clicks(page)


class Answers:
    """Stands for the rollout workers: clicks the box, or beside it, as :func:`missed_click` says."""

    partition = 0

    def __init__(self, run: "RecordedRun") -> None:
        self.run = run
        policy = run.config.policy
        self.image_size = smart_resize(*SIZE, policy.min_pixels, policy.max_pixels)

    async def request(self, request: ActionRequest, timeout_s: float) -> ActionResponse:
        version = self.run.trainer.version
        order = self.run.episodes.orders[request.trajectory_id]
        rng = random.Random(f"{order.order_id}/{request.step}")
        x, y = map(int, (request.turns[1].text or "").partition("(")[2].partition(")")[0].split(","))
        if request.step == missed_click(order):
            x, y = opposite_place((x, y), self.image_size)
        text = f"Thought: {HOSTILE}\nAction: click(start_box='({x},{y})')"
        logprobs = [-rng.expovariate(1.5) for _ in range(14)]
        await asyncio.sleep(rng.uniform(0.001, 0.01))
        response = events.action_response(
            text,
            to=request,
            tokens=[rng.randrange(500) for _ in logprobs],
            logprobs=logprobs,
            entropies=[abs(rng.gauss(0.6, 0.4)) for _ in logprobs],
            versions=[
                VersionSpan(version=max(0, version - 1), start=0, end=5),
                VersionSpan(version=version, start=5, end=14),
            ],
            queue_ms=rng.uniform(0, 3),
            generate_ms=rng.uniform(2, 9),
        )
        self.run.circle.publish("actions", request.request_id, response)
        return response


class RecordedRun(InMemoryRun):
    """The run; its trainer announces steps and versions, and a worker that it serves them."""

    def __init__(self, config: Config, tasks: TaskSet) -> None:
        circle = RecordingCircle(config, tasks)
        super().__init__(config, tasks, SimulatedBackend(config), lambda _: "", circle)
        self.log: RecordingLog = RecordingLog(circle)
        store, publisher = cast(AsyncStore, self.log), cast(Publisher, self.log)
        self.episodes: RecordingEpisodes = RecordingEpisodes(
            config, "env-0", self.backend, store, publisher, cast(PolicyClient, Answers(self))
        )
        self.taken: list[str] = []
        self.steps = 0

    async def evaluated(self, rollouts: int) -> None:
        """Play, with an evaluation before and after, as a run does."""
        await self.evaluate()
        await self.run(rollouts)
        await self.evaluate()

    async def evaluate(self) -> None:
        """Play the held-out tasks with the version that there is."""
        for order in evaluation.build_orders(self.config, self.tasks, self.trainer.version):
            self.circle.publish(topics.rollout_orders.TOPIC.name, order.order_id, order)
        wanted = [order for order in self.circle.poll(topics.rollout_orders.TOPIC.name) if order.purpose == "eval"]
        await self.backend.start()
        try:
            for start in range(0, len(wanted), self.config.env.slots):
                for trajectory in await asyncio.gather(*map(self.play, wanted[start : start + self.config.env.slots])):
                    self.circle.publish(topics.trajectories.TOPIC.name, trajectory.trajectory_id, trajectory)
        finally:
            await self.backend.stop()
        self.circle.settle()

    def train(self) -> None:
        for group in self.circle.poll(topics.curated.TOPIC.name):
            self.taken.append(group.group_id)
            version = self.trainer.take(group)
            if version is None:
                continue
            self.steps += 1
            metrics = {
                "reward": group.mean,
                "loss": math.exp(-self.steps / 9),
                "entropy": 1 / (1 + self.steps),
                "kl_reference": 0.01 * self.steps,
                "clip_share": 0.1 / self.steps,
                f"reward/{group.task_id.partition('#')[0]}": group.mean,
            }
            step = events.trained_step(
                self.steps,
                version=version.version,
                epoch=version.epoch,
                group_ids=self.taken,
                trajectory_ids=[member.trajectory_id for member in group.members],
                metrics=metrics,
                at_ms=now_ms(),
                top_tokens=[
                    TrainedToken(
                        trajectory_id=member.trajectory_id,
                        step=member.selected[0],
                        index=5,
                        token=17,
                        logprob=-0.7,
                        log_ratio=0.4,
                        weight=1.0,
                        gradient_share=0.125,
                    )
                    for member in [one for one in group.members if one.selected][:2]
                ],
            )
            self.circle.publish(topics.trained.TOPIC.name, f"step-{self.steps}", step)
            self.taken = []
            self.circle.publish(topics.weights.TOPIC.name, "", version)
            serving = events.weights_serving(version.version, since_ms=now_ms(), alive_ms=now_ms(), pause_ms=11.5)
            self.circle.publish(topics.weights_serving.TOPIC.name, "", serving)
        self.circle.settle()


def settings(slots: int = 8, step_ms: float = 20, run: str = "recorded") -> Config:
    from dart_streams.config import parse as parse_config

    return parse_config(
        {
            "bus": {"prefix": f"dart.{run}."},
            "env": {
                "backend": "simulated",
                "slots": slots,
                "episode_timeout_s": 3600.0,
                "simulated": {"last_screen": True, "reset_ms": 1.5 * step_ms, "step_ms": step_ms},
            },
            "trainer": {"groups_per_step": 1},
            "curation": {"pool": {"enabled": False}},
            "evaluation": {"episodes": 24},
        },
        "the recorded run",
    )


def played(config: Config, rollouts: int) -> RecordedRun:
    run = RecordedRun(config, parse({"pages": PAGES}, "the recorded run"))
    asyncio.run(run.evaluated(rollouts))
    return run


def record(path: Path, rollouts: int = 90, config: Config | None = None) -> Path:
    """Play a run and write its bundle, with its screenshots."""
    run = played(config or settings(), rollouts)
    config, tasks, circle, bus = run.config, run.tasks, run.circle, run.config.bus
    manifest = Manifest(run=bus.run.removeprefix("dart."), prefix=bus.prefix, captured_ms=now_ms(), schemas={})
    with Writer(path, manifest) as bundle:
        bundle.text(CONFIG, tomli_w.dumps(without_nulls(msgspec.to_builtins(config))))
        bundle.text(TOKENS, format_pieces(PIECES, PIECES))
        bundle.text(TASKS, tomli_w.dumps({"pages": msgspec.to_builtins(tasks.pages)}))
        for name, log in circle.logs.items():
            records = []
            for offset, written in enumerate(log):
                at_ms = circle.written_ms[name, offset]
                one = encode(topics.BY_NAME[name], written.event, (), written.id or f"{name}-{offset}")
                records.append(BundleRecord(0, offset, at_ms, one.key, one.value, list(one.headers)))
            bundle.records(name, records)
        bundle.blobs(Blob(sha256, data) for sha256, data in run.log.blobs.items())
    return path
