"""The training process: connections, restore, threads, shutdown.

| task | consumes | produces | waits for | unblocked by |
|---|---|---|---|---|
| consumer thread | curated, weights | arrivals, curated.dlq | records; room in the queue | the curator; the loop |
| prefetch thread | steps, screenshots | ready groups | a group to read | the consumer thread |
| loop | ready groups | checkpoints, weights, ``trained`` | enough fresh groups | the two threads |

Rank 0 alone has the consumer thread, publishes and writes rows. ``dart-streams train`` runs one rank, or several on one
node or on several (:mod:`trainer.nodes`). ``torchrun … -m trainer CONFIG`` is a rank of a job that
another launcher starts.
"""

import contextlib
import functools
import os
import signal
import socket
import sys
import threading
from collections import deque
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec
import structlog
from torch.distributed.elastic.multiprocessing.api import SignalException
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.distributed.launcher.api import LaunchConfig

from dart_streams.background import stop_signals
from dart_streams.bus import sync_clients
from dart_streams.config import Config
from dart_streams.curation.staleness import group_capacity
from dart_streams.disk_room import make_private
from dart_streams.errors import UserError
from dart_streams.policy import cpu_features, recipe, weight_location
from dart_streams.policy.rendering import renderer_of
from dart_streams.store import SyncStore, connect, sync_store
from dart_streams.telemetry import setup
from dart_streams.telemetry.health_server import answering_probes
from dart_streams.telemetry.process_health import ProcessHealth
from dart_streams.telemetry.stall_detector import StallDetector
from topics import curated, weights
from topics.curated import CuratedGroup
from topics.transitions import WeightState
from trainer import equal_nodes, nodes, refusals
from trainer.checkpoint import Checkpoints
from trainer.checkpoint_store import CheckpointStore
from trainer.data.batch_builder import BatchBuilder, BatchFeed
from trainer.data.consumer import CuratedConsumer, resumed_position
from trainer.data.prefetch import GroupReader, Prefetcher
from trainer.data.shares import StepShares
from trainer.hooks import bind_training
from trainer.learning.learner import Learner, WeightSnapshot
from trainer.loop import Loop, Rank0Outputs
from trainer.publish import WeightPublisher
from trainer.ranks import Ranks, join_job
from trainer.reporting import StepReporter
from trainer.state import TrainerState

PREFETCH_STEPS = 2
"""Steps for which groups are read ahead."""

PREFETCH_MB = 256
"""Megabytes of screenshots read ahead beyond one step."""
TURN_BOUND_S = 1800.0
"""Time limit of the loop between two turns: the updates of a step, a checkpoint, or the upload of a version."""
RANKS_FILE = "trainer.json"
"""Configuration file that :func:`run_torchrun` passes to the ranks."""

log = structlog.get_logger()


def run(config: Config) -> int:
    """Train until done, fenced or stopped (SIGTERM, SIGINT); return the exit code."""
    folder = recipe.model_folder(config)
    cpu_features.limit_isa(config.trainer.dtype, Path(config.run.state_dir))
    if config.trainer.processes * config.trainer.nodes > 1:
        return run_torchrun(config)
    with stopped_by_signals() as stop:
        return run_rank(config, folder, stop)


def run_torchrun(config: Config) -> int:
    """Run this node's ranks; return 0, or the exit code of the rank that failed first."""
    file = write_configuration(config)
    try:
        return launch_ranks(config, ["-m", "trainer", str(file)])
    finally:
        if config.trainer.nodes > 1:
            file.unlink(missing_ok=True)


def launch_ranks(config: Config, arguments: Sequence[str]) -> int:
    """Run Python with ``arguments`` as each rank of a job; return 0, or the exit code of the rank that failed first."""
    settings = config.trainer
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    try:
        if settings.nodes == 1:
            nodes.run_alone(settings.processes, *arguments)
            return 0
        job = LaunchConfig(
            min_nodes=settings.nodes,
            max_nodes=settings.nodes,
            nproc_per_node=settings.processes,
            rdzv_backend="c10d",
            rdzv_endpoint=settings.rendezvous,
            run_id=config.run.id,
            max_restarts=nodes.MAX_RESTARTS,
            signals_to_handle=nodes.SIGNALS,
        )
        nodes.run_node(job, *arguments)
    except SignalException:
        return 0
    except ChildFailedError as error:
        _, failure = error.get_first_failure()
        return failure.exitcode if failure.exitcode > 0 else 128 - failure.exitcode
    return 0


