"""The training process on a real Kafka and Cassandra, over a prepared backlog of curated groups."""

import asyncio
import contextlib
import functools
import itertools
import multiprocessing.connection
import os
import signal
import sys
import threading
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from multiprocessing.process import BaseProcess
from pathlib import Path
from types import MappingProxyType
from typing import Any

import fsspec
import msgspec
import psutil
import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForImageTextToText

from benchmarks.synthetic_groups import BacklogShape, Maker, SyntheticBacklog, alter_group, write
from benchmarks.trained_rows import trained_rows
from console.repair import projection
from console.repair.dead_letters import dead_letter_topic
from console.runs.run_log import present_records
from dart_streams import crash_points
from dart_streams.bus import sync_clients
from dart_streams.bus.codec import Encoded, encode
from dart_streams.config import Config, parse
from dart_streams.errors import UserError
from dart_streams.policy import exporting, probe, recipe
from dart_streams.policy import weights as weight_files
from dart_streams.policy.rendering import Renderer
from dart_streams.store import AsyncStore, connect
from tests import events
from tests.faults import disk
from tests.model import plain_transformers
from tests.model.forkserver import POLLING, jobs, spawning
from tests.waiting import wait_until
from topics import Topic, curated, trained, training_metrics, weights, weights_serving
from topics.trained import TrainedStep
from topics.weights import WeightVersion
from trainer import main
from trainer.data.consumer import MAX_POLL_RECORDS, CuratedConsumer
from trainer.learning.learner import WeightSnapshot
from trainer.publish import WeightPublisher
from trainer.state import TrainerState

SHAPE = BacklogShape(members=2, steps=2)
DEADLINE_S = 500.0
"""Of one wait: a start of a trainer takes some ten seconds, and many times that beside other work."""
until = functools.partial(wait_until, bound_s=DEADLINE_S)
TASKS = Path(__file__).parents[2] / "deploy" / "config" / "tasks.toml"


class Run:
    """A run whose backlog is written by the test."""

    def __init__(self, config: Config) -> None:
        self.config = config
        renderer = Renderer(Path(config.policy.path), config.policy.min_pixels, config.policy.max_pixels)
        self.maker = Maker(config, renderer, SHAPE)

    def add(self, groups: Sequence[SyntheticBacklog]) -> None:
        """Store the groups' steps and screenshots, then announce them on ``curated``."""

        async def store() -> None:
            session = connect(self.config.store)
            await write(groups, AsyncStore(session, self.config.bus.run, 16))
            session.cluster.shutdown()

        asyncio.run(store())
        self.publish(curated.TOPIC, *(backlog.group for backlog in groups))

    def fill(self, count: int) -> None:
        """Add this many groups of version 0."""
        self.add([self.maker.group(index) for index in range(count)])

    def publish(self, topic: Topic, *published: msgspec.Struct) -> None:
        self.send(topic, *(encode(topic, event) for event in published))

    def send(self, topic: Topic, *records: Encoded) -> None:
        """Write records as they are."""
        with contextlib.closing(sync_clients.create_producer(self.config.bus, "test")) as producer:
            for record in records:
                parts = {"key": record.key, "value": record.value, "headers": list(record.headers)}
                producer.send(self.config.bus.prefix + topic.name, **parts).get(timeout=DEADLINE_S)

    def versions(self) -> list[WeightVersion]:
        return sync_clients.read_events(self.config.bus, "test", weights.TOPIC)

    def steps(self) -> list[TrainedStep]:
        """Return the steps in the log, each once."""
        steps = sync_clients.read_events(self.config.bus, "test", trained.TOPIC)
        return list({step.train_step: step for step in steps}.values())

    def log(self) -> list[Any]:
        """Return what trainers wrote to the log."""
        return [*self.versions(), *sync_clients.read_events(self.config.bus, "test", trained.TOPIC)]

    def rows(self) -> dict[tuple[Any, ...], tuple[Any, ...]]:
        """Return the rows that trainers wrote to the store, by their keys."""
        session = connect(self.config.store)
        try:
            stored = projection.stored_rows(session, self.config.bus.run)
            return {row.key: row.values for row in stored if row.table in ("trained", "epochs")}
        finally:
            session.cluster.shutdown()

    def trained(self) -> list[dict[str, Any]]:
        """Return the trainer's rows, which have only metrics of the table."""
        session = connect(self.config.store)
        try:
            rows = trained_rows(session, self.config.bus.run)
        finally:
            session.cluster.shutdown()
        assert not [name for row in rows for name in row["metrics"] if training_metrics.find(name) is None]
        return rows

    def train(self, **settings: Any) -> int:
        """Train in this process."""
        trainer = msgspec.structs.replace(self.config.trainer, **settings)
        return main.run(msgspec.structs.replace(self.config, trainer=trainer))


