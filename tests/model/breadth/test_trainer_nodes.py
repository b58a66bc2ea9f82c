"""Trainers of several nodes: gradients of HSDP, and checkpoints read by other numbers of nodes and ranks."""

import os
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.model.forkserver import run_ranks
from tests.model.sharded_layer import Task, results, resumed, two_steps
from tests.model.two_ranks import COUNTED_BY_RANK, StepSetup, steps_of
from trainer.ranks import join_job

SETUPS = {"all weights": StepSetup(minibatches=2), "adapters": StepSetup(minibatches=2, rank=3)}
"""With a KL reference, imitation, minibatches and the clip of the gradient."""


@pytest.fixture(scope="module")
def alone(policy: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What one rank makes of each setup."""
    return steps_of(policy, 1, tmp_path_factory.mktemp("alone"), SETUPS)


@pytest.mark.parametrize(("count", "setups"), [(4, ["all weights", "adapters"]), (2, ["all weights"])])
def test_two_nodes_give_the_gradients_and_weights_of_one_rank(policy, alone, tmp_path, count, setups):
    made = steps_of(policy, count, tmp_path, {name: SETUPS[name] for name in setups}, nodes=2)
    for name in setups:
        assert_same(made[name], alone[name])


def assert_same(two: dict[str, Any], one: dict[str, Any]) -> None:
    assert one["updates"] == two["updates"] == 2
    assert one["gradients"].keys() == two["gradients"].keys()
    for name, gradient in one["gradients"].items():
        assert (two["gradients"][name] - gradient).norm() <= 1e-4 * gradient.norm(), name
    for name in one["figures"].keys() - COUNTED_BY_RANK:
        assert two["figures"][name] == pytest.approx(one["figures"][name], rel=1e-4, abs=1e-6), name
    for name, weight in one["weights"].items():
        torch.testing.assert_close(two["weights"][name], weight, rtol=0, atol=1e-5)
    assert two["probe"] == pytest.approx(one["probe"], abs=1e-4)


READ = [((1, 1), []), ((2, 1), []), ((4, 2), [1]), ((2, 2), [0, 2]), ((1, 1), [3])]
"""Ranks and nodes of jobs that each save a checkpoint, and read those of jobs before."""


def test_a_checkpoint_is_read_by_other_numbers_of_nodes_and_ranks(tmp_path):
    saved = []
    for number, ((count, nodes), others) in enumerate(READ):
        tasks = [*(Task(tmp_path / str(other), resumed) for other in others), Task(tmp_path / str(number), two_steps)]
        *read, own = results(count, tasks, tmp_path / "result", nodes=nodes)
        assert read == [[[2, pytest.approx(saved[other])]] * count for other in others]
        saved.append(own[0])


def mesh_of_a_rank(job, result):
    os.environ.update(job)
    with join_job() as ranks:
        mesh = ranks.mesh()
        torch.save((mesh.mesh.tolist(), mesh.mesh_dim_names), result.with_suffix(f".{ranks.rank}"))


@pytest.mark.parametrize(
    ("count", "nodes", "mesh"),
    [(4, 2, ([[0, 1], [2, 3]], ("replicate", "shard"))), (2, 2, ([0, 1], None)), (2, 1, ([0, 1], None))],
)
def test_nodes_replicate_what_their_ranks_shard(tmp_path, count, nodes, mesh):
    run_ranks(count, mesh_of_a_rank, tmp_path / "mesh", limit_s=400, nodes=nodes)
    assert [torch.load(tmp_path / f"mesh.{rank}") for rank in range(count)] == [mesh] * count
