"""A chain of versions: who follows it, joins late or misses a part has the trainer's weights to the bit, or none."""

import shutil
from pathlib import Path
from typing import ClassVar

import pytest
import torch

from dart_streams.config import Trainer
from dart_streams.config.trainer import Publish
from dart_streams.policy import resident_weights, weights
from dart_streams.policy.adapters import Adapter
from dart_streams.policy.probe import Probe
from dart_streams.policy.resident_weights import ResidentWeights
from tests import events
from topics.weights import WeightPart, WeightVersion
from trainer.version_writer import VersionWriter

PROBE = Probe(prompt=[1], tokens=[2], logprobs=[-0.5])
DELTAS = Publish(dtype="bfloat16", full_every=4)
Tensors = dict[str, torch.Tensor]


class Chain:
    """Versions as a trainer publishes them; each changes one value in a hundred of the one before."""

    shapes: ClassVar[dict[str, tuple[int, ...]]] = {"a": (40, 50), "b": (300,)}

    def __init__(self, folder: str, settings: Publish = DELTAS, dtype: torch.dtype = torch.bfloat16) -> None:
        random = torch.Generator().manual_seed(1)
        self.folder = folder
        self.state: Tensors = {
            name: torch.randn(shape, generator=random).to(dtype) for name, shape in self.shapes.items()
        }
        self.writer = VersionWriter(settings)
        self.states: list[Tensors] = []
        self.versions: list[WeightVersion] = []

    def train(self, number: int, share: float) -> Adapter | None:
        """Change ``share`` of the weights for a version, and return its adapter."""
        random = torch.Generator().manual_seed(number + 2)
        changed = torch.rand(40, 50, generator=random) < (share if number else 0)
        self.state = {**self.state, "a": torch.where(changed, self.state["a"] * 1.5, self.state["a"])}
        return None

    def publish(self, *, whole: bool = False, share: float = 0.01) -> WeightVersion:
        number = len(self.versions)
        adapter = self.train(number, share)
        uri = f"{self.folder}/v{number:06d}-e1"
        written = self.writer.write(uri, number, self.state, PROBE, adapter, whole=whole)
        self.states.append(self.state)
        self.versions.append(announced(written.own, written.base))
        return self.versions[-1]

    def serves(self, resident: ResidentWeights, number: int) -> bool:
        """Say whether these are the weights of a version, by value and by digest."""
        same = all(torch.equal(resident.tensors[name], value) for name, value in self.states[number].items())
        return same and resident.sha256 == self.versions[number].sha256 == weights.digest_tensors(self.states[number])


def announced(own: WeightPart, base: list[WeightPart]) -> WeightVersion:
    return events.weight_version(
        own.version, uri=own.uri, sha256=own.sha256, kind=own.kind, file_sha256=own.file_sha256, base=base
    )


class Fetched:
    """What was fetched, by kind and version."""

    def __init__(self, resident: ResidentWeights) -> None:
        self.resident = resident
        self.parts: list[tuple[str, int]] = []

    def __call__(self, part: WeightPart) -> Path:
        self.parts.append((part.kind, part.version))
        return weights.fetch(part, self.resident.cache)


@pytest.fixture
def chain(weights_uri: str) -> Chain:
    return Chain(weights_uri)


@pytest.fixture
def local(tmp_path: Path) -> Chain:
    return Chain(str(tmp_path / "weights"))


def test_deltas_name_all_parts_and_full_versions_recur(local):
    versions = [local.publish() for _ in range(9)]
    assert [version.kind for version in versions] == ["full", *["delta"] * 3] * 2 + ["full"]
    assert [part.version for part in versions[7].parts] == [4, 5, 6, 7]
    assert [part.kind for part in versions[7].parts] == ["full", "delta", "delta", "delta"]
    sizes = [(Path(v.uri) / weights.FILES[v.kind]).stat().st_size for v in versions]
    assert max(sizes[1:4]) < sizes[0] / 5


def test_who_follows_fetches_one_delta_a_version(local, resident):
    fetched = Fetched(resident)
    for number in range(6):
        resident.advance(local.publish(), fetched)
        assert local.serves(resident, number)
    assert fetched.parts == [("full", 0), ("delta", 1), ("delta", 2), ("delta", 3), ("full", 4), ("delta", 5)]