def write_configuration(config: Config) -> Path:
    """Write the configuration for this node's ranks into the run's folder, which nodes share; return the file."""
    file = config.run.folder / RANKS_FILE
    if config.trainer.nodes > 1:
        file = file.with_stem(f"{file.stem}-{socket.gethostname()}-{os.getpid()}")
    make_private(file.parent)
    file.write_bytes(msgspec.json.encode(config))
    return file


def run_rank(config: Config, folder: Path, stop: threading.Event) -> int:
    """Run one rank: connect, restore, publish the first version, train, close."""
    with join_job() as ranks, contextlib.ExitStack() as life:
        setup.start(config, f"trainer-{ranks.rank}")
        life.callback(setup.stop)
        health = life.enter_context(probed_health())
        equal_nodes.refuse_unequal(config, ranks, config.run.folder / "checkpoints", folder)
        renderer = renderer_of(folder, config.policy)
        session = connect(config.store)
        life.callback(session.cluster.shutdown)
        store = sync_store(session, config)
        rules = bind_training(config)
        learner = Learner(folder, renderer, config.trainer, ranks, rules=rules)
        checkpoints = checkpoints_of(config, ranks, learner, stop)
        restored = checkpoints.restore(learner.scorer, learner.optimizer)
        snapshot = learner.snapshot()
        if fault := learner.fault_of(snapshot):
            raise UserError(not_finite_message(folder, restored, fault))
        refused = checkpoints.folder / refusals.FILE
        left_out: refusals.RefusedSteps = ranks.from_first(
            refusals.read(refused, config) if ranks.first else None, refusals.RefusedSteps
        )
        left_out = left_out.since(restored.train_step if restored else 0)
        if len(left_out.refused) >= refusals.MAX_REFUSALS:
            raise left_out.error(refused)
        publisher = None
        # All ranks write checkpoints to a folder named by the epoch, which rank 0 claims.
        epoch: int = ranks.from_first(claimed_epoch(config, store) if ranks.first else None, int)
        if ranks.first:
            checkpoints.remove_partial(epoch)
            publisher = life.enter_context(WeightPublisher(config, epoch, stop=stop))
        state = begin(publisher, ranks, restored, snapshot)
        ended = threading.Event()

        def is_stopped() -> bool:
            return stop.is_set() or ended.is_set()

        reader = GroupReader(store, renderer, config.policy, ranks.rank, ranks.count, rules.score, is_stopped)
        shares = StepShares(ranks.rank, ranks.count, config.trainer.groups_per_step)
        prefetcher = Prefetcher(reader.read, shares if ranks.count > 1 else None)
        life.callback(prefetcher.close)
        life.callback(ended.set)  # Before the prefetcher closes: groups that it reads wait for no scores then.
        builder, outputs = None, None
        if publisher:
            batch_size = 1 if rules.is_full else config.trainer.groups_per_step
            builder = start_builder(config, store, prefetcher, state, epoch, life, left_out.group_ids, batch_size)
            publisher.publish_consumed(builder.position.groups_consumed)
            outputs = Rank0Outputs(builder.consumer, publisher, store, StepReporter())
            if state.last is not None:
                outputs.record_last(state.last)
        log.info(
            "training",
            version=state.version,
            train_step=state.train_step,
            epoch=epoch,
            ranks=ranks.count,
            objective=config.trainer.objective,
            clip_low=config.trainer.clip_low,
            clip_high=config.trainer.clip_high,
        )
        most = group_capacity(config.trainer.groups_per_step, config.curation.max_staleness)
        feed = BatchFeed(ranks, prefetcher, builder, stop, rules.is_full, rules.cut, most)
        loop = Loop(config, ranks, learner, feed, checkpoints, outputs, epoch, stop, left_out, rules, health.note_turn)
        loop.run(state)
        log.info("training ended", stopped=stop.is_set())
    return 0


