"""Versions that are adapters: whoever follows them, joins late or misses some has the trainer's weights to the bit."""

import os
import subprocess
import sys
from pathlib import Path
from typing import ClassVar

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import save_file

from dart_streams.config.trainer import Publish
from dart_streams.policy import adapters, resident_weights, weights
from dart_streams.policy.adapters import Adapter
from dart_streams.policy.resident_weights import ResidentWeights
from tests import events
from tests.model.random_layers import layer
from tests.model.test_resident_weights import Chain, Fetched, Tensors, announced, flipped, truncated
from trainer.state import asks_for_whole
from trainer.version_writer import VersionWriter

SCALING = 2.0


@given(
    seed=st.integers(0, 10**6),
    outputs=st.integers(1, 40),
    inputs=st.integers(1, 300),
    rank=st.integers(1, 9),
    cut=st.integers(0, 40),
    dtype=st.sampled_from([torch.float32, torch.bfloat16]),
)
def test_rows_merged_apart_are_those_merged_together_and_near_the_product(seed, outputs, inputs, rank, cut, dtype):
    weight, down, up = layer(seed, outputs, inputs, rank)
    weight = weight.to(dtype)
    merged = adapters.merge_weight(weight, down, up, SCALING)
    parts = [adapters.merge_weight(weight[part], down, up[part], SCALING) for part in (slice(cut), slice(cut, None))]
    assert torch.equal(torch.cat(parts), merged)
    assert merged.dtype == dtype
    exact = weight.double() + SCALING * (up.double() @ down.double())
    terms = weight.double().abs() + SCALING * (up.double().abs() @ down.double().abs())
    assert ((merged.double() - exact).abs() <= terms * (2**-20 + torch.finfo(dtype).eps)).all()


def test_merged_bits_are_independent_of_threads_and_instruction_set():
    """A matrix product need not: its terms are summed in an order of its own, some by fused steps."""
    program = (
        "import torch, hashlib; from dart_streams.policy import adapters; from tests.model.random_layers import layer;"
        "torch.set_num_threads({threads}); weight, down, up = layer(7, 700, 900, 16);"
        "merged = adapters.merge_weight(weight, down, up, 0.3); print(hashlib.sha256(merged.numpy().data).hexdigest())"
    )
    digests = set()
    for threads, capability in ((1, "default"), (2, "avx2"), (3, "avx512")):
        command = [sys.executable, "-c", program.format(threads=threads)]
        environment = {**os.environ, "ATEN_CPU_CAPABILITY": capability}
        digests.add(subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout)
    assert len(digests) == 1


class AdapterChain(Chain):
    """Versions of two layers, of which one has an adapter."""

    shapes: ClassVar[dict[str, tuple[int, ...]]] = {"model.a.weight": (40, 50), "model.b.weight": (300,)}

    def __init__(self, folder: str, dtype: torch.dtype = torch.bfloat16) -> None:
        super().__init__(folder, Publish(), dtype)
        self.base = self.state

    def adapter(self, number: int) -> Adapter:
        """Version 0's gives nothing, as at the start of training."""
        _, down, up = layer(number, 40, 50, 4)
        up = up * 0 if number == 0 else up
        tensors = {"base_model.model.model.a.lora_A.weight": down, "base_model.model.model.a.lora_B.weight": up}
        return Adapter(tensors, SCALING, b"{}", self.base)

    def train(self, number: int, share: float) -> Adapter:
        adapter = self.adapter(number)
        merged = adapters.merge_weight(self.base["model.a.weight"], *adapter.tensors.values(), SCALING)
        self.state = {**self.base, "model.a.weight": merged}
        return adapter


@pytest.fixture
def chain(weights_uri: str) -> AdapterChain:
    return AdapterChain(weights_uri)


@pytest.fixture
def local(tmp_path: Path) -> AdapterChain:
    return AdapterChain(str(tmp_path / "weights"))


def test_the_first_version_is_the_base_and_the_others_name_it(local):
    versions = [local.publish() for _ in range(4)]
    assert [version.kind for version in versions] == ["full", *["adapter"] * 3]
    assert all(version.base == [versions[0].parts[0]] for version in versions[1:])
    assert len({version.sha256 for version in versions}) == 4


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_who_follows_fetches_the_base_once(tmp_path, resident, dtype):
    chain, fetched = AdapterChain(str(tmp_path / "weights"), dtype), Fetched(resident)
    for number in range(4):
        resident.advance(chain.publish(), fetched)
        assert chain.serves(resident, number)
    assert fetched.parts == [("full", 0), ("adapter", 1), ("adapter", 2), ("adapter", 3)]


def test_who_missed_some_fetches_the_newest_alone(local, resident):
    resident.advance(local.publish())
    resident.advance(local.publish())
    newest = [local.publish() for _ in range(3)][-1]
    fetched = Fetched(resident)
    resident.advance(newest, fetched)
    assert fetched.parts == [("adapter", 4)]
    assert local.serves(resident, 4)


