from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from dart_streams.config import parse
from tests import events
from trainer.data.batch_builder import TokenBudget, cut_to_budget, tokens_of
from trainer.data.samples import ReadyGroup, TrainingSample


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


def test_without_tokens_per_step_there_is_no_budget():
    assert TokenBudget.of(parse({})) is None


def test_a_batch_is_full_at_its_tokens_or_dispatchs_group_limit():
    config = parse(
        {"trainer": {"c3po": {"tokens_per_step": 100}, "groups_per_step": 4}, "curation": {"max_staleness": 2}}
    )
    budget = TokenBudget.of(config)
    assert budget == TokenBudget(tokens=100, groups=8)
    assert not budget.is_met(99, 7)
    assert budget.is_met(100, 1)
    assert budget.is_met(3, 8)


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
