"""Trainers of several nodes: gradients of HSDP, and checkpoints read by other numbers of nodes and ranks."""

import os

import pytest
import torch

from tests.model import sharded_layer
from tests.model.forkserver import run_ranks
from tests.model.two_ranks import COUNTED_BY_RANK, StepSetup, step_of
from trainer.ranks import join_job


@pytest.mark.parametrize(("count", "nodes", "rank"), [(4, 2, 0), (4, 2, 3), (2, 2, 0)])
def test_two_nodes_give_the_gradients_and_weights_of_one_rank(policy, tmp_path, count, nodes, rank):
    """With a KL reference, imitation, minibatches and the clip of the gradient; all weights, or adapters of rank 3."""
    setup = StepSetup(minibatches=2, rank=rank)
    one = step_of(policy, 1, tmp_path / "one.pt", setup)
    two = step_of(policy, count, tmp_path / "two.pt", setup, nodes)
    assert one["updates"] == two["updates"] == 2
    assert one["gradients"].keys() == two["gradients"].keys()
    for name, gradient in one["gradients"].items():
        assert (two["gradients"][name] - gradient).norm() <= 1e-4 * gradient.norm(), name
    for name in one["figures"].keys() - COUNTED_BY_RANK:
        assert two["figures"][name] == pytest.approx(one["figures"][name], rel=1e-4, abs=1e-6), name
    for name, weight in one["weights"].items():
        torch.testing.assert_close(two["weights"][name], weight, rtol=0, atol=1e-5)
    assert two["probe"] == pytest.approx(one["probe"], abs=1e-4)


RESHARDED = [((2, 2), (1, 1)), ((1, 1), (2, 2)), ((4, 2), (2, 2)), ((2, 1), (4, 2))]
"""Ranks and nodes that save, and those that read."""


@pytest.mark.parametrize(("saved_by", "read_by"), RESHARDED)
def test_a_checkpoint_is_read_by_other_numbers_of_nodes_and_ranks(tmp_path, saved_by, read_by):
    folder = tmp_path / "checkpoints"
    (count, nodes), (readers, their_nodes) = saved_by, read_by
    saved = sharded_layer.results(count, folder, sharded_layer.two_steps, tmp_path / "saved", nodes=nodes)
    restored = sharded_layer.results(readers, folder, sharded_layer.resumed, tmp_path / "result", nodes=their_nodes)
    assert restored == [[2, pytest.approx(saved[0])]] * readers


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
    run_ranks(count, mesh_of_a_rank, tmp_path / "mesh", limit_s=120, nodes=nodes)
    assert [torch.load(tmp_path / f"mesh.{rank}") for rank in range(count)] == [mesh] * count