@pytest.fixture
def run(services: Any, policy: Path) -> Callable[..., Run]:
    def make(groups: int = 0, **tables: Any) -> Run:
        trainer = {"groups_per_step": 2, "micro_batch": 4, **tables.pop("trainer", {})}
        curation = {"max_staleness": 100, **tables.pop("curation", {})}
        run = Run(services.config(policy={"path": str(policy)}, trainer=trainer, curation=curation, **tables))
        if groups:
            run.fill(groups)
        return run

    return make


def train_elsewhere(config: Config, crash_point: str, errors: Path | None, job: Mapping[str, str]) -> None:
    if errors:
        os.dup2(os.open(errors, os.O_CREAT | os.O_APPEND | os.O_WRONLY), sys.stderr.fileno())
    if crash_point:
        os.environ[crash_points.ENVIRONMENT] = crash_point
    os.environ.update(job)
    try:
        if not job:
            os._exit(main.run(config))
        with main.stopped_by_signals() as stop:
            os._exit(main.run_rank(config, recipe.model_folder(config), stop))
    except UserError as error:
        sys.stderr.write(f"{error}\n")
        sys.stderr.flush()
        os._exit(error.exit_code)


@contextlib.contextmanager
def training(
    config: Config, crash_point: str = "", errors: Path | None = None, job: Mapping[str, str] = MappingProxyType({})
) -> Iterator[BaseProcess]:
    """A trainer in a process of its own, killed at the end of the block if it still runs; ``errors`` has its stderr.

    With ``job`` it is a rank: what torchrun would put into its environment.
    """
    process = spawning.Process(target=train_elsewhere, args=(config, crash_point, errors, dict(job)))
    with POLLING:
        process.start()
    try:
        yield process
    finally:
        process.kill()
        ended(process)


@contextlib.contextmanager
def two_ranks(config: Config) -> Iterator[None]:
    """Both ranks of a job as torchrun's would be, but from the fork server: an interpreter's imports take longer."""
    with contextlib.ExitStack() as life:
        for job in jobs(2):
            life.enter_context(training(config, job=job))
        yield


def ended(process: BaseProcess) -> int | None:
    multiprocessing.connection.wait([process.sentinel], DEADLINE_S)
    with POLLING:
        return process.exitcode


