"""The training process on a real Kafka and Cassandra, over a prepared backlog of curated groups."""

import asyncio
import contextlib
import itertools
import multiprocessing.connection
import os
import signal
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
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
from dart_streams import crash_points
from dart_streams.bus import sync_clients
from dart_streams.bus.codec import Encoded, encode
from dart_streams.config import Config, parse
from dart_streams.console.repair import projection
from dart_streams.console.repair.dead_letters import dead_letter_topic
from dart_streams.console.runs.run_log import LogRecord, RecordMetadata, present_records
from dart_streams.console.runs.run_state import RunState
from dart_streams.errors import UserError
from dart_streams.policy import exporting, probe, recipe
from dart_streams.policy import weights as weight_files
from dart_streams.policy.rendering import Renderer
from dart_streams.store import AsyncStore, connect
from tests import events
from tests.faults import disk
from tests.model import plain_transformers
from tests.model.forkserver import POLLING, jobs, spawning
from topics import Topic, curated, trained, training_metrics, weights, weights_serving
from topics.trained import TrainedStep
from topics.weights import WeightVersion
from trainer import main
from trainer.data.consumer import MAX_POLL_RECORDS, CuratedConsumer
from trainer.learning.learner import WeightSnapshot
from trainer.publish import WeightPublisher
from trainer.state import TrainerState

SHAPE = BacklogShape(members=2, steps=2)
DEADLINE_S = 240.0
"""Of one wait: a start of a trainer takes some ten seconds, and many times that beside other work."""
KILLS_S = 1800
"""Of a test that kills a trainer again and again."""
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


def until(condition: Callable[[], Any], what: str) -> Any:
    """Return what ``condition`` gives once it is truthy."""
    deadline, pause = time.monotonic() + DEADLINE_S, threading.Event()
    while not (value := condition()):
        assert time.monotonic() < deadline, f"not within {DEADLINE_S:g} s: {what}"
        pause.wait(0.1)
    return value


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
    mismatched = alter_group(ours.maker.group(4, version=3), "trajectory-4-0", 1, prompt_sha="another")
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


PHASES = {
    "recipe": ["computerrl"],
    "recipes": {"computerrl": {"every": 2, "updates": 2, "trajectories": 1}},
}
ENTROPIES = ("sft_entropy_before", "sft_entropy_after")
IMITATION = {"imitate": {"trajectories": 2, "weight": 0.5, "recent": 3}}


def test_each_version_takes_a_whole_batch_with_or_without_a_phase(run):
    """Dispatch counts groups to bound staleness in versions: one made from no groups would make every rollout older."""
    size, steps = 2, 4
    ours = run(size * steps, trainer={"groups_per_step": size, "max_train_steps": steps}, **PHASES)
    assert ours.train() == 0
    assert [(event.version, event.groups_consumed) for event in ours.versions()] == [
        (number, size * number) for number in range(steps + 1)
    ]


def test_a_step_imitates_past_successes_and_a_killed_trainer_the_same_ones(run):
    trainer = {"groups_per_step": 1, "max_train_steps": 6, **IMITATION}
    undisturbed, killed = run(6, trainer=trainer, **PHASES), run(6, trainer=trainer, **PHASES)
    assert undisturbed.train() == 0
    train_with_kills(killed)

    steps = undisturbed.steps()
    won = [f"trajectory-{index}-1" for index in range(6)]
    assert [len(step.imitated) for step in steps] == [0, 0, 2, 2, 2, 2], "as soon as there are enough"
    assert [len(step.sft_updates) for step in steps] == [0, 1, 0, 2, 0, 2], "no more than there are successes"
    for number, step in enumerate(steps):
        assert set(step.imitated) <= set(won[max(0, number - 3) : number]), "the newest before this step"
        assert {identity for update in step.sft_updates for identity in update} <= set(won[:number])
        assert step.group_ids == [f"group-{number}"]
    assert steps[1].sft_updates == [[won[0]]]
    assert "imitation_nll" not in steps[1].metrics
    assert steps[2].metrics["imitation_weight"] == 0.5
    assert 0 < steps[2].metrics["imitation_share"] < 1
    assert steps[2].metrics["imitation_nll"] > 0
    assert [step.metrics.get("sft_updates", 0) for step in steps] == [0, 1, 0, 2, 0, 2]
    entropies = [
        tuple(step.metrics[name] for name in ENTROPIES) if "sft_nll" in step.metrics else None for step in steps
    ]
    assert [found is not None for found in entropies] == [False, True] * 3
    assert all(min(found) > 0 and found[0] != found[1] for found in entropies if found), "the phase has an effect"

    again = killed.steps()
    assert [(step.imitated, step.sft_updates) for step in again] == [(s.imitated, s.sft_updates) for s in steps]
    for name in ("loss", "imitation_nll", "sft_nll", *ENTROPIES):
        expected = [step.metrics.get(name, 0.0) for step in steps]
        assert [step.metrics.get(name, 0.0) for step in again] == pytest.approx(expected, abs=1e-5), name


