"""Replays a run's action requests into a rollout worker, on topics of their own, and compares its answers.

A real worker is started with the run's settings under a shadow prefix. Versions are published there one after another,
and each is asked the requests that it answered, with new deadlines. The run's topics are only read.
"""

import asyncio
import contextlib
import itertools
import tempfile
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from console.bundles.bundle_inputs import TASKS
from console.bundles.progress import report_progress
from console.bundles.recorded_answers import AnswerComparison, Part, VersionComparison, published_versions, read_answers
from console.bundles.republish import TimeSpan
from console.launch import processes
from console.launch.run_removal import groups_of, topics_of
from console.launch.supervisor import Supervisor
from console.runs.bundle import Bundle
from console.runs.run_folder import write_toml
from dart_streams.background import cancel_tasks, run_beside, wait_at_most
from dart_streams.bus import admin
from dart_streams.bus.clients import Publisher
from dart_streams.clock import now_ms
from dart_streams.config import Bus, Config, tasks
from dart_streams.config.deployment import Telemetry
from dart_streams.deadline import Deadline
from dart_streams.errors import ServiceUnavailable, UserError
from dart_streams.file_storage import open_storage
from dart_streams.policy import recipe, weight_location
from topics import weights
from topics.action_requests import ActionRequest
from topics.actions import ActionResponse
from topics.weights import WeightVersion
from workers.env.policy_client import PolicyClient
from workers.rollout.weight_updater import WeightWatcher

T = TypeVar("T")
CLIENT = "replay"
ANSWER_S = 600.0
START_S = 1800.0
"""Longest wait for a version to be served: the first one loads a model and compiles its kernels."""
CHECK_S = 1.0
GONE = "the weights of their version are gone, or elsewhere than trainer.weights_uri or the run's folder"
UNKNOWN = "their version is not known, or stands for two files"
UNLOADED = "the weights of their version do not load"


def replay_requests(bundle: Bundle, config: Config, span: TimeSpan, report: Callable[[str], None]) -> AnswerComparison:
    """Ask the requests of a bundle again, with the broker, the store and the weights of ``config``.

    Raises BundleError if the bundle lacks requests, answers or weights, ServiceUnavailable if a service, or the worker,
    does not answer, and UserError if the worker can't start.
    """
    recorded = read_answers(bundle, span)
    versions, unserved = choose_versions(recorded.parts, published_versions(bundle), config)
    left_out = Counter(recorded.left_out) + unserved
    report(f"{recorded.requests} requests; versions with weights: {len(versions)} of {len(recorded.parts)}")
    found: list[VersionComparison] = []
    if versions:
        found = asyncio.run(compare_versions(bundle, config, recorded.parts, versions, left_out, report))
    differing = [each for each in found if each.difference]
    return AnswerComparison(
        equal=bool(found) and not differing,
        requests=recorded.requests,
        versions=found,
        left_out=left_out,
        difference=min(differing, key=lambda each: each.differs_at_ms).difference if differing else None,
    )


def deployed_here(recorded: Config, deployment: Config) -> Config:
    """Return a bundle's configuration with a deployment's services and weights; raise UserError for a lacking one."""
    replace, rollout = msgspec.structs.replace, recorded.rollout
    if rollout.engine == "openai":
        if deployment.rollout.engine != "openai":
            raise UserError("the run asked an endpoint: name a --config with it (rollout.engine, rollout.openai)")
        rollout = replace(rollout, openai=deployment.rollout.openai)
    return replace(
        recorded,
        bus=deployment.bus,
        store=deployment.store,
        run=replace(deployment.run, id=recorded.run.id),
        rollout=rollout,
        trainer=replace(recorded.trainer, weights_uri=deployment.trainer.weights_uri),
    )


def choose_versions(
    parts: Mapping[int, Sequence[Part]], published: Mapping[int, WeightVersion], config: Config
) -> tuple[dict[int, WeightVersion | None], Counter[str]]:
    """Return the versions that a worker can serve, and how many answers of others there are, by reason.

    An endpoint serves whatever it does: its answers have one version, without weights.
    """
    if config.rollout.fixed_weights:
        return dict.fromkeys(parts), Counter()
    chosen: dict[int, WeightVersion | None] = {}
    unserved = Counter[str]()
    for version, answers in parts.items():
        event = published.get(version)
        if event is not None and has_weights(config, event):
            chosen[version] = event
        else:
            unserved[UNKNOWN if event is None else GONE] += len(answers)
    return chosen, unserved


def has_weights(config: Config, version: WeightVersion) -> bool:
    """Return whether all of a version's parts are where its weights belong; scripted answers need none."""
    if config.rollout.engine == "scripted":
        return True
    base, uris = weight_location.base_of(config), [part.uri for part in version.parts]
    if not all(weight_location.is_covered(uri, base) for uri in uris):
        return False
    return all(storage.filesystem.exists(storage.folder) for storage in map(open_storage, uris))


async def compare_versions(
    bundle: Bundle,
    config: Config,
    parts: Mapping[int, Sequence[Part]],
    versions: Mapping[int, WeightVersion | None],
    left_out: Counter[str],
    report: Callable[[str], None],
) -> list[VersionComparison]:
    """Have each version served in turn, ask it what it was asked, and compare."""
    found = []
    async with shadow_worker(bundle, config, report) as worker:
        for version, event in versions.items():
            if not await worker.serve(event):
                left_out[UNLOADED] += len(parts[version])
                continue
            comparison = VersionComparison(version=version)
            asked = [asyncio.ensure_future(worker.ask(part)) for part in parts[version]]
            try:
                pairs = zip(parts[version], asked, strict=True)
                for part, reply in report_progress(pairs, f"answers of version {version}", report, len(asked)):
                    comparison.add(part, await worker.unless_dead(reply))
            finally:
                await cancel_tasks(*asked)
            found.append(comparison)
    return found


