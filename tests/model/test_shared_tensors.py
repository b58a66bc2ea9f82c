"""Weights in shared memory: another process reads them where they are, and nothing of them is left."""

import gc
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from dart_streams.policy.shared_tensors import SharedTensors, map_tensors

TENSORS = {
    "half": torch.randn(3, 5).bfloat16(),
    "scalar": torch.tensor(2.5, dtype=torch.float64),
    "none": torch.empty(0, 4),
    "numbers": torch.arange(7),
}
READ = """
import sys, torch
from dart_streams.policy.shared_tensors import TensorPlace, map_tensors
place = TensorPlace(sys.argv[1], int(sys.argv[2]), torch.int64, (7,))
tensor = map_tensors({"numbers": place})["numbers"]
print(tensor.tolist())
tensor.zero_()
"""


def count_files() -> int:
    """Return how many files in memory this process has open; threads of others close theirs at any time."""
    return sum("/memfd:weights" in str(one.resolve()) for one in Path("/proc/self/fd").iterdir())


def test_places_have_the_values_of_what_was_copied():
    shared = SharedTensors()
    copies = shared.copy(TENSORS)
    mapped = map_tensors(shared.places(copies))
    assert list(mapped) == list(TENSORS)
    for name, tensor in TENSORS.items():
        assert mapped[name].dtype == tensor.dtype
        assert torch.equal(mapped[name], tensor)
    copies["numbers"][0] = 9
    assert mapped["numbers"][0] == 9, "not copied again"


def test_another_process_reads_them_and_changes_only_its_own():
    shared = SharedTensors()
    copies = shared.copy(TENSORS)
    place = shared.places(copies)["numbers"]
    command = [sys.executable, "-c", READ, place.file, str(place.offset)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=Path(__file__).parents[2])
    assert done.stdout.strip() == str(list(range(7)))
    assert torch.equal(copies["numbers"], TENSORS["numbers"])


def test_memory_ends_with_its_tensors():
    gc.collect()  # files that tests before have left in cycles
    before = count_files()
    shared = SharedTensors()
    copies = shared.copy(TENSORS)
    kept = copies["half"]
    assert count_files() > before
    del copies
    gc.collect()
    assert torch.equal(kept, TENSORS["half"]), "one tensor keeps all"
    del kept
    gc.collect()
    assert count_files() == before


def test_other_tensors_have_no_place():
    shared = SharedTensors()
    shared.copy(TENSORS)
    with pytest.raises(KeyError, match="half is not in shared memory"):
        shared.places({"half": TENSORS["half"]})
