"""Weight switch in place against engine restart, under load: ``dart-streams bench weights``.

Real rollout workers serve the untrained tiny policy. Windows with and without a new version alternate; then each worker
is restarted, as DART's release does for each version. Restart time is from process end to the announcement of service,
first generation included, without drain and supervisor.
"""

import asyncio
import itertools
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Self

from aiokafka import AIOKafkaConsumer, TopicPartition

from benchmarks.private_services import private_services, write_config
from benchmarks.synthetic_groups import Maker, SyntheticBacklog
from benchmarks.weight_switch_metrics import Answer, Records, SwitchRecord, Window, switch_metrics
from console.launch import subreaper
from dart_streams.bus import admin
from dart_streams.bus.clients import Publisher, create_consumer, event_of, start_within
from dart_streams.clock import now_ms
from dart_streams.config import Config
from dart_streams.episodes import prompts
from dart_streams.errors import UserError
from dart_streams.store import AsyncStore, connect_async, create_schema
from topics import action_requests, actions, weights, weights_serving
from topics.action_requests import ActionRequest
from topics.actions import ActionResponse
from topics.values import MessagePart
from topics.weights import WeightVersion
from topics.weights_serving import WeightsServing

GROUPS = 24
"""Synthetic groups whose prompts are requested in turn."""
START_TIMEOUT_S = 300.0
SWITCH_TIMEOUT_S = 60.0
EXIT_TIMEOUT_S = 30.0
REQUEST_TIMEOUT_S = 60.0
POLL_INTERVAL_S = 0.05
WARM_ANSWERS = 100
"""Answers of each worker before the measurement."""
MODEL_ID = "bench"
PARTITION = 0
"""Partition of the answers."""


class SwitchPlan(NamedTuple):
    """Amount to measure: ``slots`` concurrent requests, windows of ``window_s``."""

    workers: int
    switches: int
    restarts: int
    slots: int
    window_s: float


class Versions:
    """The untrained tiny policy, and slightly different versions of it."""

    def __init__(self, folder: Path) -> None:
        # Here and not above, so that the command's help works without torch.
        from dart_streams.policy import tiny
        from dart_streams.policy import weights as weight_files

        self.folder = folder
        self.model = folder / "policy"
        tiny.build(self.model)
        self.state: Mapping[str, Any] = weight_files.model_state(self.model)

    def publish(self, number: int) -> WeightVersion:
        """Write version ``number``; return its announcement."""
        from dart_streams.policy import weights as weight_files

        state = {name: tensor * (1 + 1e-3 * number) for name, tensor in self.state.items()}
        uri = str(self.folder / f"v{number:06d}")
        return WeightVersion(
            model_id=MODEL_ID,
            version=number,
            uri=uri,
            sha256=weight_files.save(state, uri),
            train_step=number,
            epoch=1,
            groups_consumed=0,
        )

    def made_up(self, config: Config) -> list[SyntheticBacklog]:
        """Return groups with prompts and screenshots."""
        from dart_streams.policy.rendering import renderer_of

        maker = Maker(config, renderer_of(self.model, config.policy))
        return [maker.group(index) for index in range(GROUPS)]


