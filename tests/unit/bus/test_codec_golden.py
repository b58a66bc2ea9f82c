"""The contract in bytes: what other programs have written is read, and what they read is written, for ever the same.

A golden file is one record, ``<topic>.v<version>.json``, or ``<topic>.v<version>+<field>.json`` with a field that is
left out while it is empty. Never edit one: a changed event gets a new version and file.
"""

from pathlib import Path
from typing import Any, Literal

import msgspec
import pytest

import topics
from dart_streams.bus.codec import decode, encode
from topics import Topic, action_requests, curated, trained
from topics.values import BlobRef


class Record(msgspec.Struct, forbid_unknown_fields=True):
    key: str
    headers: dict[str, str]
    value: str

    @property
    def header_list(self) -> list[tuple[str, bytes]]:
        return [(name, text.encode()) for name, text in self.headers.items()]


GOLDEN = Path(__file__).parents[1] / "golden"
FILES = sorted(GOLDEN.glob("*.json"))


def parts(file: Path) -> tuple[Topic, int, Record]:
    name, _, version = file.stem.rpartition(".v")
    return topics.BY_NAME[name], int(version.partition("+")[0]), msgspec.json.decode(file.read_bytes(), type=Record)


def newest(topic: Topic, extra: str = "") -> Record:
    """Return the golden record of a topic's present version, with the field ``extra`` if there is one."""
    return parts(GOLDEN / f"{topic.name}.v{topic.version}{extra}.json")[2]


PRESENT = [file for file in FILES if parts(file)[1] == parts(file)[0].version]


def test_every_topic_has_a_golden_record_of_its_present_version():
    assert {parts(file)[0].name for file in PRESENT} == set(topics.BY_NAME)


@pytest.mark.parametrize("file", PRESENT, ids=lambda file: file.stem)
def test_an_event_becomes_exactly_these_bytes(file: Path):
    topic, _, golden = parts(file)
    event = decode(topic, golden.value.encode(), golden.header_list)
    record = encode(topic, event, record_id=golden.headers["id"])
    assert record.value.decode() == golden.value
    assert record.key.decode() == golden.key
    assert record.headers == golden.header_list


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_every_version_ever_written_is_still_read(file: Path):
    topic, version, golden = parts(file)
    assert golden.headers["schema"] == f"{topic.name}/{version}"
    assert isinstance(decode(topic, golden.value.encode(), golden.header_list), topic.event)


@pytest.mark.parametrize("topic", topics.ALL, ids=lambda topic: topic.name)
def test_a_record_from_before_a_defaulted_field_existed_is_read(topic: Topic):
    golden = newest(topic)
    fields = msgspec.json.decode(golden.value)
    defaulted = [f for f in msgspec.structs.fields(topic.event) if not f.required]
    for field in defaulted:
        older = msgspec.json.encode({name: value for name, value in fields.items() if name != field.encode_name})
        default = field.default if field.default_factory is msgspec.NODEFAULT else field.default_factory()
        assert getattr(decode(topic, older, golden.header_list), field.name) == default


class MemberBefore(msgspec.Struct, frozen=True, kw_only=True):
    """A member as readers knew it before steps were credited apart."""

    trajectory_id: str
    reward: float
    advantage: float
    selected: list[int]
    source: Literal["online", "pool"]
    version_min: int | None
    version_max: int | None


class GroupBefore(msgspec.Struct, frozen=True, kw_only=True):
    group_id: str
    task_id: str
    members: list[MemberBefore]
    mean: float
    std: float


def read_newest(topic: Topic, addition: str = "") -> tuple[str, Any]:
    """Return the newest recorded value of a topic, and its event."""
    golden = newest(topic, addition)
    return golden.value, decode(topic, golden.value.encode(), golden.header_list)


def test_a_reader_from_before_step_advantages_reads_groups_that_have_them():
    value, present = read_newest(curated.TOPIC, "+step-advantages")
    before = msgspec.json.decode(value, type=GroupBefore)
    assert [member.step_advantages for member in present.members] == [[0.25, 1.5], [-1.25]]
    kept = [msgspec.structs.replace(member, step_advantages=[]) for member in present.members]
    assert msgspec.to_builtins(before) == msgspec.to_builtins(msgspec.structs.replace(present, members=kept))
    assert [member.step_advantages for member in read_newest(curated.TOPIC)[1].members] == [[], []]


class TrainedBefore(msgspec.Struct, frozen=True, kw_only=True):
    """An optimizer step as readers knew it before it said what it imitated."""

    train_step: int
    version: int
    epoch: int
    group_ids: list[str]
    trajectory_ids: list[str]
    metrics: dict[str, float]
    at_ms: int


def test_a_reader_from_before_imitation_reads_steps_that_imitated():
    value, present = read_newest(trained.TOPIC, "+imitated")
    before = msgspec.json.decode(value, type=TrainedBefore)
    assert (present.imitated, present.sft_updates) == (["t-1", "t-2"], [["t-3"], ["t-1"]])
    kept = msgspec.structs.replace(present, imitated=[], sft_updates=[])
    assert msgspec.to_builtins(before) == msgspec.to_builtins(kept)


class PartBefore(msgspec.Struct, frozen=True, kw_only=True):
    """A part of a prompt as readers knew it before one could be a message of its own."""

    role: Literal["system", "user", "assistant"]
    text: str | None = None
    image: BlobRef | None = None


class PromptBefore(msgspec.Struct, frozen=True, kw_only=True):
    turns: list[PartBefore]


def test_an_older_reader_accepts_prompts_with_separate_messages():
    value, present = read_newest(action_requests.TOPIC, "+separate")
    before = msgspec.json.decode(value, type=PromptBefore)
    assert [part.separate for part in present.turns] == [True, True, True]
    assert [(part.role, part.text, part.image) for part in present.turns] == [
        (part.role, part.text, part.image) for part in before.turns
    ]
    assert [part.separate for part in read_newest(action_requests.TOPIC)[1].turns] == [msgspec.UNSET, msgspec.UNSET]
