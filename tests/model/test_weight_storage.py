"""Where weights lie: a store that is away is awaited, and one without the file is refused."""

import errno
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import structlog
import torch

from dart_streams.bus import sync_clients
from dart_streams.errors import UserError
from dart_streams.file_storage import StorageUnreachable
from dart_streams.policy import weights
from tests.model.object_store import BUCKET, EndpointConnectionError, ObjectStore, registered
from tests.model.test_trainer_deltas import PROBE
from topics import weights as weights_topic
from topics.weights import WeightPart, WeightVersion
from trainer import version_writer
from trainer.learning.learner import WeightSnapshot
from trainer.publish import WeightPublisher
from trainer.state import TrainerState
from trainer.version_writer import VersionNotWritten, write_patiently

STATE = {"a.weight": torch.arange(6.0).reshape(2, 3)}
PLACE = f"objects://{BUCKET}/weights/v3"
AWAY = [
    EndpointConnectionError("no endpoint"),
    ConnectionResetError("reset"),
    TimeoutError("slow"),
    OSError(errno.EBUSY, "slow down"),
    OSError(errno.EIO, "503"),
    RuntimeError("event loop is closed"),
]


@pytest.fixture
def store() -> Iterator[type[ObjectStore]]:
    with registered() as kind:
        yield kind


def part(sha256: str, uri: str = PLACE) -> WeightPart:
    return WeightPart(version=3, uri=uri, sha256=sha256)


def test_on_an_object_store_the_weights_come_last_and_under_their_name(store, tmp_path):
    sha256 = weights.save(STATE, PLACE, {weights.PROBE: b"{}"})
    puts = [act for act in store.done if not act.startswith("make")]
    assert puts == [f"put {weights.PROBE}", f"put {weights.FILE}"], "an object is there whole or not at all"
    folder = weights.fetch(part(sha256), tmp_path)
    assert sorted(file.name for file in folder.iterdir()) == [weights.FILE, weights.PROBE]
    (folder / weights.FILE).write_bytes(b"of another")
    assert weights.digest_file(weights.fetch(part(sha256), tmp_path) / weights.FILE) == sha256


def test_a_bucket_is_never_made(store, tmp_path):
    for attempt in (
        lambda: weights.save(STATE, "objects://bucket-misspelt/weights/v3"),
        lambda: weights.fetch(part("0" * 64, "objects://bucket-misspelt/weights/v3"), tmp_path),
    ):
        with pytest.raises((FileNotFoundError, UserError)):
            attempt()
    assert not store.store
    assert not [act for act in store.done if "make" in act]


@pytest.mark.parametrize("error", AWAY, ids=repr)
def test_whatever_its_library_raises_a_store_that_is_away_is_unreachable(store, tmp_path, error):
    sha256 = weights.save(STATE, PLACE)
    for attempt in (
        lambda: weights.save(STATE, PLACE),
        lambda: weights.fetch(part(sha256), tmp_path / "cache"),
        lambda: weights.find_damage(part(sha256)),
    ):
        store.away.append(error)
        with pytest.raises(StorageUnreachable, match=rf"{PLACE} can't be reached \({type(error).__name__}: .*"):
            attempt()
    assert not list((tmp_path / "cache").iterdir())
    assert isinstance(StorageUnreachable(""), OSError), (
        "a rollout worker keeps its weights, as with any fetch that fails"
    )


@pytest.mark.parametrize("error", [PermissionError("denied"), OSError(errno.EINVAL, "bad request")], ids=repr)
def test_a_store_that_answers_no_is_not_away(store, error):
    store.away.append(error)
    with pytest.raises(type(error)) as raised:
        weights.save(STATE, PLACE)
    assert not isinstance(raised.value, StorageUnreachable)


@pytest.mark.parametrize("uri", ["nothing://bucket/weights", "objects+http://x"])
def test_a_protocol_that_is_not_known_is_the_users_to_mend(uri):
    with pytest.raises(UserError, match=r"trainer\.weights_uri"):
        weights.save(STATE, uri)


def test_damage_is_found_wherever_the_weights_lie(store, tmp_path):
    for uri in (PLACE, str(tmp_path / "v3"), "memory://damaged/v3"):
        sha256 = weights.save(STATE, uri)
        assert weights.find_damage(part(sha256, uri)) == ""
        other = weights.save({"a.weight": STATE["a.weight"] + 1}, uri)
        assert f"sha256 {other}, published {sha256}" in weights.find_damage(part(sha256, uri))
    store.store.clear()
    assert weights.find_damage(part(sha256, PLACE)) == f"version 3: no full weights at {PLACE}"


def test_what_is_written_waits_for_the_store_and_says_so(monkeypatch):
    monkeypatch.setattr(version_writer, "RETRY_INTERVAL_S", 0.01)
    answers: list[Any] = [StorageUnreachable("away"), StorageUnreachable("away"), "written"]

    def write() -> Any:
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    with structlog.testing.capture_logs() as logs:
        assert write_patiently(write, 3, PLACE, threading.Event()) == "written"
    assert [(log["event"], log["reason"]) for log in logs] == [("waiting for the weight store", "away")] * 2


def refusing(error: Exception) -> Callable[[], None]:
    def write() -> None:
        raise error

    return write


def test_no_wait_for_permanent_errors_or_after_a_stop():
    stop = threading.Event()
    with pytest.raises(VersionNotWritten, match="check that it exists, is writable and has room"):
        write_patiently(refusing(FileNotFoundError("The specified bucket does not exist")), 3, PLACE, stop)
    stop.set()
    with pytest.raises(VersionNotWritten, match="once the store is back"):
        write_patiently(refusing(StorageUnreachable("away")), 3, PLACE, stop)


def test_a_torn_remote_version_is_rewritten_once_the_store_is_back(services, store, monkeypatch):
    monkeypatch.setattr(version_writer, "RETRY_INTERVAL_S", 0.01)
    place = f"objects://{BUCKET}/weights"
    config = services.config(trainer={"weights_uri": place, "keep_versions": 1})

    def announced() -> WeightVersion:
        return sync_clients.read_events(config.bus, "test", weights_topic.TOPIC)[-1]

    def snapshot(number: int) -> WeightSnapshot:
        return WeightSnapshot({"a.weight": STATE["a.weight"] + number}, PROBE)

    with WeightPublisher(config, epoch=1) as publisher:
        publisher.begin(None, snapshot(0))
        store.away += [EndpointConnectionError("no endpoint")] * 3
        publisher.publish(TrainerState(version=1), snapshot(1))
    newest = announced()
    assert newest.version == 1
    assert weights.find_damage(newest.parts[-1]) == ""
    torn = f"/{BUCKET}/weights/v000001-e1/{weights.FILE}"
    store.store[torn].write(b"torn")
    assert weights.find_damage(newest.parts[-1])
    store.away += [ConnectionResetError("reset")] * 2
    with WeightPublisher(config, epoch=2) as publisher:
        publisher.begin(TrainerState(version=1), snapshot(1))
    again = announced()
    assert (again.version, again.epoch, again.sha256, again.uri) == (1, 2, newest.sha256, newest.uri)
    assert weights.find_damage(again.parts[-1]) == ""
