"""The trainer's place in the log, and what it makes of the ``weights`` topic: pure values."""

import functools

from hypothesis import given
from hypothesis import strategies as st

from dart_streams.curation.staleness import group_staleness
from tests import events
from topics.curated import CuratedGroup
from topics.transitions import WeightState
from topics.weights import WeightVersion
from trainer.data.consumer import MAX_RECENT_GROUPS, Position
from trainer.state import first_version


def announced(
    version: int, epoch: int, model_id: str = "tiny", groups_consumed: int = 0, sha256: str = ""
) -> WeightVersion:
    return events.weight_version(
        version,
        model_id=model_id,
        uri=f"w/v{version}-e{epoch}",
        sha256=sha256,
        epoch=epoch,
        groups_consumed=groups_consumed,
    )


def test_a_position_counts_a_repeat_once_and_keeps_partitions_apart() -> None:
    position = Position().after(0, 0, "a").after(0, 1, "b").after(0, 2, "a").after(1, 9, "c")
    assert position.offsets == {0: 3, 1: 10}
    assert position.groups_consumed == 3


def test_a_position_remembers_a_bounded_number_of_groups() -> None:
    position = Position()
    for offset in range(MAX_RECENT_GROUPS + 1):
        position = position.after(0, offset, str(offset))
    assert len(position.recent) == MAX_RECENT_GROUPS
    assert not position.contains("0")
    assert position.contains("1")


@given(st.lists(st.sampled_from("abcdef")), st.integers(0, 30))
def test_a_trainer_that_is_killed_anywhere_takes_each_group_once(log: list[str], killed_at: int) -> None:
    """What was taken before the checkpoint and what is taken after it are each different group once."""
    position, taken = Position(), []
    for offset, group in enumerate(log[:killed_at]):
        taken += [] if position.contains(group) else [group]
        position = position.after(0, offset, group)
    for offset in range(position.offsets.get(0, 0), len(log)):
        taken += [] if position.contains(log[offset]) else [log[offset]]
        position = position.after(0, offset, log[offset])
    assert sorted(taken) == sorted(set(log))
    assert position.groups_consumed == len(set(log))


def test_the_first_version_of_an_incarnation() -> None:
    assert first_version(None, None, same=False) == 0, "a fresh run begins at 0"
    assert first_version(None, announced(0, 1), same=True) == 0, "killed before its first step: the same weights again"
    assert first_version(5, announced(5, 1), same=True) == 5, "the checkpoint was announced: the same weights again"
    assert first_version(6, announced(5, 1), same=False) == 6, "killed before the event: announced now"
    assert first_version(3, announced(5, 1), same=False) == 6, "an older checkpoint: other weights, so a new number"
    assert first_version(5, announced(5, 1), same=False) == 6, "a number never means two sets of weights"
    assert first_version(None, announced(5, 1), same=False) == 6, "checkpoints lost: the initial weights, a new number"


@given(st.lists(st.tuples(st.integers(0, 5), st.booleans()), max_size=12), st.integers(1, 3))
def test_a_number_never_means_two_sets_of_weights_whatever_is_killed(lives: list[tuple[int, bool]], every: int) -> None:
    """Each life makes some steps and is killed, perhaps just before an event; a checkpoint comes ``every`` few steps.

    Weights are named by the life and the step that made them.
    """
    log: list[WeightVersion] = []
    saved: tuple[int | None, int, str] = (None, 0, "initial")
    for epoch, (steps, killed_before_event) in enumerate(lives, start=1):
        restored, train_step, weights = saved
        newest = functools.reduce(WeightState.accept, log, WeightState(model_id="tiny")).newest
        version = first_version(restored, newest, same=newest is not None and newest.sha256 == weights)
        log.append(announced(version, epoch, sha256=weights))
        for step in range(steps):
            version, train_step, weights = version + 1, train_step + 1, f"{epoch}/{step}"
            if train_step % every == 0:
                saved = (version, train_step, weights)
            if not (killed_before_event and step == steps - 1):
                log.append(announced(version, epoch, sha256=weights))
    versions = [record.version for record in log]
    assert versions == sorted(versions)
    meanings = {(record.version, record.sha256) for record in log}
    assert len(meanings) == len({record.version for record in log})


def group(*members: tuple[str, int | None]) -> CuratedGroup:
    return events.curated_group(
        "g",
        *[
            events.member(str(index), reward=0.0, source=source, version=version)
            for index, (source, version) in enumerate(members)
        ],
    )


def test_staleness_is_that_of_the_oldest_online_member() -> None:
    assert group_staleness(group(("online", 3), ("online", 5)), 5) == 2
    assert group_staleness(group(("online", 5), ("pool", 0), ("pool", None)), 5) == 0
    assert group_staleness(group(("pool", 0)), 5) == 0, "the pool is stale by design"


def test_a_topic_made_anew_by_its_id_or_end_is_read_from_its_beginning() -> None:
    position = Position(topic_id="first").after(0, 4, "a")
    found = position.resumed("second", {0: 0}, {0: 9})
    assert (found.offsets, found.topic_id, found.groups_consumed) == ({}, "second", 1)
    assert found.contains("a")
    assert position.resumed("first", {0: 0}, {0: 9}) == position
    assert position.resumed("", {0: 0}, {0: 9}) == position, "a broker that knows no ids"
    position = Position().after(0, 4, "a").after(1, 1, "b")
    assert position.resumed("", {0: 0, 1: 0}, {0: 4, 1: 2}).offsets == {}
    assert position.resumed("", {0: 0, 1: 0}, {0: 5, 1: 2}) == position


def test_groups_that_retention_removed_count_as_consumed() -> None:
    position = Position().after(0, 4, "a").after(1, 1, "b")
    found = position.resumed("id", {0: 7, 1: 1}, {0: 9, 1: 2})
    assert (found.offsets, found.groups_consumed, found.topic_id) == ({0: 7, 1: 2}, 4, "id")
    assert Position().resumed("id", {0: 30}, {0: 40}).groups_consumed == 30
