"""The second set of weights, as far as a machine without a GPU can show it: each way serves what was published.

What is not shown here: pinned memory, copies that overlap, CUDA graphs, and what vLLM leaves of a GPU's memory.
"""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

ROOT = Path(__file__).parents[2]


def served(folder: Path, mode: str) -> dict[str, Any]:
    command = [sys.executable, "-m", "tests.model.second_set", str(folder), mode]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stderr[-3000:]
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


@pytest.mark.parametrize(
    ("mode", "loader", "same_places"),
    [("copied", "Copied", True), ("none", "InPlace", None), ("device", "DoubleBuffered", False)],
)
def test_each_way_of_loading_serves_each_version_as_the_trainer_published_it(
    tmp_path: Path, mode: str, loader: str, same_places: bool | None
) -> None:
    """Parity with transformers is checked after each switch; what is copied stays where CUDA graphs look for it."""
    found = served(tmp_path, mode)
    assert found["loader"] == loader
    assert found["digest"]
    assert found["versions"][-1] in (0, 1)
    assert found["pause_ms"] > 0
    if same_places is not None:
        assert found["same_places"] == same_places


def test_a_copy_leaves_tensors_where_they_are_and_refuses_another_shape_or_type() -> None:
    from workers.rollout.weight_loading import copy_tensors

    one, other = nn.BatchNorm1d(3), nn.BatchNorm1d(3)
    for tensor in (*other.parameters(), *other.buffers()):
        tensor.data = torch.full_like(tensor, 5)
    places = [tensor.data_ptr() for tensor in (*one.parameters(), *one.buffers())]
    copy_tensors(other, one)
    assert [tensor.data_ptr() for tensor in (*one.parameters(), *one.buffers())] == places
    assert all(bool((tensor == 5).all()) for tensor in (*one.parameters(), *one.buffers()))
    for wrong in (nn.BatchNorm1d(4), nn.BatchNorm1d(3).half()):
        with pytest.raises(RuntimeError, match="the second set has"):
            copy_tensors(wrong, one)
