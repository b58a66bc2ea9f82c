"""The trainer publishes what changed, and what a worker could not load comes whole."""

import functools
import itertools
import uuid
from collections.abc import Callable
from pathlib import Path

import fsspec
import pytest
import torch
from transformers import AutoModelForImageTextToText

from dart_streams.policy import probe, resident_weights, weights
from dart_streams.policy.rendering import Renderer
from dart_streams.policy.resident_weights import ResidentWeights
from tests import events
from tests.model import plain_transformers
from tests.model.test_trainer_run import Run
from topics import weights_serving
from trainer.learning.learner import Learner, WeightSnapshot
from trainer.learning.model import probe_of
from trainer.publish import WeightPublisher
from trainer.ranks import join_job
from trainer.state import TrainerState

PUBLISH = {"dtype": "bfloat16", "full_every": 4}
PROBE = probe.Probe(prompt=[], tokens=[], logprobs=[])


@pytest.fixture
def publishing(new_run: Callable[..., Run]) -> Callable[..., Run]:
    return functools.partial(new_run, learning_rate=1e-6, publish=PUBLISH)


class Versions:
    """A publisher on an object store, and what a worker announces to it."""

    def __init__(self, ours: Run, base: str) -> None:
        self.ours = ours
        self.base = base
        self.beats = itertools.count()
        self.publisher = WeightPublisher(ours.config, epoch=1, clock=lambda: 0.0)
        self.state = torch.randn(5000, generator=torch.Generator().manual_seed(0)).bfloat16()

    def snapshot(self, number: int) -> WeightSnapshot:
        self.state = self.state.clone()
        self.state[number::500] += 1
        return WeightSnapshot({"weight": self.state}, PROBE)

    def publish(self, number: int) -> str:
        self.publisher.publish(TrainerState(version=number), self.snapshot(number))
        return self.ours.versions()[-1].kind

    def announce(self, version: int, failed: int | None = None) -> None:
        event = events.weights_serving(
            version, alive_ms=next(self.beats), failed_version=failed, error=failed and "torn"
        )
        self.ours.publish(weights_serving.TOPIC, event)

    def stored(self) -> list[int]:
        filesystem, folder = fsspec.core.url_to_fs(self.base)
        return sorted(int(Path(place).name[1:7]) for place in filesystem.ls(folder, detail=False))


@pytest.fixture
def stored(publishing: Callable[..., Run]) -> Versions:
    base = f"memory://{uuid.uuid4().hex}/weights"
    return Versions(publishing(keep_versions=1, weights_uri=base), base)


def test_all_that_a_kept_version_is_made_of_stays_and_no_more(stored, tmp_path):
    with stored.publisher as publisher:
        publisher.begin(None, stored.snapshot(0))
        stored.announce(0)
        kinds = [stored.publish(number) for number in range(1, 5)]
        assert kinds == ["delta", "delta", "delta", "full"]
        assert stored.stored() == [0, 1, 2, 3, 4], "a live worker serves version 0, and may be fetching any other"
        stored.announce(3)
        stored.publish(5)
        assert stored.stored() == [0, 1, 2, 3, 4, 5], "the worker may be fetching version 3, which is made from 0"
        stored.announce(5)
        stored.publish(6)
        assert stored.stored() == [4, 5, 6], "version 6 is made from 4 and 5"
        resident_weights.materialize_weights(stored.ours.versions()[-1], tmp_path)


def test_a_failed_delta_is_published_whole_while_the_trainer_waits(stored, tmp_path):
    with stored.publisher as publisher:
        publisher.begin(None, stored.snapshot(0))
        stored.announce(0)
        assert [stored.publish(number) for number in (1, 2)] == ["delta", "delta"]
        publisher.heal()
        assert [version.kind for version in stored.ours.versions()] == ["full", "delta", "delta"]
        filesystem, folder = fsspec.core.url_to_fs(stored.base)
        filesystem.rm(f"{folder}/v000001-e1", recursive=True)
        late = ResidentWeights(tmp_path)
        with pytest.raises(weights.MissingWeights, match="version 1"):
            late.advance(stored.ours.versions()[-1])
        stored.announce(0, failed=2)
        publisher.heal()
        healed = stored.ours.versions()[-1]
        assert (healed.version, healed.kind, healed.base) == (2, "full", [])
        late.advance(healed)
        assert torch.equal(late.tensors["weight"], stored.state)
        publisher.heal()
        assert len(stored.ours.versions()) == 4, "once is enough"
        stored.announce(2)
        assert stored.publish(3) == "delta"
        stored.announce(2, failed=3)
        assert stored.publish(4) == "full", "the next version is whole, without waiting to be idle"


def test_the_probe_uses_rounded_weights_and_restores_the_trainers(publishing, policy):
    """Otherwise the parity gate would take rounding for a fault: 0.01 nats of the tiny policy after its warm-up."""
    config = publishing().config
    renderer = Renderer(policy, config.policy.min_pixels, config.policy.max_pixels)
    with join_job() as ranks:
        learner = Learner(policy, renderer, config.trainer, ranks)
        before = {name: value.clone() for name, value in learner.weights().items()}
        snapshot = learner.snapshot()
        again = probe_of(learner.scorer, renderer)
        after = learner.weights()
    assert all(torch.equal(before[name], value) for name, value in after.items())
    assert {value.dtype for value in snapshot.tensors.values()} == {torch.bfloat16}
    plain = AutoModelForImageTextToText.from_pretrained(policy, dtype=torch.float32)
    exact = plain_transformers.measured(plain, renderer).logprobs
    assert probe.mean_mismatch(again, exact) < 1e-5, "the next pass is with the unrounded ones"
    unrounded = probe.mean_mismatch(snapshot.probe, exact)
    plain.load_state_dict({name: value.float() for name, value in snapshot.tensors.items()})
    assert probe.mean_mismatch(snapshot.probe, plain_transformers.measured(plain, renderer).logprobs) < 1e-5 < unrounded