@pytest.mark.parametrize(
    ("missed", "parts"), [(3, [("delta", 1), ("delta", 2), ("delta", 3)]), (5, [("full", 4), ("delta", 5)])]
)
def test_who_missed_some_fetches_those_from_the_newest_full_one_on(local, resident, missed, parts):
    resident.advance(local.publish())
    newest = [local.publish() for _ in range(missed)][-1]
    fetched = Fetched(resident)
    resident.advance(newest, fetched)
    assert fetched.parts == parts
    assert local.serves(resident, missed)


def test_who_joins_late_makes_it_from_the_full_one_wherever_it_lies(tmp_path, chain):
    newest = [chain.publish() for _ in range(4)][-1]
    late = ResidentWeights(tmp_path / "late")
    late.advance(newest)
    assert chain.serves(late, 3)
    folder = resident_weights.materialize_weights(newest, tmp_path / "export")
    assert weights.digest_file(folder / weights.FILE) == newest.sha256
    assert (folder / weights.PROBE).is_file()
    (folder / weights.FILE).write_bytes(b"of another")
    assert resident_weights.materialize_weights(newest, tmp_path / "export") == folder
    assert weights.digest_file(folder / weights.FILE) == newest.sha256


def truncated(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-7])


def flipped(file: Path) -> None:
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    file.write_bytes(data)


@pytest.mark.parametrize("damage", [Path.unlink, truncated, flipped], ids=["missing", "torn", "altered"])
@pytest.mark.parametrize("part", [0, 2], ids=["full", "delta"])
def test_a_damaged_part_is_named_and_the_next_full_version_heals(local, tmp_path, damage, part):
    follower, late = ResidentWeights(tmp_path / "one"), ResidentWeights(tmp_path / "two")
    follower.advance(local.publish())
    newest = [local.publish() for _ in range(3)][-1]
    broken = newest.parts[part]
    damage(Path(broken.uri) / weights.FILES[broken.kind])
    for resident in (follower, late):
        if resident is follower and part == 0:
            continue  # it has that one already
        with pytest.raises(
            (weights.WrongDigest, weights.MissingWeights), match=f"version {broken.version}.*{broken.uri}"
        ):
            resident.advance(newest)
    assert local.serves(follower, 0), "it still holds what it held"
    healed = local.writer.write_whole(newest, local.state)
    assert (healed.kind, healed.uri, healed.sha256) == ("full", newest.uri, newest.sha256)
    for resident in (follower, late):
        resident.advance(healed)
        assert local.serves(resident, 3)
        assert local.publish().kind == "delta"
        resident.advance(local.versions[-1])
        assert local.serves(resident, len(local.versions) - 1)
        local.versions[3] = healed


def test_weights_damaged_in_memory_are_rebuilt_from_the_full_version(local, resident):
    resident.advance(local.publish())
    resident.tensors["b"][7] += 1
    fetched = Fetched(resident)
    resident.advance(local.publish(), fetched)
    assert local.serves(resident, 1)
    assert fetched.parts == [("delta", 1), ("full", 0), ("delta", 1)]


def test_a_delta_of_another_version_is_refused_by_the_digest_of_the_whole(local, tmp_path):
    versions = [local.publish() for _ in range(3)]
    skipped = announced(versions[2].parts[2], [versions[0].parts[0]])
    late = ResidentWeights(tmp_path)
    with pytest.raises(weights.WrongDigest, match=r"version 2.*all weights have sha256"):
        late.advance(skipped)
    assert (late.tensors, late.sha256) == ({}, ""), "half a version is never held"


def test_what_would_be_larger_than_the_whole_is_published_whole(local, resident):
    local.state.pop("b")
    local.publish()
    large = local.publish(share=1.0)
    assert large.kind == "full"
    resident.advance(large)
    assert local.serves(resident, 1)


def test_without_deltas_nothing_is_kept_of_a_version(tmp_path):
    chain = Chain(str(tmp_path), Trainer().publish)
    assert [chain.publish().kind for _ in range(3)] == ["full"] * 3
    assert not chain.writer.tensors


def test_a_later_incarnation_begins_with_a_full_version_at_the_same_place(local, tmp_path):
    newest = [local.publish() for _ in range(3)][-1]
    for part in newest.base:
        shutil.rmtree(part.uri)
    local.writer = VersionWriter(DELTAS)
    again = local.writer.resume(newest, local.state)
    assert (again.kind, again.uri, again.version, again.base) == ("full", newest.uri, 2, [])
    late = ResidentWeights(tmp_path)
    late.advance(again)
    assert local.serves(late, 2)
    assert local.publish().kind == "delta"
    late.advance(local.versions[-1])
    assert local.serves(late, 3)
