"""C3PO of Ring-lite: a constant number of answer tokens a step, of which short and long answers have their share."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dart_recipes.ring_lite.rules import Settings
from dart_recipes.ring_lite.training import cut, cut_to_budget, is_full
from dart_streams.config import parse
from dart_streams.curation.hooks import Own
from dart_streams.errors import ConfigError
from plugins.recipes.tests.agents import groups_in, played, recipe_config
from tests import events
from trainer.data.batch_builder import tokens_of
from trainer.data.samples import ReadyGroup, TrainingSample
from trainer.hooks import bind_training


def ready(number, lengths):
    """Return a group with a trajectory of one step for each answer length."""
    samples = [
        TrainingSample(
            group_id=f"g{number}",
            trajectory_id=f"t{number}-{index}",
            step=0,
            prompt=[1],
            images=[],
            answer=[7] * length,
            logprobs=None,
            versions=[],
            advantage=1.0,
            temperature=1.0,
        )
        for index, length in enumerate(lengths)
    ]
    group = events.curated_group(f"g{number}")
    return ReadyGroup(group=group, samples=samples, images={}, refused=Counter(), read_ms=0.0)


def test_a_batch_is_full_at_its_tokens():
    own = Own(Settings(tokens_per_step=100), None)
    assert not is_full(own, 99)
    assert is_full(own, 100)


def test_a_batch_of_several_ranks_is_cut_by_each_to_its_share():
    own, groups = Own(Settings(tokens_per_step=100), None), [ready(0, [10] * 10)]
    assert tokens_of(cut(own, groups, 200.0)) == 50
    assert cut(own, groups, 100.0) == groups


def test_coupled_dispatch_is_refused_beside_a_trainer_that_counts_tokens():
    wanted = {"curation": {"dispatch": {"mode": "coupled"}}, "recipe": "ring-lite"}
    with pytest.raises(ConfigError, match="rollout-wise"):
        bind_training(parse(wanted))
    assert bind_training(parse(wanted | {"curation": {"dispatch": {"mode": "task-wise"}}})).is_full(1000)


def test_more_groups_are_taken_where_trajectories_are_short():
    config = recipe_config("ring-lite")
    rules, batches = bind_training(config), []
    tokens, gathered = 0, 0
    for group in groups_in(played(config, rounds=3000)):
        tokens += 8 * sum(len(member.selected) for member in group.members)
        gathered += 1
        if rules.is_full(tokens):
            batches.append((tokens, gathered))
            tokens, gathered = 0, 0
    assert all(tokens >= 1000 for tokens, _ in batches)
    assert len({gathered for _, gathered in batches}) > 1


GROUPS = st.lists(st.lists(st.integers(1, 30), max_size=12), min_size=1, max_size=6)


@given(GROUPS, st.integers(0, 400))
def test_what_is_kept_is_the_budget_give_or_take_less_than_one_answer(lengths, tokens):
    groups = [ready(number, own) for number, own in enumerate(lengths)]
    kept = cut_to_budget(groups, tokens)
    assert [group.group for group in kept] == [group.group for group in groups]
    assert tokens_of(kept) < tokens + 30
    if tokens_of(kept) < tokens_of(groups):
        assert tokens_of(kept) > tokens - 30
    assert cut_to_budget(groups, tokens) == kept


@given(GROUPS)
def test_a_batch_within_its_budget_loses_nothing(lengths):
    groups = [ready(number, own) for number, own in enumerate(lengths)]
    assert cut_to_budget(groups, tokens_of(groups)) == groups


def test_early_and_late_groups_and_short_and_long_answers_lose_alike():
    groups = [ready(number, [5, 25] * 20) for number in range(50)]
    kept = cut_to_budget(groups, tokens_of(groups) // 2)
    for half in (kept[:25], kept[25:]):
        left = Counter(len(item.answer) for group in half for item in group.samples)
        assert all(0.4 < left[length] / 500 < 0.6 for length in (5, 25))


def test_long_answers_are_kept_as_often_as_short_ones_in_small_steps():
    """Ten answers a step: the crossing answer, long more often than not, is a tenth of what decides."""
    kept = Counter()
    for step in range(2000):
        groups = cut_to_budget([ready(step, [5, 25] * 5)], 75)
        kept.update(len(item.answer) for group in groups for item in group.samples)
    assert all(0.48 < kept[length] / 10_000 < 0.52 for length in (5, 25)), kept