class Workers:
    """Processes of rollout workers and their announcements; use as a context."""

    def __init__(self, config: Config, folder: Path, count: int) -> None:
        self.config = config
        self.folder = folder
        self.names = [f"rollout-{number}" for number in range(count)]
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self.serving: dict[str, WeightsServing] = {}
        self.switches: dict[tuple[str, int], SwitchRecord] = {}
        self._records: AIOKafkaConsumer = create_consumer(config.bus, group=None, client_id="bench-serving")

    async def __aenter__(self) -> Self:
        await start_within(self._records, self.config.bus)
        name = self.config.bus.prefix + weights_serving.TOPIC.name
        self._records.assign([TopicPartition(name, 0)])
        self._watch = asyncio.create_task(self._follow())
        for worker_id in self.names:
            self.start(worker_id)
        return self

    async def __aexit__(self, *_: object) -> None:
        for process in self.processes.values():
            process.terminate()
        for process in self.processes.values():
            await asyncio.to_thread(await_exit, process)
        self._watch.cancel()
        await self._records.stop()

    def start(self, worker_id: str) -> None:
        """Start a worker's process, with its output in a file."""
        program = Path(sys.executable).parent / "dart-streams"
        command: list[str | Path] = [
            program,
            "worker",
            "rollout",
            "--config",
            self.folder / "config.toml",
            "--id",
            worker_id,
        ]
        supervised: list[str | Path] = [sys.executable, "-I", "-S", subreaper.__file__, str(EXIT_TIMEOUT_S), *command]
        with (self.folder / f"{worker_id}.log").open("ab") as said:
            self.processes[worker_id] = subprocess.Popen(supervised, stdin=subprocess.PIPE, stdout=said, stderr=said)

    async def end(self, worker_id: str) -> int:
        """Drain and end a worker; return the time (epoch ms)."""
        process = self.processes.pop(worker_id)
        process.terminate()
        await asyncio.to_thread(await_exit, process)
        return now_ms()

    async def all_serve(self, version: int, within_s: float) -> None:
        """Wait until every worker has announced ``version``."""
        await self.until(
            lambda: all(name in self.serving and self.serving[name].version >= version for name in self.names),
            f"all workers to serve version {version}",
            within_s,
        )

    async def until(self, condition: Callable[[], bool], what: str, within_s: float) -> None:
        """Wait for ``condition``; raise UserError if a worker ends or ``within_s`` passes."""
        deadline = time.monotonic() + within_s
        while not condition():
            for name, process in self.processes.items():
                if process.poll() is not None:
                    raise UserError(f"{name} ended with {process.returncode}: {self.last_words(name)}")
            if time.monotonic() > deadline:
                raise UserError(f"waited {within_s:g} s for {what}: {self.last_words(self.names[0])}")
            await asyncio.sleep(POLL_INTERVAL_S)

    def last_words(self, worker_id: str) -> str:
        """Return the end of a worker's log."""
        return (self.folder / f"{worker_id}.log").read_text(errors="replace", encoding="utf-8")[-2000:]

    async def _follow(self) -> None:
        async for record in self._records:
            event: WeightsServing = event_of(weights_serving.TOPIC, record)
            self.serving[event.worker_id] = event
            if event.pause_ms is not None:
                place = (event.worker_id, event.version)
                self.switches[place] = SwitchRecord(*place, event.since_ms, event.pause_ms)


class SteadyLoad:
    """Requests while the block runs, then waits for running requests.

    ``failed`` counts error answers and requests without an answer within ``timeout_s``.
    """

    def __init__(
        self,
        config: Config,
        publisher: Publisher,
        prompts: Sequence[Sequence[MessagePart]],
        slots: int,
        timeout_s: float,
    ) -> None:
        self.config = config
        self.publisher = publisher
        self.prompts = itertools.cycle(prompts)
        self.slots = slots
        self.timeout_s = timeout_s
        self.answers: list[Answer] = []
        self.failed = 0
        self.errors: list[str] = []
        self._numbers = itertools.count()
        self._asked: dict[str, asyncio.Future[ActionResponse]] = {}
        self._stopping = False
        self._records: AIOKafkaConsumer = create_consumer(config.bus, group=None, client_id="bench-answers")

    async def __aenter__(self) -> Self:
        await start_within(self._records, self.config.bus)
        place = TopicPartition(self.config.bus.prefix + actions.TOPIC.name, PARTITION)
        self._records.assign([place])
        self._listener = asyncio.create_task(self._listen())
        self._slots = [asyncio.create_task(self._ask_on()) for _ in range(self.slots)]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stopping = True
        try:
            if error is None:
                await asyncio.gather(*self._slots)
        finally:
            for task in (*self._slots, self._listener):
                task.cancel()
            await self._records.stop()

    def check(self) -> None:
        """Raise the error that ended the load early, if any."""
        for task in (*self._slots, self._listener):
            if task.done():
                task.result()

    async def _ask_on(self) -> None:
        while not self._stopping:
            started = time.perf_counter()
            try:
                action = await self._ask()
            except TimeoutError:
                self._fail("no answer in time")
                continue
            if action.error is not None:
                self._fail(action.error)
                continue
            took_ms = (time.perf_counter() - started) * 1000
            self.answers.append(Answer(now_ms(), action.worker_id, len(action.tokens), len(action.versions), took_ms))

    async def _ask(self) -> ActionResponse:
        number = str(next(self._numbers))
        request = ActionRequest(
            request_id=number,
            trajectory_id=number,
            step=0,
            turns=list(next(self.prompts)),
            sampling=self.config.sampling(),
            reply_partition=PARTITION,
            deadline_ms=now_ms() + int(self.timeout_s * 1000),
        )
        answer = self._asked[number] = asyncio.get_running_loop().create_future()
        try:
            async with asyncio.timeout(self.timeout_s):
                await self.publisher.publish(action_requests.TOPIC, request)
                return await answer
        finally:
            del self._asked[number]

    async def _listen(self) -> None:
        async for record in self._records:
            action: ActionResponse = event_of(actions.TOPIC, record)
            asker = self._asked.get(action.request_id)
            if asker is not None and not asker.done():
                asker.set_result(action)

    def _fail(self, why: str) -> None:
        self.failed += 1
        self.errors.append(why)


