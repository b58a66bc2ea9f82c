"""A delta makes the later state of the earlier one, to the bit, and takes no more room than it must."""

from collections.abc import Mapping

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dart_streams.policy import deltas, weights

GAPS = st.lists(st.one_of(st.integers(0, 600), st.sampled_from([254, 255, 256, 510, 65_534, 65_535, 65_536, 131_070])))
BITS = st.integers(-(2**15), 2**15 - 1)
HALVES = st.lists(st.tuples(BITS, BITS, st.booleans()), min_size=1, max_size=300)


def copied(state: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {name: tensor.clone() for name, tensor in state.items()}


@given(GAPS)
def test_places_come_back_whatever_lies_between_them(gaps):
    places = np.cumsum(np.array([gap + 1 for gap in gaps], np.int64)) - 1
    assert deltas.decode_gaps(deltas.encode_gaps(places)).tolist() == places.tolist()


@given(HALVES)
def test_any_bits_become_any_others_also_those_of_nan_and_negative_zero(values):
    before = torch.tensor([old for old, _, _ in values], dtype=torch.int16)
    after = torch.tensor([new if changes else old for old, new, changes in values], dtype=torch.int16)
    states = [{"w": bits.view(torch.bfloat16)} for bits in (before, after)]
    found = deltas.diff_weights(*states)
    assert found.changed == int((before != after).sum())
    made = copied(states[0])
    deltas.apply(made, found.tensors)
    assert torch.equal(deltas.element_bits(made["w"]), after)
    assert weights.digest_tensors(made) == weights.digest_tensors(states[1])


@settings(deadline=None)
@given(st.floats(0, 1), st.integers(0, 2**31))
def test_a_delta_is_never_larger_than_the_whole(share, seed):
    random = torch.Generator().manual_seed(seed)
    before = torch.randn(4000, generator=random).bfloat16()
    after = torch.where(torch.rand(4000, generator=random) < share, -before, before)
    found = deltas.diff_weights({"w": before}, {"w": after})
    assert sum(tensor.nbytes for tensor in found.tensors.values()) <= before.nbytes


def test_one_value_in_a_hundred_takes_three_bytes_each():
    before = torch.zeros(1000, 1000, dtype=torch.bfloat16)
    after = before.clone()
    after.view(-1)[::100] = 1.0
    found = deltas.diff_weights({"w": before}, {"w": after})
    assert (found.changed, found.elements) == (10_000, 1_000_000)
    assert sum(tensor.nbytes for tensor in found.tensors.values()) == 30_000


def test_an_equal_tensor_is_left_out_and_a_new_one_is_whole():
    before = {"same": torch.ones(5), "new": torch.zeros(5), "scalar": torch.tensor(1.0)}
    after = {"same": torch.ones(5), "new": torch.arange(1.0, 6.0), "scalar": torch.tensor(2.0)}
    found = deltas.diff_weights(before, after)
    assert sorted(found.tensors) == ["new:whole", "scalar:whole"]
    deltas.apply(before, found.tensors)
    assert all(torch.equal(before[name], after[name]) for name in after)


@pytest.mark.parametrize(
    "after",
    [{"w": torch.ones(3)}, {"v": torch.ones(2)}, {"w": torch.ones(2).bfloat16()}, {}],
    ids=["shape", "name", "dtype", "missing"],
)
def test_states_of_two_models_have_no_delta(after):
    assert deltas.diff_weights({"w": torch.ones(2)}, after) is None


@pytest.mark.parametrize(
    "delta",
    [
        {"v:whole": torch.ones(4)},
        {"w": torch.ones(4)},
        {"w:whole": torch.ones(3)},
        {"w:whole": torch.ones(4).bfloat16()},
        {"w:gaps": torch.tensor([1], dtype=torch.uint8)},
        {"w:values": torch.ones(1)},
        {"w:gaps": torch.tensor([1, 1, 1], dtype=torch.uint8), "w:values": torch.ones(3)},
        {"w:gaps": torch.tensor([255, 255], dtype=torch.uint8), "w:values": torch.ones(2)},
        {"w:gaps": torch.tensor([1.0]), "w:values": torch.ones(1)},
    ],
    ids=["name", "part", "shape", "dtype", "no values", "no places", "beyond the end", "no end", "type of gaps"],
)
def test_a_delta_that_does_not_fit_is_refused(delta):
    with pytest.raises(deltas.TornDelta):
        deltas.apply({"w": torch.zeros(4)}, delta)
