"""A step's minibatches: every sample once, of equal size, the same however many ranks share the samples."""

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from dart_streams.episodes.prompts import Window
from tests import events
from trainer.data.samples import ReadyGroup, TrainingSample
from trainer.learning.minibatches import shuffle_keys, split


def ready(number: int, samples: int, run: str = "", block: int = 1) -> ReadyGroup:
    """Return a group of ``samples`` samples, four steps of each trajectory; ``block`` of them extend each other."""
    group = events.curated_group(f"g{number}")
    made = [
        TrainingSample(
            prompt=[1],
            answer=[2],
            group_id=f"g{number}",
            trajectory_id=f"{run}t{index // 4}",
            step=index % 4,
            window=Window(index % 4 // block, 1),
        )
        for index in range(samples)
    ]
    return ReadyGroup(group=group, samples=made, images={"s": b""}, refused=Counter(), read_ms=0.0)


def names(parts: list[list[ReadyGroup]]) -> list[list[tuple[str, str, int]]]:
    return [
        [(item.group_id, item.trajectory_id, item.step) for group in part for item in group.samples] for part in parts
    ]


def whole(groups: list[ReadyGroup], count: int, version: int = 3) -> list[list[tuple[str, str, int]]]:
    return names(split(groups, shuffle_keys(groups, version), count, version))


@given(
    st.lists(st.integers(0, 9), min_size=1, max_size=5).filter(any),
    st.integers(1, 12),
    st.integers(0, 99),
    st.sampled_from([1, 2]),
)
def test_minibatches_partition_samples_into_nearly_equal_sizes(sizes: list[int], count: int, version: int, block: int):
    groups = [ready(number, size, block=block) for number, size in enumerate(sizes)]
    parts = whole(groups, count, version)
    lengths = [len(part) for part in parts]
    if block == 1:
        assert len(parts) == min(count, sum(sizes))
        assert max(lengths) - min(lengths) <= 1
    assert min(lengths) > 0
    assert max(lengths) <= sum(sizes) / min(count, sum(sizes)) + 2 * block
    runs = [{(group, trajectory, step // block) for group, trajectory, step in part} for part in parts]
    assert sum(map(len, runs)) == len(set().union(*runs)), "steps that extend each other stay together"
    [every] = whole(groups, 1, version)
    assert Counter(name for part in parts for name in part) == Counter(every)
    order = {name: place for place, name in enumerate(every)}
    assert all(part == sorted(part, key=order.__getitem__) for part in parts), "neighbors still share screens"


@given(st.integers(1, 9), st.integers(1, 6), st.integers(1, 4), st.randoms(use_true_random=False))
def test_minibatches_do_not_depend_on_how_ranks_share_the_samples(size: int, count: int, ranks: int, chance):
    groups = [ready(number, size) for number in range(3)]
    owner = {(group.group.group_id, index): chance.randrange(ranks) for group in groups for index in range(size)}
    shares = [
        [
            ReadyGroup(
                group=group.group,
                samples=[item for n, item in enumerate(group.samples) if owner[group.group.group_id, n] == rank],
                images={},
                refused=Counter(),
                read_ms=0.0,
            )
            for group in groups
        ]
        for rank in range(ranks)
    ]
    keys = [key for share in shares for key in shuffle_keys(share, 3)]
    found = [names(split(share, keys, count, 3)) for share in shares]
    assert {len(parts) for parts in found} == {len(whole(groups, count))}
    for part, expected in enumerate(whole(groups, count)):
        assert Counter(name for parts in found for name in parts[part]) == Counter(expected)


def test_groups_are_mixed_anew_each_step_but_one_minibatch_keeps_order():
    groups = [ready(number, 12) for number in range(4)]
    first, second = whole(groups, 2)
    assert {name[0] for name in first} == {name[0] for name in second} == {"g0", "g1", "g2", "g3"}
    assert whole(groups, 2) == [first, second]
    assert whole(groups, 2, version=4) != [first, second]
    other = whole([ready(number, 12, run="other-") for number in range(4)], 2)
    assert [[(g, t.removeprefix("other-"), s) for g, t, s in part] for part in other] != [first, second]
    groups = [ready(number, 5) for number in range(3)]
    assert whole(groups, 1) == names([groups])