async def measure(folder: Path, plan: SwitchPlan) -> dict[str, Any]:
    """Measure with private services; return the metrics."""
    versions = Versions(folder)
    with private_services() as running:
        policy = {"path": str(versions.model), "model_id": MODEL_ID}
        config = write_config(running, folder, policy=policy, trainer={"weights_uri": str(folder)})
        admin.apply_all(config.bus)
        create_schema(config.store)
        made = versions.made_up(config)
        await store(config, made)
        async with (
            Publisher(config.bus, "bench") as publisher,
            Workers(config, folder, plan.workers) as workers,
        ):
            await publisher.publish(weights.TOPIC, versions.publish(0))
            await workers.all_serve(0, START_TIMEOUT_S)
            async with SteadyLoad(config, publisher, prompts_of(config, made), plan.slots, REQUEST_TIMEOUT_S) as load:
                await warm_up(workers, load)
                windows = await switch_again_and_again(plan, versions, publisher, workers, load)
                failed = load.failed
                names = itertools.islice(itertools.cycle(workers.names), plan.restarts)
                restarts_ms = [await time_restart(workers, name) for name in names]
    records = Records(plan.workers, list(workers.switches.values()), restarts_ms, load.answers, windows, failed)
    found = switch_metrics(records) | {"failed_in_restarts": load.failed - failed}
    if load.errors:
        found["errors"] = sorted(set(load.errors))[:3]
    return found


async def warm_up(workers: Workers, load: SteadyLoad) -> None:
    """Wait until every worker has answered often enough to compile its kernels."""

    def answered() -> bool:
        load.check()
        return all(sum(answer.worker_id == name for answer in load.answers) >= WARM_ANSWERS for name in workers.names)

    await workers.until(answered, "answers of every worker", START_TIMEOUT_S)


async def switch_again_and_again(
    plan: SwitchPlan, versions: Versions, publisher: Publisher, workers: Workers, load: SteadyLoad
) -> list[Window]:
    """Alternate windows without and with a new version; return them."""
    windows = []
    for number in range(1, plan.switches + 1):
        announced = await asyncio.to_thread(versions.publish, number)
        for switching in (False, True):
            begin_ms = now_ms()
            if switching:
                await publisher.publish(weights.TOPIC, announced)
            await asyncio.sleep(plan.window_s)
            if switching:
                await workers.all_serve(number, SWITCH_TIMEOUT_S)
            windows.append(Window(begin_ms, now_ms(), switching))
        load.check()
    return windows


async def time_restart(workers: Workers, worker_id: str) -> float:
    """Restart a worker; return its outage (ms)."""
    ended_ms = await workers.end(worker_id)
    workers.start(worker_id)
    await workers.until(
        lambda: workers.serving[worker_id].since_ms > ended_ms, f"{worker_id} to serve again", START_TIMEOUT_S
    )
    return float(workers.serving[worker_id].since_ms - ended_ms)


def prompts_of(config: Config, made: Sequence[SyntheticBacklog]) -> list[list[MessagePart]]:
    """Return the prompt of every step of every trajectory."""
    limits = config.policy
    return [
        prompts.prompt_turns(observations[:step], limits)
        for group in made
        for observations in group.observations.values()
        for step in range(1, len(observations))
    ]


async def store(config: Config, made: Sequence[SyntheticBacklog]) -> None:
    """Store the screenshots of the prompts."""
    session = await connect_async(config.store)
    try:
        rows = AsyncStore(session, config.bus.run, 1)
        await asyncio.gather(
            *(
                rows.put_blob(group.blobs[shot.sha256], shot.media_type, shot.width, shot.height)
                for group in made
                for observations in group.observations.values()
                for observation in observations
                if (shot := observation.screenshot) is not None
            )
        )
    finally:
        session.cluster.shutdown()


def await_exit(process: subprocess.Popen[bytes]) -> None:
    """Wait for a process to end; kill it after a timeout."""
    try:
        process.wait(EXIT_TIMEOUT_S + 5)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