class ShadowWorker:
    """A rollout worker on topics of its own, with the clients that ask it."""

    def __init__(
        self, config: Config, supervisor: Supervisor, publisher: Publisher, client: PolicyClient, watcher: WeightWatcher
    ) -> None:
        self.config = config
        self.supervisor = supervisor
        self.publisher = publisher
        self.client = client
        self.watcher = watcher
        self.room = asyncio.Semaphore(2 * config.rollout.max_in_flight)
        """Requests under way: the worker always has one to take."""
        self.numbers = itertools.count()

    async def serve(self, version: WeightVersion | None) -> bool:
        """Have a version served; return False if it does not load. Without one, wait until the worker is there.

        A run that goes on removes its weights: a worker that has none yet would wait for them forever.

        Versions of a trainer that another one replaced are served too, so the epoch is the same for all.
        """
        if version is not None:
            await self.publisher.publish(weights.TOPIC, msgspec.structs.replace(version, epoch=0))
        return await self.unless_dead(asyncio.ensure_future(self._served(version)))

    async def _served(self, event: WeightVersion | None) -> bool:
        version = event and event.version
        deadline = Deadline(START_S)
        while not deadline.expired:
            changed = self.watcher.next_change()
            for serving in self.watcher.serving.values():
                if version is None or version in (serving.version, serving.failed_version):
                    return version in (None, serving.version)
            if event and not await asyncio.to_thread(has_weights, self.config, event):
                return False
            await wait_at_most(changed, CHECK_S)
        child = next(iter(self.supervisor.children.values()))
        raise ServiceUnavailable(
            f"the worker does not serve version {version} after {START_S:g} s: {child.last_line()}"
        )

    async def ask(self, part: Part) -> ActionResponse:
        """Return the reply to a request whose prompt has the recorded digest, if one of two has it.

        A worker that does not remember a trajectory tokenizes the texts of its earlier answers again.
        """
        reply = await self._ask(part.asked(part.before))
        if part.before and reply.error is None and reply.prompt_sha != part.answer.prompt_sha:
            reply = await self._ask(part.asked([]))
        return reply

    async def _ask(self, request: ActionRequest) -> ActionResponse:
        async with self.room:
            deadline_ms = now_ms() + round(ANSWER_S * 1000)
            fresh: dict[str, Any] = {"request_id": f"{CLIENT}-{next(self.numbers)}", "deadline_ms": deadline_ms}
            fresh["reply_partition"] = self.client.partition
            try:
                return await self.client.request(msgspec.structs.replace(request, **fresh), ANSWER_S)
            except TimeoutError:
                raise ServiceUnavailable(f"no answer to {request.request_id} for {ANSWER_S:g} s") from None

    async def unless_dead(self, waiting: "asyncio.Future[T]") -> T:
        """Return a result; raise the supervisor's error if the worker keeps dying before."""
        ends: set[asyncio.Future[Any]] = {waiting, self.supervisor.gave_up}
        await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        if not waiting.done():
            waiting.cancel()
            self.supervisor.gave_up.result()
        return waiting.result()


@contextlib.asynccontextmanager
async def shadow_worker(bundle: Bundle, config: Config, report: Callable[[str], None]) -> AsyncIterator[ShadowWorker]:
    """Start a worker of the run on new topics beneath its prefix; both are removed at the end."""
    with tempfile.TemporaryDirectory(prefix="replay-") as scratch:
        folder = Path(scratch)
        shadow = shadow_config(bundle, config, folder)
        file = folder / "config.toml"
        write_toml(file, shadow)
        worker = processes.processes_of(shadow, file, processes.find_programs()).rollout[0]
        await asyncio.to_thread(admin.apply_all, shadow.bus)
        supervisor = Supervisor(folder, shadow.run.drain_s, report)
        try:
            async with (
                Publisher(shadow.bus, CLIENT) as publisher,
                PolicyClient(shadow, CLIENT, publisher) as client,
                WeightWatcher(shadow, CLIENT, publisher) as watcher,
                run_beside(client.read_responses(), watcher.watch()),
            ):
                await supervisor.start([worker])
                yield ShadowWorker(shadow, supervisor, publisher, client, watcher)
        finally:
            await supervisor.stop_all()
            await asyncio.to_thread(remove_topics, shadow.bus)


def shadow_config(bundle: Bundle, config: Config, folder: Path) -> Config:
    """Return the worker's configuration: the run's weights and settings, another prefix and another folder.

    An attached run's configuration names no policy: its tiny policy is in its own state folder.
    """
    replace, file = msgspec.structs.replace, folder / TASKS
    file.write_text(bundle.text(TASKS), encoding="utf-8")
    path = config.policy.path or str(recipe.tiny_policy_folder(config, tasks.load(file)).absolute())
    return replace(
        config,
        bus=replace(config.bus, prefix=f"{config.bus.prefix}replay-{now_ms()}."),
        run=replace(config.run, id=CLIENT, state_dir=str(folder)),
        tasks=replace(config.tasks, file=str(file)),
        policy=replace(config.policy, path=path),
        rollout=replace(config.rollout, workers=1),
        trainer=replace(config.trainer, weights_uri=weight_location.base_of(config)),
        telemetry=Telemetry(),
    )


def remove_topics(bus: Bus) -> None:
    """Delete the topics and the consumer groups of a shadow prefix."""
    with admin.connect(bus) as client:
        client.delete_topics(topics_of(client, bus))
        if groups := groups_of(client, bus):
            client.delete_groups(groups)