def test_who_joins_late_makes_it_from_the_base_wherever_it_lies(tmp_path, chain):
    newest = [chain.publish() for _ in range(4)][-1]
    late = ResidentWeights(tmp_path / "late")
    late.advance(newest)
    assert chain.serves(late, 3)
    folder = resident_weights.materialize_weights(newest, tmp_path / "export")
    assert weights.digest_file(folder / weights.FILE) == newest.sha256
    fetched = weights.fetch(newest.parts[-1], tmp_path / "cache")
    assert (fetched / weights.ADAPTER_CONFIG).is_file(), "peft needs it"


@pytest.mark.parametrize("damage", [Path.unlink, truncated, flipped], ids=["missing", "torn", "altered"])
def test_a_damaged_adapter_leaves_what_was_held_and_the_next_goes_on(local, resident, damage):
    for _ in range(2):
        resident.advance(local.publish())
    broken = local.publish()
    damage(Path(broken.uri) / weights.FILES["adapter"])
    with pytest.raises((weights.WrongDigest, weights.MissingWeights), match=r"version 2.*v000002-e1"):
        resident.advance(broken)
    assert local.serves(resident, 1), "it still holds what it held"
    resident.advance(local.publish())
    assert local.serves(resident, 3)


def test_a_whole_version_replaces_a_damaged_base(local, tmp_path):
    newest = [local.publish() for _ in range(3)][-1]
    flipped(Path(newest.base[0].uri) / weights.FILE)
    late = ResidentWeights(tmp_path / "late")
    with pytest.raises(weights.WrongDigest, match="version 0"):
        late.advance(newest)
    local.versions[2] = local.writer.write_whole(newest, local.writer.newest_tensors())
    late.advance(local.versions[2])
    assert local.serves(late, 2)
    after = local.publish()
    assert (after.kind, after.base[0].uri) == ("adapter", f"{local.folder}/v000003-e1-base")
    late.advance(after)
    assert local.serves(late, 3)
    assert local.publish().base == after.base, "it is written once"
    assert local.publish(whole=True).kind == "full"
    late.advance(local.versions[-1])
    assert local.serves(late, 5)


def test_weights_that_went_wrong_in_memory_are_made_anew_from_the_base(local, resident):
    for _ in range(2):
        resident.advance(local.publish())
    resident.base["model.b.weight"][7] += 1
    fetched = Fetched(resident)
    resident.advance(local.publish(), fetched)
    assert local.serves(resident, 2)
    assert fetched.parts == [("adapter", 2), ("full", 0), ("adapter", 2)]


def test_an_adapter_of_another_base_is_refused_by_the_digest_of_the_whole(local, resident, tmp_path):
    newest = [local.publish() for _ in range(2)][-1]
    other = AdapterChain(str(tmp_path / "other"))
    other.base["model.b.weight"] = other.base["model.b.weight"] + 1
    wrong = announced(newest.parts[-1], other.publish().parts)
    with pytest.raises(weights.WrongDigest, match=r"version 1.*all weights have sha256"):
        resident.advance(wrong)
    assert (resident.tensors, resident.base, resident.sha256) == ({}, {}, ""), "half a version is never held"


def renamed(tensors: Tensors) -> Tensors:
    return {name.replace("model.a.", "model.c."): value for name, value in tensors.items()}


def halved(tensors: Tensors) -> Tensors:
    return {name: value for name, value in tensors.items() if "lora_A" in name}


def narrowed(tensors: Tensors) -> Tensors:
    return {name: value[:3] for name, value in tensors.items()}


@pytest.mark.parametrize("change", [renamed, halved, narrowed])
def test_an_adapter_that_does_not_fit_is_refused(local, change):
    with pytest.raises(adapters.TornAdapter):
        adapters.with_adapter(local.base, change(dict(local.adapter(1).tensors)), SCALING)


def test_a_file_without_the_factor_of_the_product_is_refused(local, tmp_path):
    save_file(dict(local.adapter(1).tensors), tmp_path / "a")
    with pytest.raises(adapters.TornAdapter, match="scaling"):
        adapters.apply(local.base, tmp_path / "a")


def test_a_later_incarnation_reuses_its_own_base(local):
    newest = [local.publish() for _ in range(3)][-1]
    again = VersionWriter(Publish())
    again.adopt_base(newest, local.adapter(2))
    assert again.resume(newest, local.states[2], local.adapter(2)) == newest
    local.writer = again
    assert local.publish().base == newest.base

    other = VersionWriter(Publish())
    adapter = local.adapter(2)._replace(base={**local.base, "model.b.weight": local.base["model.b.weight"] + 1})
    other.adopt_base(newest, adapter)
    assert other.base is None


def test_without_adapters_a_later_incarnation_publishes_the_whole(local, resident):
    newest = [local.publish() for _ in range(3)][-1]
    local.versions[2] = VersionWriter(Publish()).resume(newest, local.states[2])
    assert local.versions[2].kind == "full"
    resident.advance(local.versions[2])
    assert local.serves(resident, 2)


def test_a_worker_that_could_not_load_an_adapter_is_noted(local):
    newest = [local.publish() for _ in range(3)][-1]
    record = events.weights_serving(failed_version=2, error="torn")
    assert asks_for_whole(newest, [record], {record.worker_id})
    assert not asks_for_whole(newest, [record], set())