def test_a_backlog_becomes_versions_rows_and_weights_that_load(run, policy):
    ours = run(6, trainer={"keep_versions": 2, "max_train_steps": 3})
    assert ours.train() == 0

    versions = ours.versions()
    assert [event.version for event in versions] == [0, 1, 2, 3]
    assert [event.train_step for event in versions] == [0, 1, 2, 3]
    assert [event.groups_consumed for event in versions] == [0, 2, 4, 6]
    assert {event.epoch for event in versions} == {1}
    assert len({event.uri for event in versions}) == 4
    assert [Path(event.uri).exists() for event in versions] == [False, False, True, True], "two versions are kept"

    plain = AutoModelForImageTextToText.from_pretrained(policy)
    initial = {name: value.clone() for name, value in plain.state_dict().items()}
    folder = weight_files.fetch(versions[-1].parts[-1], cache=ours.config.run.folder)
    weight_files.load(plain, folder)
    assert any(not torch.equal(initial[name], value) for name, value in plain.state_dict().items())

    renderer = Renderer(policy, ours.config.policy.min_pixels, ours.config.policy.max_pixels)
    stored, measured = probe.read(folder), plain_transformers.measured(plain, renderer)
    assert stored is not None
    assert probe.mean_mismatch(measured, stored.logprobs) < 1e-5

    rows = ours.trained()
    assert [row["train_step"] for row in rows] == [1, 2, 3]
    assert [row["version"] for row in rows] == [1, 2, 3]
    assert [row["group_ids"] for row in rows] == [[f"group-{i}", f"group-{i + 1}"] for i in (0, 2, 4)]
    assert set(rows[0]["trajectory_ids"]) == {f"trajectory-{group}-{number}" for group in (0, 1) for number in (0, 1)}
    figures = {"loss", "grad_norm", "clip_share", "truncated_share", "mismatch", "kl_rollout", "entropy", "reward"}
    figures |= {"staleness_mean", "staleness_max", "tokens", "sequences", "data_wait_ms", "train_ms", "publish_ms"}
    figures |= {"tokens_per_s", "rss_mb", "staleness/0", "reward/miniwob/made-up"}
    assert figures <= rows[0]["metrics"].keys()
    assert rows[0]["metrics"]["staleness/0"] == 2
    assert rows[0]["metrics"]["reward/miniwob/made-up"] == rows[0]["metrics"]["reward"] == 0.5

    assert exporting.find(ours.config.bus, "tiny").version == 3
    assert exporting.find(ours.config.bus, "tiny", 2).train_step == 2
    with pytest.raises(UserError, match="no version 9"):
        exporting.find(ours.config.bus, "tiny", 9)


def test_bad_groups_lose_nothing_and_do_not_stop_the_others(run):
    """Undecodable, repeated, stale, rendered otherwise, not in the store: each has its place and its count."""
    ours = run(trainer={"groups_per_step": 1, "max_train_steps": 4}, curation={"max_staleness": 1})
    ours.send(curated.TOPIC, Encoded(b"?", b"not json", []))
    first, second = ours.maker.group(0), ours.maker.group(1)
    stale, fresh = ours.maker.group(2, version=0), ours.maker.group(3, version=2)
    mismatched = alter_group(ours.maker.group(4, version=3), "trajectory-4-0", 1, prompt_sha="a0")
    ours.add([first, first, second, stale, fresh, mismatched])
    assert ours.train() == 0

    rows = ours.trained()
    assert [row["group_ids"] for row in rows] == [["group-0"], ["group-1"], ["group-3"], ["group-4"]]
    assert [row["metrics"]["stale_groups"] for row in rows] == [0, 0, 1, 0]
    assert [row["metrics"]["prompt_mismatch"] for row in rows] == [0, 0, 0, 1]
    assert ours.versions()[-1].groups_consumed == 5, "the stale group counts, the repeated one does not"
    [record] = present_records(ours.config.bus, dead_letter_topic(curated.TOPIC))
    assert record.value == b"not json"
    assert dict(record.headers)["dlq-offset"] == b"0"


