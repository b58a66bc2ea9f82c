"""Batches of supervised fine-tuning: each answer once an epoch, the same after a restart, some trajectories apart."""

import random
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dart_data.sft.batches import count_steps, plan_batches, split_heldout
from dart_data.sft.episodes import EpisodeEntry
from dart_streams.config import Policy
from dart_streams.config.sft import Sft
from tests.unit.trainer.test_shares import LONGEST, slowest_over_even
from trainer.data.shares import share
from trainer.data.successes import sft_group

POLICIES = (Policy(), Policy(min_images=1, max_images=3, min_texts=1, max_texts=3))


def entries(*steps: int) -> list[EpisodeEntry]:
    return [
        EpisodeEntry(trajectory_id=f"t{number}", task_id="t", steps=count, start=0, length=0, action_tokens=[1] * count)
        for number, count in enumerate(steps)
    ]


def answers(batch: list) -> list[tuple[str, int]]:
    return [(one.trajectory_id, step) for one in batch for step in one.selected]


@given(
    st.lists(st.integers(1, 9), min_size=1, max_size=12),
    st.integers(1, 7),
    st.integers(1, 3),
    st.sampled_from(POLICIES),
)
def test_each_answer_is_imitated_once_an_epoch(steps, batch, epochs, policy):
    settings = Sft(batch=batch, epochs=epochs)
    planned = list(plan_batches(entries(*steps), settings, policy))
    assert len(planned) == count_steps(entries(*steps), settings)
    assert all(1 <= len(answers(one)) <= batch for one in planned)
    seen = Counter(answer for one in planned for answer in answers(one))
    assert seen == {(f"t{number}", step): epochs for number, count in enumerate(steps) for step in range(count)}
    assert planned == list(plan_batches(entries(*steps), settings, policy))


def test_epochs_have_other_orders_and_steps_repeat_or_cut_the_data():
    planned = list(plan_batches(entries(*[1] * 12), Sft(batch=12, epochs=2), Policy()))
    assert [one.trajectory_id for one in planned[0]] != [one.trajectory_id for one in planned[1]]
    assert [len(list(plan_batches(entries(2, 2), Sft(batch=2, steps=steps), Policy()))) for steps in (1, 5)] == [1, 5]
    with pytest.raises(ValueError, match="set one of them"):
        Sft(steps=3, epochs=2)


@given(st.integers(1, 60), st.sampled_from([0.0, 0.05, 0.5]))
def test_held_out_trajectories_are_apart_and_depend_on_ids_only(count, share):
    trained, heldout = split_heldout(entries(*[1] * count), share)
    assert len(trained) + len(heldout) == count
    assert trained
    assert bool(heldout) == (share > 0 and count > 1)
    again = split_heldout(list(reversed(entries(*[1] * count))), share)
    assert again == (trained, heldout)


@pytest.mark.parametrize("ranks", [1, 2, 8, 16, 64])
def test_a_step_of_fine_tuning_is_shared_evenly(ranks: int):
    generator = random.Random(2)
    lengths = [generator.randint(1, LONGEST) for _ in range(200)]
    for batch in plan_batches(entries(*lengths), Sft(batch=256, epochs=1), Policy()):
        made = sft_group("sft", batch)
        steps = [[sum(len(one.selected) for one in share([made], rank, [0] * ranks)[0]) for rank in range(ranks)]]
        assert slowest_over_even([made], steps) <= 1.25