def test_two_ranks_imitate_what_one_imitates(run):
    trainer = {"groups_per_step": 1, "max_train_steps": 4, **IMITATION}
    single, two = run(4, trainer=trainer, **PHASES), run(4, trainer={**trainer, "processes": 2}, **PHASES)
    assert single.train() == 0
    with two_ranks(two.config):
        until(lambda: len(two.steps()) == 4, "four steps")
    for step, expected in zip(two.steps(), single.steps(), strict=True):
        assert (step.imitated, step.sft_updates) == (expected.imitated, expected.sft_updates)
        for name in {
            "loss",
            "grad_norm",
            "imitation_nll",
            "imitation_share",
            "sft_nll",
            *ENTROPIES,
        } & expected.metrics.keys():
            assert step.metrics[name] == pytest.approx(expected.metrics[name], rel=1e-3, abs=1e-5), name


REPLAY = {"recipe": ["mobilerl"], "recipes": {"mobilerl": {"gamma": 0.5, "kappa": 1, "buffer": 3}}}


def test_a_step_replays_successes_and_a_killed_trainer_the_same(run):
    """Each batch has two trajectories, one of them a success: with gamma 1/2 it replays two others."""
    trainer = {"groups_per_step": 1, "max_train_steps": 6}
    undisturbed, killed = run(6, trainer=trainer, **REPLAY), run(6, trainer=trainer, **REPLAY)
    assert undisturbed.train() == 0
    train_with_kills(killed)

    steps = undisturbed.steps()
    won = [f"trajectory-{index}-1" for index in range(6)]
    assert [len(step.replayed) for step in steps] == [0, 1, 2, 2, 2, 2]
    for number, step in enumerate(steps):
        assert set(step.replayed) <= set(won[max(0, number - 3) : number]), "the newest before this step"
        assert (step.group_ids, len(step.trajectory_ids)) == ([f"group-{number}"], 2), "nothing counts twice"
    assert [event.groups_consumed for event in undisturbed.versions()] == list(range(7))
    assert "replay_share" not in steps[0].metrics
    assert [step.metrics["replay_share"] for step in steps[1:]] == [pytest.approx(1 / 3), *[0.5] * 4]
    assert all(0 < step.metrics["replayed_sequences"] < step.metrics["sequences"] for step in steps[1:])

    again = killed.steps()
    assert [step.replayed for step in again] == [step.replayed for step in steps]
    assert [s.metrics["loss"] for s in again] == pytest.approx([s.metrics["loss"] for s in steps], abs=1e-5)


def test_two_ranks_replay_what_one_replays(run):
    trainer = {"groups_per_step": 1, "max_train_steps": 4}
    single, two = run(4, trainer=trainer, **REPLAY), run(4, trainer={**trainer, "processes": 2}, **REPLAY)
    assert single.train() == 0
    with two_ranks(two.config):
        until(lambda: len(two.steps()) == 4, "four steps")
    for step, expected in zip(two.steps(), single.steps(), strict=True):
        assert step.replayed == expected.replayed
        for name in {"loss", "grad_norm", "replay_share", "mismatch"} & expected.metrics.keys():
            assert step.metrics[name] == pytest.approx(expected.metrics[name], rel=1e-3, abs=1e-5), name