@pytest.mark.parametrize("processes", [1, 2])
def test_a_step_takes_a_constant_number_of_tokens(run, processes):
    budget, longest = 64, 24
    tokens = {"recipe": ["ring-lite"], "recipes": {"ring-lite": {"tokens_per_step": budget}}}
    ours = run(24, trainer={"max_train_steps": 3, "processes": processes}, **tokens)
    if processes == 1:
        assert ours.train() == 0
    else:
        with two_ranks(ours.config):
            until(lambda: len(ours.trained()) == 3, "three steps")
    rows = ours.trained()
    assert len(rows) == 3
    for row in rows:
        tokens, left_out = row["metrics"]["tokens"], row["metrics"]["tokens_left_out"]
        assert budget - processes * longest < tokens < budget + processes * longest
        assert budget <= tokens + left_out
    taken = [len(row["group_ids"]) for row in rows]
    assert len(set(taken)) > 1, "groups have different numbers of tokens"
    assert [event.groups_consumed for event in ours.versions()][-1] == sum(taken)


def test_groups_dropped_while_waiting_are_announced_to_dispatch(run):
    """Otherwise they would count as backlog for ever, and no group would be opened any more."""
    ours = run(3, trainer={"groups_per_step": 1}, curation={"max_staleness": 0})
    with training(ours.config) as trainer:
        published = until(
            lambda: (versions := ours.versions()) and versions[-1].groups_consumed == 3 and versions,
            "a word to dispatch",
        )
        assert [(event.version, event.groups_consumed) for event in published] == [(0, 0), (1, 1), (1, 3)]
        assert published[1].uri == published[2].uri
        os.kill(trainer.pid or 0, signal.SIGTERM)
        assert ended(trainer) == 0


def test_groups_of_a_coupled_batch_that_teach_nothing_are_consumed_with_it(run):
    """A coupled dispatch orders the next batch when all of the last is consumed, also if nothing of it could teach."""
    ours = run(trainer={"groups_per_step": 2, "max_train_steps": 2})
    groups = [ours.maker.group(index) for index in range(6)]
    for index in (1, 2, 3):
        empty = msgspec.structs.replace(groups[index].group, members=[], mean=0.0, std=0.0)
        groups[index] = groups[index]._replace(group=empty)
    ours.add(groups)
    assert ours.train() == 0
    rows = ours.trained()
    assert [row["group_ids"] for row in rows] == [["group-0", "group-1"], ["group-4", "group-5"]]
    assert rows[0]["trajectory_ids"] == ["trajectory-0-0", "trajectory-0-1"]
    published = [(event.version, event.groups_consumed) for event in ours.versions()]
    assert published == [(0, 0), (1, 2), (1, 4), (2, 6)]


def assert_same_weights(ours: Run, expected: Run, atol: float) -> None:
    """Check the newest version of a run against that of another."""
    newest = [max(run.versions(), key=lambda version: (version.epoch, version.version)) for run in (ours, expected)]
    final, wanted = (load_file(Path(version.uri) / weight_files.FILE) for version in newest)
    for name, weight in wanted.items():
        torch.testing.assert_close(final[name], weight, rtol=0, atol=atol)


def test_of_two_trainers_the_older_stops(run, capfd):
    ours = run(1, trainer={"groups_per_step": 1, "max_train_steps": 2})
    with training(ours.config) as older:
        until(lambda: len(ours.versions()) == 2, "version 1 of the older trainer")
        with training(ours.config) as newer:
            assert ended(older) == UserError.exit_code
            ours.add([ours.maker.group(1)])
            assert ended(newer) == 0
    assert [(event.epoch, event.version) for event in ours.versions()] == [(1, 0), (1, 1), (2, 1), (2, 2)]
    assert [row["epoch"] for row in ours.trained()] == [1, 2]


def test_no_group_is_taken_while_prefetched_bytes_exceed_the_limit(run):
    ours = run(6)
    taken: list[str] = []
    room = threading.Event()

    def full() -> bool:
        return len(taken) >= 1 and not room.is_set()

    consumer = CuratedConsumer(
        ours.config.bus,
        TrainerState().position,
        "tiny",
        1,
        99,
        lambda: 1,
        on_group=lambda group: taken.append(group.group_id),
        is_full=full,
    )
    with consumer:
        until(lambda: taken, "the first records")
        while consumer.take(1.0):
            pass
        assert len(taken) <= MAX_POLL_RECORDS < 6
        room.set()
        until(lambda: len(taken) == 6, "the rest of the log")


