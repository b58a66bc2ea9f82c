"""Ranks share the work of a step: each member is one rank's, and the slowest rank has little more than the others."""

import random
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests import events
from topics.curated import CuratedGroup
from trainer.data.shares import StepShares

STEPS, GROUPS, LONGEST = 20, 8, 30


def group(name: str, lengths: Sequence[int]) -> CuratedGroup:
    members = (events.member(f"{name}-{n}", selected=list(range(length))) for n, length in enumerate(lengths))
    return events.curated_group(name, *members)


def drawn_groups(generator: random.Random, sizes: Sequence[int], count: int) -> list[CuratedGroup]:
    """Return groups whose members have 1 to 30 steps, 10 in the mean before the bound."""
    drawn = ([round(generator.expovariate(1 / 10)) for _ in range(generator.choice(sizes))] for _ in range(count))
    lengths = [[min(LONGEST, max(1, steps)) for steps in members] for members in drawn]
    return [group(f"g{number}", members) for number, members in enumerate(lengths)]


def slowest_over_even(groups: Sequence[CuratedGroup], shares: Sequence[Sequence[int]]) -> float:
    """Return the slowest rank's steps over an even split's, or over the longest member if that is more."""
    lengths = [len(member.selected) for one in groups for member in one.members]
    loads = [sum(steps) for steps in zip(*shares, strict=True)]
    assert sum(loads) == sum(lengths)
    return max(loads) / max(sum(lengths) / len(loads), *lengths)


def steps_of_ranks(planned: Sequence[Sequence[Sequence]]) -> list[list[int]]:
    """Return by group how many steps each rank has, of the members that each rank has of each group."""
    return [[sum(len(one.selected) for one in own) for own in of_ranks] for of_ranks in zip(*planned, strict=True)]


@given(st.lists(st.lists(st.integers(0, 9), max_size=9), max_size=7), st.integers(1, 5), st.integers(1, 4))
def test_every_member_is_trained_by_exactly_one_rank(lengths: list[list[int]], ranks: int, size: int):
    groups = [group(f"g{number}", steps) for number, steps in enumerate(lengths)]
    shares = [StepShares(rank, ranks, size) for rank in range(ranks)]
    cut = len(groups) // 2
    first = [one.plan(groups[:cut]) for one in shares]
    for one in shares:
        one.leave_out(1)
    planned = [[*before, *one.plan(groups[cut:])] for before, one in zip(first, shares, strict=True)]
    for number, made in enumerate(groups):
        found = sorted(member.trajectory_id for own in planned for member in own[number])
        assert found == sorted(member.trajectory_id for member in made.members)


@pytest.mark.parametrize("arriving", [1, 8])
@pytest.mark.parametrize("sizes", [(8,), (2, 3, 4, 8), (2,)])
@pytest.mark.parametrize(("ranks", "bound"), [(1, 1.0), (2, 1.1), (8, 1.35), (16, 1.5), (64, 1.0)])
def test_the_slowest_rank_of_a_step_is_near_an_even_split(ranks: int, bound: float, sizes: tuple, arriving: int):
    groups = drawn_groups(random.Random(1), sizes, STEPS * GROUPS)
    shares = [StepShares(rank, ranks, GROUPS) for rank in range(ranks)]
    steps: list[list[int]] = []
    for start in range(0, len(groups), arriving):
        steps += steps_of_ranks([one.plan(groups[start : start + arriving]) for one in shares])
    starts = range(0, len(groups), GROUPS)
    over = [slowest_over_even(groups[at : at + GROUPS], steps[at : at + GROUPS]) for at in starts]
    assert sum(over) / len(over) <= bound + 1e-9


def test_groups_that_take_no_place_move_the_next_step():
    shares, plain = StepShares(0, 2, 2), StepShares(0, 2, 2)
    uneven, other = group("a", [9]), group("b", [1, 1])
    shares.plan([other])
    shares.leave_out(1)
    assert shares.plan([uneven, other]) == plain.plan([uneven, other])
