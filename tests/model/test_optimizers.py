"""The 8-bit optimizer: its steps are near AdamW's, its state is restored exactly, and what is not finite is found."""

import math
from pathlib import Path

import pytest
import torch

from dart_streams.config import parse
from tests.model.test_trainer_step import group_of
from trainer.checkpoint import Checkpoints
from trainer.learning import optimizers
from trainer.learning.learner import Learner, never_stop
from trainer.ranks import Ranks, own_device
from trainer.state import TrainerState

RATE = 1e-2
CPU = torch.device("cpu")


class Training:
    """A layer that is trained by a configured optimizer, and its checkpoints."""

    def __init__(self, folder: Path, optimizer: str) -> None:
        torch.manual_seed(0)
        self.layer = torch.nn.Linear(128, 256)
        settings = parse({"trainer": {"optimizer": optimizer, "learning_rate": RATE}}).trainer
        self.optimizer = optimizers.build(self.layer.parameters(), settings, CPU)
        self.checkpoints = Checkpoints(folder, Ranks(0, 1, CPU))

    def step(self, number: int) -> None:
        random = torch.Generator().manual_seed(number)
        self.layer(torch.randn(8, 128, generator=random)).square().mean().backward()
        self.optimizer.step()
        self.optimizer.zero_grad()

    def save(self, number: int) -> None:
        self.checkpoints.save(self.layer, self.optimizer, TrainerState(version=number, train_step=number), 1)

    def restore(self) -> TrainerState | None:
        return self.checkpoints.restore(self.layer, self.optimizer)

    @property
    def moments(self) -> list[torch.Tensor]:
        state = self.optimizer.state[self.layer.weight]
        return [state["exp_avg"], state["exp_avg_sq"]]


def test_ranks_share_the_cores_of_their_container_as_threads(monkeypatch):
    monkeypatch.setattr("os.sched_getaffinity", lambda _: set(range(8)))
    monkeypatch.setattr("os.cpu_count", lambda: 64)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    before = torch.get_num_threads()
    try:
        assert (own_device(), torch.get_num_threads()) == (CPU, 2)
    finally:
        torch.set_num_threads(before)


def test_8_bit_steps_are_near_those_of_adamw(tmp_path):
    whole, eight = (Training(tmp_path, name) for name in ("adamw", "adamw_8bit"))
    start = whole.layer.weight.detach().clone()
    for number in range(20):
        whole.step(number)
        eight.step(number)
    assert all(map(optimizers.is_quantized, eight.moments)) and not any(map(optimizers.is_quantized, whole.moments))
    moved = whole.layer.weight - start
    assert (eight.layer.weight - whole.layer.weight).norm() < 0.05 * moved.norm()


def test_a_resumed_8_bit_optimizer_goes_on_as_if_it_had_not_stopped(tmp_path):
    first, second = (Training(tmp_path, "adamw_8bit") for _ in range(2))
    for number in range(3):
        first.step(number)
    first.save(3)
    second.step(9)
    assert second.restore() == TrainerState(version=3, train_step=3)
    for ours, restored in zip(first.moments, second.moments, strict=True):
        assert torch.equal(ours.codes, restored.codes)
        torch.testing.assert_close(ours.scale, restored.scale, rtol=1e-6, atol=0)
    for each in (first, second):
        each.step(4)
    torch.testing.assert_close(second.layer.weight, first.layer.weight, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize(("saved", "read"), [("adamw", "adamw_8bit"), ("adamw_8bit", "adamw")])
def test_the_other_optimizer_reads_a_checkpoint(tmp_path, saved, read):
    first, second = Training(tmp_path, saved), Training(tmp_path, read)
    first.step(1)
    first.save(1)
    assert second.restore() == TrainerState(version=1, train_step=1)
    for ours, restored in zip(first.moments, second.moments, strict=True):
        parts = optimizers.plain_part(ours), optimizers.plain_part(restored)
        assert (parts[0] - parts[1]).norm() < 0.05 * parts[0].norm()
    assert [float(group["lr"]) for group in second.optimizer.param_groups] == [pytest.approx(RATE)]


@pytest.fixture
def learner(policy, renderer, ranks) -> Learner:
    return Learner(policy, renderer, parse({"trainer": {"optimizer": "adamw_8bit"}}).trainer, ranks)


def test_a_learner_clips_and_steps_with_8_bit_state(learner, renderer):
    before = {name: value.clone() for name, value in learner.weights().items()}
    learned = learner.learn([group_of(renderer, 0)], 0, never_stop)
    assert learned.updated and math.isfinite(learned.metrics["grad_norm"])
    changed = [name for name, value in learner.weights().items() if not torch.equal(before[name], value)]
    assert len(changed) > 0.9 * len(before)
    kinds = [optimizers.is_quantized(optimizers.local_part(of["exp_avg"])) for of in learner.optimizer.state.values()]
    assert any(kinds) and not all(kinds), "small tensors stay in float32"
    assert learner.fault_of(learner.snapshot()) == ""


def test_8_bit_state_that_is_not_finite_is_found(learner, renderer):
    learner.learn([group_of(renderer, 0)], 0, never_stop)
    moments = (optimizers.local_part(state["exp_avg"]) for state in learner.optimizer.state.values())
    next(filter(optimizers.is_quantized, moments)).scale[0] = math.inf
    assert learner.fault_of(learner.snapshot()).startswith("exp_avg of ")