def test_a_version_stays_while_a_live_worker_may_be_fetching_it(run):
    """On an object store; with two kept in any case."""
    base = f"memory://{uuid.uuid4().hex}/weights"
    ours = run(trainer={"keep_versions": 2, "weights_uri": base})

    def release(number: int) -> WeightSnapshot:
        return WeightSnapshot(
            {"weight": torch.full((3,), float(number))}, probe.Probe(prompt=[], tokens=[], logprobs=[])
        )

    beats = itertools.count()
    now_s = 0.0

    def serves(worker_id: str, version: int) -> None:
        event = events.weights_serving(version, worker_id=worker_id, alive_ms=next(beats))
        ours.publish(weights_serving.TOPIC, event)

    def left_after(publisher: WeightPublisher, number: int) -> list[str]:
        publisher.publish(TrainerState(version=number), release(number))
        filesystem, folder = fsspec.core.url_to_fs(base)
        return sorted(Path(place).name for place in filesystem.ls(folder, detail=False))

    with WeightPublisher(ours.config, epoch=1, clock=lambda: now_s) as publisher:
        publisher.begin(None, release(0))
        serves("rollout-0", 1)
        serves("rollout-1", 0)
        assert [left_after(publisher, number)[0] for number in (1, 2)] == ["v000000-e1"] * 2
        now_s += 60.0
        assert left_after(publisher, 3)[0] == "v000000-e1", "without heartbeats no worker is dead"
        serves("rollout-0", 1)
        assert left_after(publisher, 4)[0] == "v000001-e1", "a worker is dead that is silent while another is not"
        serves("rollout-0", 4)
        assert left_after(publisher, 5) == ["v000004-e1", "v000005-e1"]
        assert left_after(publisher, 6) == ["v000004-e1", "v000005-e1", "v000006-e1"]


def test_a_repeated_version_is_kept_once_and_a_fenced_one_never():
    first = events.weight_version(1, uri="w/v1-e2", epoch=2)
    publisher = WeightPublisher(parse({"policy": {"model_id": "tiny"}}), epoch=2)
    for record in (
        first,
        msgspec.structs.replace(first, groups_consumed=5),
        msgspec.structs.replace(first, uri="w/v2-e1", version=2, epoch=1),
        msgspec.structs.replace(first, uri="elsewhere", version=3, model_id="large"),
    ):
        publisher._accept(record)
    assert list(publisher.published) == ["w/v1-e2"]
    assert publisher.weights.newest == msgspec.structs.replace(first, groups_consumed=5)


def test_two_ranks_publish_what_one_publishes_and_stop_together(run):
    """Started by the launcher; the second rank reads its own share and never speaks. None listens to other machines."""
    single, two = run(4, trainer={"max_train_steps": 2}), run(4, trainer={"processes": 2})
    assert single.train() == 0
    with training(two.config) as trainer:
        until(lambda: (len(two.versions()), len(two.trained())) == (3, 2), "three versions of two ranks, and two rows")
        family = [own := psutil.Process(trainer.pid), *own.children(recursive=True)]
        places = {one.laddr.ip for each in family for one in each.net_connections("tcp") if one.status == "LISTEN"}
        assert (len(family), places) == (3, {"127.0.0.1"})
        os.kill(trainer.pid or 0, signal.SIGTERM)
        assert ended(trainer) == 0
    assert [event.version for event in two.versions()] == [0, 1, 2]
    assert_same_weights(two, single, atol=2e-5)
    for row, expected in zip(two.trained(), single.trained(), strict=True):
        assert row["metrics"]["loss"] == pytest.approx(expected["metrics"]["loss"], abs=1e-5)
        assert row["metrics"]["sequences"] == expected["metrics"]["sequences"]


