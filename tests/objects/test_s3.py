"""Weights and checkpoints on a real S3 server that is killed and started again: nothing is lost or read in part."""

import functools
import shutil
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import fsspec
import pytest
import structlog
import torch

from dart_streams import s3_session
from dart_streams.config.trainer import Publish
from dart_streams.errors import ServiceUnavailable, UserError
from dart_streams.file_storage import StorageUnreachable
from dart_streams.policy import weights
from dart_streams.policy.resident_weights import ResidentWeights
from tests.model.test_checkpoint import Training
from tests.model.test_trainer_deltas import PROBE
from tests.objects.server import BUCKET, PROGRAM, ObjectServer, running
from tests.waiting import wait_until
from topics.weights import WeightVersion
from trainer import checkpoint_store, version_writer
from trainer.checkpoint import CheckpointNotWritten
from trainer.checkpoint_manifest import MANIFEST
from trainer.checkpoint_store import CheckpointStore
from trainer.state import TrainerState
from trainer.version_writer import VersionWriter, write_patiently

pytestmark = [
    pytest.mark.timeout(1200),
    pytest.mark.skipif(not PROGRAM.is_file(), reason="`make test-s3` builds the S3 server"),
]
WEIGHTS, CHECKPOINTS = f"s3://{BUCKET}/weights", f"s3://{BUCKET}/checkpoints/run"
STEPS = 6
WAIT_S = 300.0


@pytest.fixture
def server(tmp_path, monkeypatch) -> Iterator[ObjectServer]:
    monkeypatch.setattr(checkpoint_store, "RETRY_INTERVAL_S", 0.2)
    monkeypatch.setattr(version_writer, "RETRY_INTERVAL_S", 0.2)
    with running(tmp_path) as server:
        for name, value in server.environment.items():
            monkeypatch.setenv(name, value)
        fsspec.get_filesystem_class("s3").clear_instance_cache()
        yield server


def training(folder: Path, uri: str = CHECKPOINTS) -> Training:
    made = Training(folder)
    made.checkpoints.store = CheckpointStore(uri)
    return made


class Publisher:
    """A trainer's writes, step by step: its checkpoint, then a version, full or a delta."""

    def __init__(self, folder: Path) -> None:
        self.training = training(folder)
        self.writer = VersionWriter(Publish(full_every=3, dtype="bfloat16"))
        self.versions: list[WeightVersion] = []
        self.may_go = threading.Semaphore(0)

    def run(self) -> None:
        for number in range(1, STEPS + 1):
            self.may_go.acquire()
            self.training.step(number)
            uri = f"{WEIGHTS}/v{number:06d}-e1"
            tensors = {"a.weight": torch.zeros(4096, dtype=torch.bfloat16)}
            tensors["a.weight"][:number] = 1.0

            def write(uri: str = uri, number: int = number, tensors: dict[str, torch.Tensor] = tensors) -> Any:
                return self.writer.write(uri, number, tensors, PROBE)

            files = write_patiently(write, number, uri, threading.Event())
            own = files.own
            self.versions.append(
                WeightVersion(
                    model_id="layer",
                    version=number,
                    uri=uri,
                    sha256=own.sha256,
                    train_step=number,
                    epoch=1,
                    groups_consumed=number,
                    kind=own.kind,
                    file_sha256=own.file_sha256,
                    base=files.base,
                )
            )


class Reader:
    """A rollout worker's reads: each version in turn, again while the store is away."""

    def __init__(self, publisher: Publisher, cache: Path) -> None:
        self.publisher, self.resident = publisher, ResidentWeights(cache)
        self.served: list[str] = []
        self.unreachable = 0

    def run(self) -> None:
        pause = threading.Event()
        while len(self.served) < STEPS:
            wait_until(lambda: len(self.publisher.versions) > len(self.served), "a version to serve", WAIT_S)
            try:
                self.resident.advance(self.publisher.versions[len(self.served)])
            except StorageUnreachable:
                self.unreachable += 1
                pause.wait(0.2)
            else:
                self.served.append(weights.digest_tensors(self.resident.tensors))


def test_writer_and_reader_go_on_after_the_server_was_killed(server, tmp_path):
    publisher = Publisher(tmp_path / "checkpoints")
    reader = Reader(publisher, tmp_path / "cache")
    with structlog.testing.capture_logs() as logs, ThreadPoolExecutor(2) as pool:
        jobs = [pool.submit(publisher.run), pool.submit(reader.run)]
        publisher.may_go.release(2)
        wait_until(lambda: len(reader.served) == 2 or any(job.done() for job in jobs), "two versions", WAIT_S)
        server.kill()
        publisher.may_go.release(STEPS - 2)
        wait_until(lambda: any("waiting for" in log["event"] for log in logs), "a log line about the outage", WAIT_S)
        assert len(publisher.versions) == 2, "no version is announced while the store is away"
        server.start()
        for job in jobs:
            job.result(WAIT_S)
    assert reader.served == [version.sha256 for version in publisher.versions]
    assert {version.kind for version in publisher.versions} == {"full", "delta"}
    shutil.rmtree(tmp_path / "checkpoints")
    again = training(tmp_path / "new")
    assert again.restore() == TrainerState(version=STEPS, train_step=STEPS)
    assert again.layer.weight.equal(publisher.training.layer.weight)
    assert len(CheckpointStore(CHECKPOINTS).folders()) == 2