def train_with_kills(ours: Run) -> None:
    """Train to the end, with a trainer that is killed after a step and one that is killed after a checkpoint."""
    for point in (f"{crash_points.AFTER_STEP}:3", f"{crash_points.AFTER_CHECKPOINT}:2"):
        with training(ours.config, point) as trainer_process:
            assert ended(trainer_process) == -signal.SIGKILL
    assert ours.train() == 0


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
    ours.add([group if index in (0, 4, 5) else without_members(group) for index, group in enumerate(groups)])
    assert ours.train() == 0
    rows = ours.trained()
    assert [row["group_ids"] for row in rows] == [["group-0", "group-1"], ["group-4", "group-5"]]
    assert rows[0]["trajectory_ids"] == ["trajectory-0-0", "trajectory-0-1"]
    published = [(event.version, event.groups_consumed) for event in ours.versions()]
    assert published == [(0, 0), (1, 2), (1, 4), (2, 6)]


def without_members(backlog: SyntheticBacklog) -> SyntheticBacklog:
    return backlog._replace(group=msgspec.structs.replace(backlog.group, members=[], mean=0.0, std=0.0))


KILLS = (
    [f"{point}:1" for point in crash_points.TRAINER],
    [f"{point}:1" for point in reversed(crash_points.TRAINER)],
    [f"{point}:2" for point in crash_points.TRAINER],
)
"""Three runs, each killed at every point, before any other step or after one: twenty-one kills."""
STEPS_KILLED = 10
"""One more than the run that makes most steps before its last kill."""
KILLED_STEPS = 2 * len(crash_points.TRAINER) + 1
"""Of a run that is killed at each point before a second step."""


def killed_again_and_again(ours: Run, kills: Sequence[str]) -> None:
    """Start trainers that die at these points, one after the other, and then one that may end."""
    for kill in kills:
        with training(ours.config, kill) as trainer:
            assert ended(trainer) == -signal.SIGKILL, kill
        left = list((ours.config.run.folder / "checkpoints").glob(".partial-*"))
        assert len(left) == kill.startswith(crash_points.IN_CHECKPOINT), "the next trainer removes it"
    with training(ours.config) as trainer:
        assert ended(trainer) == 0


@pytest.mark.timeout(KILLS_S)
def test_a_trainer_killed_anywhere_trains_every_group_once(run):
    groups, trainer = 2 * STEPS_KILLED, {"max_train_steps": STEPS_KILLED}
    undisturbed, *disturbed = [run(groups, trainer=trainer) for _ in range(1 + len(KILLS))]
    with ThreadPoolExecutor(len(KILLS)) as at_once:
        killed = [at_once.submit(killed_again_and_again, *each) for each in zip(disturbed, KILLS, strict=True)]
        assert undisturbed.train() == 0
        for each in killed:
            each.result()
    for ours in disturbed:
        compare(ours, undisturbed, [f"group-{index}" for index in range(groups)])


def compare(disturbed: Run, undisturbed: Run, group_ids: Sequence[str]) -> None:
    """Nothing was lost, nothing trained twice, no version number means two things, and the losses are the same."""
    expected, rows = undisturbed.trained(), disturbed.trained()
    assert [group for row in rows for group in row["group_ids"]] == list(group_ids)
    assert [row["group_ids"] for row in rows] == [row["group_ids"] for row in expected]
    assert [row["metrics"]["loss"] for row in rows] == pytest.approx([r["metrics"]["loss"] for r in expected], abs=1e-5)
    versions = disturbed.versions()
    announced = [(event.epoch, event.version) for event in versions]
    assert announced == sorted(set(announced)), "each incarnation's versions strictly increase"
    assert [event.version for event in versions] == sorted(event.version for event in versions)
    places = {(event.version, event.uri) for event in versions}
    assert sorted(number for number, _ in places) == list(range(STEPS_KILLED + 1)), "a number means one set of weights"
    assert_same_weights(disturbed, undisturbed, atol=1e-6)


def assert_same_weights(ours: Run, expected: Run, atol: float) -> None:
    """Check the newest version of a run against that of another."""
    final, wanted = (load_file(Path(run.versions()[-1].uri) / weight_files.FILE) for run in (ours, expected))
    for name, weight in wanted.items():
        torch.testing.assert_close(final[name], weight, rtol=0, atol=atol)