def test_without_a_model_it_says_what_to_do(tmp_path):
    tables: dict[str, Any] = {"run": {"state_dir": str(tmp_path)}, "tasks": {"file": str(TASKS)}}
    built, named = r"no model directory .*dart-streams policy build", "nowhere is no Hugging Face model directory"
    for path, expected in (("", built), (str(tmp_path / "nowhere"), named)):
        with pytest.raises(UserError, match=expected):
            main.run(parse({**tables, "policy": {"path": path}}))


@pytest.mark.skipif(bool(disk.possible()), reason="mounting a small disk needs root")
def test_a_full_disk_is_named_and_every_group_is_trained_once(run, tmp_path):
    ours, errors = run(4, trainer={"groups_per_step": 1, "max_train_steps": 4}), tmp_path / "errors"
    with disk.small_disk(ours.config.run.folder, 256) as folder:
        with training(ours.config, f"{crash_points.BEFORE_STEP}:3:stop", errors) as trainer:
            until(lambda: len(ours.steps()) == 2 and is_stopped(trainer), "two steps")
            disk.fill(folder)
            os.kill(trainer.pid or 0, signal.SIGCONT)
            assert ended(trainer) == 1
        for attempt in range(2):
            with training(ours.config, errors=errors) as trainer:
                assert ended(trainer) == 1, f"start {attempt} on a full disk"
        assert not list(folder.rglob(".partial-*"))
        disk.make_room(folder)
        assert ours.train() == 0
    said = " ".join(errors.read_text().split())
    assert said.count("can't be written to") == 3
    assert said.count("make room there, and restart the trainer") == 3
    assert "Traceback" not in said
    assert [step.group_ids for step in ours.steps()] == [[f"group-{index}"] for index in range(4)]


def test_a_restarted_trainer_keeps_its_last_recorded_step(run):
    """Its checkpoint does not have what publishing took: the step would be in the log as two different ones."""
    ours = run(2, trainer={"groups_per_step": 1})
    for steps in (1, 2):
        assert ours.train(max_train_steps=steps) == 0
    steps = sync_clients.read_events(ours.config.bus, "test", trained.TOPIC)
    assert [(step.epoch, step.train_step) for step in steps] == [(1, 1), (2, 2)]
    assert all("publish_ms" in row["metrics"] for row in ours.trained())


def test_damaged_weights_end_the_trainer_and_a_restart_writes_them(run, tmp_path):
    """Of its own accord it would publish no other version: without a worker that serves there is nothing to train."""
    ours, errors = run(1, trainer={"groups_per_step": 1}), tmp_path / "errors"
    beats = itertools.count()

    def a_worker_could_not_load(number: int) -> None:
        ours.publish(weights_serving.TOPIC, events.weights_serving(alive_ms=next(beats), failed_version=number))

    with training(ours.config, errors=errors) as trainer:
        until(lambda: len(ours.versions()) == 2, "version 1")
        newest = ours.versions()[-1]
        file = Path(newest.uri) / weight_files.FILE
        a_worker_could_not_load(1)
        file.write_bytes(file.read_bytes()[:-9])
        until(lambda: (a_worker_could_not_load(1), trainer.exitcode is not None)[1], "the end of the trainer")
        assert ended(trainer) == 1
    said = " ".join(errors.read_text().split())
    assert "the files of the newest weights are damaged" in said
    assert "Traceback" not in said
    with training(ours.config) as trainer:
        until(lambda: ours.versions()[-1].epoch == 2, "version 1 again")
    again = ours.versions()[-1]
    assert (again.version, again.sha256, again.uri) == (newest.version, newest.sha256, newest.uri)
    assert weight_files.digest_file(file) == newest.sha256
    assert [row["group_ids"] for row in ours.trained()] == [["group-0"]]


def is_stopped(trainer: BaseProcess) -> bool:
    return psutil.Process(trainer.pid).status() == psutil.STATUS_STOPPED