def test_a_reader_without_the_server_keeps_what_it_has(server, tmp_path):
    state = {"a.weight": torch.arange(6.0)}
    uri = f"{WEIGHTS}/v000001-e1"
    version = WeightVersion(
        model_id="layer", version=1, uri=uri, sha256=weights.save(state, uri), train_step=1, epoch=1, groups_consumed=1
    )
    server.kill()
    reader = ResidentWeights(tmp_path / "cache")
    with pytest.raises(StorageUnreachable, match="can't be reached"):
        reader.advance(version)
    server.start()
    reader.advance(version)
    assert reader.tensors["a.weight"].equal(state["a.weight"])


def test_an_outage_at_the_start_of_a_trainer_ends_it_to_be_started_again(server, tmp_path, monkeypatch):
    """A supervisor gives up on a trainer that ends with the exit code of an error to correct."""
    training(tmp_path / "own").step(1)
    monkeypatch.setattr(checkpoint_store, "STORE_TIMEOUT_S", 0.5)
    server.kill()
    with pytest.raises(ServiceUnavailable, match=r"can't be listed .*trainer\.checkpoints_uri") as raised:
        training(tmp_path / "own").restore()
    assert raised.value.exit_code != UserError.exit_code
    server.start()
    assert training(tmp_path / "own").restore() == TrainerState(version=1, train_step=1)


def test_a_server_that_never_answers_a_version_is_logged_and_awaited(server):
    """Without a bound of ours, a write to it lasts forever."""
    filesystem = fsspec.get_filesystem_class("s3")
    uri, state = f"{WEIGHTS}/v000001-e1", {"a.weight": torch.arange(6.0)}
    with pytest.MonkeyPatch.context() as patched, structlog.testing.capture_logs() as logs:
        patched.setattr(filesystem, "read_timeout", filesystem.read_timeout / 5)
        patched.setattr(s3_session, "SILENT_S", s3_session.SILENT_S / 5)
        with ThreadPoolExecutor(1) as pool:
            with server.silent():
                write = functools.partial(weights.save, state, uri)
                written = pool.submit(write_patiently, write, 1, uri, threading.Event())
                wait_until(
                    lambda: any("waiting for" in log["event"] for log in logs), "a log line about the silence", WAIT_S
                )
            sha256 = written.result(WAIT_S)
    version = WeightVersion(
        model_id="layer", version=1, uri=uri, sha256=sha256, train_step=1, epoch=1, groups_consumed=1
    )
    assert weights.find_damage(version.parts[-1]) == ""


def test_an_upload_that_the_servers_death_cuts_is_not_there(server, tmp_path):
    """The server has part of the object on its disk when it dies; the name has nothing, and the next try all of it."""
    file = tmp_path / "large"
    file.write_bytes(bytes(range(256)) * (64 << 12))
    store, name = CheckpointStore(CHECKPOINTS), "epoch-0001-step-00000001"
    before = server.received()
    with ThreadPoolExecutor(1) as pool:
        upload = pool.submit(store.upload, [file], name)
        wait_until(lambda: server.received() > before + (1 << 20) or upload.done(), "the first bytes", WAIT_S)
        assert not upload.done(), "the server dies in the middle"
        server.kill()
        server.start()
        upload.result(WAIT_S)
    again = fsspec.core.url_to_fs(f"{CHECKPOINTS}/{name}")[0]
    assert again.cat_file(f"{CHECKPOINTS}/{name}/large") == file.read_bytes()
    assert store.names() == [], f"without {MANIFEST} it is no checkpoint"


@pytest.mark.parametrize("uri", ["s3://misspelt/run", CHECKPOINTS])
def test_a_missing_bucket_and_wrong_keys_are_named(server, tmp_path, monkeypatch, uri):
    if uri == CHECKPOINTS:
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wrong")
    with pytest.raises(CheckpointNotWritten, match=f"check that {uri} exists and is writable"):
        training(tmp_path / "own", uri).step(1)
    if uri == CHECKPOINTS:
        with pytest.raises(UserError, match=r"can't be listed .*trainer\.checkpoints_uri"):
            training(tmp_path / "own", uri).restore()