def train_through_kills(ours: Run) -> list[WeightVersion]:
    """Train a group a step, killed at each point; return the versions, each number of which has one digest."""
    kills = [f"{point}:2" for point in crash_points.TRAINER]
    ours.fill(KILLED_STEPS)
    for kill in kills:
        with training(ours.config, kill) as trainer:
            assert ended(trainer) == -signal.SIGKILL, kill
    assert ours.train() == 0
    last = ours.versions()[-1]
    assert ours.train() == 0

    versions = ours.versions()
    assert [row["group_ids"] for row in ours.trained()] == [[f"group-{number}"] for number in range(KILLED_STEPS)]
    assert (versions[-1].version, versions[-1].sha256) == (last.version, last.sha256)
    assert versions[-1].epoch == last.epoch + 1
    digests = {(version.version, version.sha256) for version in versions}
    assert len(digests) == len({number for number, _ in digests}), "a number means one set of weights"
    return versions


def test_from_an_older_checkpoint_no_version_number_is_reused(run):
    ours = run(8, trainer={"max_train_steps": 3, "checkpoint_every": 2})
    with training(ours.config, f"{crash_points.AFTER_EVENT}:3") as trainer:
        assert ended(trainer) == -signal.SIGKILL
    assert ours.train(max_train_steps=4) == 0
    assert [(event.version, event.train_step) for event in ours.versions()] == [
        *((0, 0), (1, 1), (2, 2), (3, 3)),
        *((4, 2), (5, 3), (6, 4)),
    ]
    assert [row["group_ids"] for row in ours.trained()] == [[f"group-{i}", f"group-{i + 1}"] for i in (0, 2, 4, 6)]


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


POINTS = {
    1: [f"{point}:2" for point in crash_points.TRAINER],
    3: [*(f"{point}:4" for point in crash_points.TRAINER if point != crash_points.IN_CHECKPOINT)],
}
POINTS[3].append(f"{crash_points.IN_CHECKPOINT}:1")


@pytest.mark.parametrize(("every", "point"), [(every, point) for every in POINTS for point in POINTS[every]])
def test_a_stopped_trainer_that_was_replaced_changes_nothing(run, every, point):
    """It wakes at its worst moment, when the newer one has made all steps; without mends it overwrites a row of it."""
    ours = run(5, trainer={"groups_per_step": 1, "max_train_steps": 5, "checkpoint_every": every})
    with training(ours.config, f"{point}:{crash_points.STOP}") as older:
        process = psutil.Process(older.pid)
        until(lambda: process.status() == psutil.STATUS_STOPPED, f"the older trainer at {point}")
        assert ours.train() == 0
        before = ours.rows()
        process.resume()
        assert ended(older) == UserError.exit_code
    assert ours.rows() == before
    assert [(row["train_step"], row["group_ids"]) for row in ours.trained()] == [
        (number, [f"group-{number - 1}"]) for number in range(1, 6)
    ]
    assert ours.trained()[-1]["epoch"] == 2
    state = RunState().fold(LogRecord(RecordMetadata("", 0, 0, 0), event, b"") for event in ours.log())
    assert {number: step.epoch for number, step in state.trained.items()} == {
        row["train_step"]: row["epoch"] for row in ours.trained()
    }
    assert state.versions[state.newest_version or 0].event.epoch == 2
    projected = {row.key: row.values for row in projection.project_rows(ours.config.bus.run, ours.log())}
    assert projected == before


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
    """Started by torchrun's launcher; the second rank reads its own share and never speaks."""
    single, two = run(4, trainer={"max_train_steps": 2}), run(4, trainer={"processes": 2})
    assert single.train() == 0
    with training(two.config) as trainer:
        until(lambda: len(two.versions()) == 3, "versions 0, 1 and 2 of two ranks")
        until(lambda: len(two.trained()) == 2, "the second row")
        os.kill(trainer.pid or 0, signal.SIGTERM)
        assert ended(trainer) == 0
    assert [event.version for event in two.versions()] == [0, 1, 2]
    assert_same_weights(two, single, atol=2e-5)
    for row, expected in zip(two.trained(), single.trained(), strict=True):
        assert row["metrics"]["loss"] == pytest.approx(expected["metrics"]["loss"], abs=1e-5)
        assert row["metrics"]["sequences"] == expected["metrics"]["sequences"]


def test_sigterm_while_it_waits_ends_it_at_once(run):
    ours = run()
    with training(ours.config) as trainer:
        until(lambda: ours.versions(), "version 0")
        os.kill(trainer.pid or 0, signal.SIGTERM)
        assert ended(trainer) == 0


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
    assert said.count("make room, and restart the trainer") == 3
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