def begin(
    publisher: WeightPublisher | None, ranks: Ranks, restored: TrainerState | None, snapshot: WeightSnapshot
) -> TrainerState:
    """Publish the version of a restored state, or the first; return the state that training begins with. Collective."""
    with ranks.first_working():
        begun = publisher.begin(restored, snapshot) if publisher else None
    state: TrainerState = ranks.from_first(begun, TrainerState)
    return state


@contextlib.contextmanager
def probed_health() -> Iterator[ProcessHealth]:
    """Yield this rank's health, for which the first rank of a node answers probes.

    A pod's ranks share its address, and collectives bind their turns.
    """
    health = ProcessHealth(TURN_BOUND_S)
    if os.environ.get("LOCAL_RANK", "0") != "0":
        yield health
        return
    with answering_probes(health):
        yield health


def checkpoints_of(config: Config, ranks: Ranks, learner: Learner, stop: threading.Event) -> Checkpoints:
    """Return the run's checkpoints: in its folder, and in ``trainer.checkpoints_uri`` if that is set."""
    uri = weight_location.checkpoint_base(config)
    store = CheckpointStore(uri, stop) if uri else None
    return Checkpoints(config.run.folder / "checkpoints", ranks, learner.frozen_sha256, learner.critic, store)


def not_finite_message(folder: Path, restored: TrainerState | None, fault: str) -> str:
    """Return the error text for initial weights that are not finite."""
    if restored is None:
        return f"policy.path: the model in {folder} has weights that are not finite: {fault}"
    return (
        f"the checkpoint of step {restored.train_step} has weights that are not finite: {fault}. Remove its "
        "folder to resume from the one before, or start another run with `dart-streams run --init`"
    )


def claimed_epoch(config: Config, store: SyncStore) -> int:
    """Claim and return an epoch above every claimed epoch and every epoch on ``weights``."""
    known = WeightState(model_id=config.policy.model_id)
    for record in sync_clients.read_events(config.bus, "trainer-epochs", weights.TOPIC):
        known = known.accept(record)
    return store.claim_epoch(config.policy.model_id, beyond=max(known.epoch, 0))


def start_builder(
    config: Config,
    store: SyncStore,
    prefetcher: Prefetcher,
    state: TrainerState,
    epoch: int,
    life: contextlib.ExitStack,
    left_out: frozenset[str],
    batch_size: int,
) -> BatchBuilder:
    """Start the consumer thread and return the builder of batches of ``batch_size`` groups that reads from it."""
    size = config.trainer.groups_per_step
    limit_bytes = PREFETCH_MB * 1024 * 1024
    ahead: deque[CuratedGroup] = deque(maxlen=PREFETCH_STEPS * size)

    def on_group(group: CuratedGroup) -> None:
        if prefetcher.shares is None:  # Otherwise all ranks read what a plan names, in its order.
            prefetcher.want(group)
        ahead.append(group)

    position = resumed_position(config.bus, state.position)
    consumer = CuratedConsumer(
        config.bus,
        position,
        config.policy.model_id,
        epoch,
        capacity=PREFETCH_STEPS * size,
        claimed=functools.partial(store.claimed_epoch, config.policy.model_id),
        on_group=on_group,
        is_full=lambda: consumer.queued() >= size and prefetcher.held_bytes > limit_bytes,
    )
    life.enter_context(consumer)
    stalls = StallDetector(log, f"groups on {config.bus.prefix}{curated.TOPIC.name}", config.telemetry.stall_s)
    return BatchBuilder(consumer, position, batch_size, config.curation.max_staleness, stalls, ahead, left_out)


@contextlib.contextmanager
def stopped_by_signals() -> Iterator[threading.Event]:
    """Yield an event that SIGTERM and SIGINT set, and the end of the terminal; a second signal exits at once."""
    stop = threading.Event()

    def on_signal(number: int, _frame: object) -> None:
        if stop.is_set():
            sys.exit(128 + number)
        stop.set()

    before = {number: signal.signal(number, on_signal) for number in stop_signals()}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
