"""The second set of weights, as far as a machine without a GPU can show it: each way serves what was published.

What is not shown here: pinned memory, copies that overlap, CUDA graphs, and what vLLM leaves of a GPU's memory.
"""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from tests.model.breadth import second_set
from tests.model.forkserver import spawning


def served(folder: Path, mode: str) -> dict[str, Any]:
    """Return what a process of its own has found; one that takes too long is ended."""
    with spawning.Pool(1) as process:
        return process.apply_async(second_set.serve, (folder, mode)).get(500)


@pytest.mark.parametrize(
    ("mode", "loader", "same_places"),
    [("copied", "Copied", True), ("none", "InPlace", None), ("device", "DoubleBuffered", False)],
)
def test_each_loader_serves_each_published_version(tmp_path, mode, loader, same_places):
    """Parity with transformers is checked after each switch; what is copied stays where CUDA graphs look for it."""
    found = served(tmp_path, mode)
    assert found["loader"] == loader
    assert found["digest"]
    assert found["versions"][-1] in (0, 1)
    assert found["pause_ms"] > 0
    if same_places is not None:
        assert found["same_places"] == same_places
    if mode == "copied":
        assert found["spare_stays"], "in pinned memory, once and for all"
        assert found["same_contents"], "each tensor was copied"
    if mode == "device":
        assert found["exchanged"]
        assert not found["same_contents"], "the second set has the version before"


def test_only_unpinned_tensors_are_pinned_after_a_load(monkeypatch):
    """There is no pinned memory without an accelerator: its two functions are stood in for by a set of addresses."""
    from workers.rollout.weight_loading import pin_tensors

    pinned: set[int] = set()

    def pin(tensor: torch.Tensor) -> torch.Tensor:
        copy = tensor.clone()
        pinned.add(copy.data_ptr())
        return copy

    monkeypatch.setattr(torch.Tensor, "pin_memory", pin)
    monkeypatch.setattr(torch.Tensor, "is_pinned", lambda tensor: tensor.data_ptr() in pinned)
    model = nn.BatchNorm1d(3)
    values = [tensor.clone() for tensor in (*model.parameters(), *model.buffers())]
    pin_tensors(model)
    first = [tensor.data_ptr() for tensor in (*model.parameters(), *model.buffers())]
    model.weight.data = model.weight.data.clone()
    pin_tensors(model)
    second = [tensor.data_ptr() for tensor in (*model.parameters(), *model.buffers())]
    assert second[1:] == first[1:]
    assert set(second) <= pinned
    assert all(torch.equal(a, b) for a, b in zip((*model.parameters(), *model.buffers()), values, strict=True))


def test_a_copy_keeps_addresses_and_refuses_other_shapes_or_types():
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
