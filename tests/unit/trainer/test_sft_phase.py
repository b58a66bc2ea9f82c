from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from dart_streams.config import Entropulse, Trainer
from tests import events
from trainer.data.successes import SuccessMemory, history_limit, successes_of
from trainer.learning.imitation import is_due, sft_groups

ENTROPULSE = Trainer(entropulse=Entropulse(every=1, updates=2, trajectories=4))


def group(number, *rewards, task_id="task", source="online"):
    members = [
        events.member(f"t{number}-{index}", reward=reward, selected=[0, 2], source=source)
        for index, reward in enumerate(rewards)
    ]
    return events.curated_group(f"g{number}", *members, task_id=task_id)


def remembered(tasks, each):
    """Return a history of ``tasks`` tasks with ``each`` successes each."""
    return successes_of([group(number, *[1.0] * each, task_id=f"task{number}") for number in range(tasks)])


def test_steps_at_the_interval_end_with_a_phase():
    settings, memory = Entropulse(every=3), SuccessMemory()
    dues = []
    for _ in range(9):
        dues.append(is_due(memory, settings))
        memory = memory.after_step([group(0, 1.0)], limit=9)
        memory = memory.after_phase() if dues[-1] else memory
    assert dues == [False, False, True] * 3
    assert not is_due(memory, Entropulse())


def test_no_phase_is_due_without_a_success():
    memory = SuccessMemory().after_step([group(0, 0.0, 0.5)], limit=4)
    assert memory.steps == 1
    assert not is_due(memory, Entropulse(every=1))


def test_a_phase_draws_on_the_whole_history():
    """Four successes of each task were all that was remembered once; the paper draws on all of them."""
    memory = SuccessMemory()
    for number in range(40):
        memory = memory.after_step([group(number, 1.0, task_id=f"task{number % 4}")], history_limit(ENTROPULSE))
    assert len(memory.history) == 40
    settings, drawn = ENTROPULSE.entropulse, set()
    for train_step in range(60):
        drawn |= {m.trajectory_id for made in sft_groups(memory.history, settings, train_step) for m in made.members}
    assert len(drawn) == 40


def test_a_phase_has_advantage_one_and_no_correction():
    [update] = sft_groups(remembered(tasks=1, each=1), Entropulse(every=1), train_step=7)
    [member] = update.members
    assert (member.advantage, member.source, member.selected) == (1.0, "pool", [0, 2])
    assert update.group_id == "phase-000007-0"


def test_tasks_take_turns():
    settings = Entropulse(every=1, updates=3, trajectories=4)
    updates = sft_groups(remembered(tasks=4, each=3), settings, train_step=1)
    for update in updates:
        assert sorted(member.trajectory_id.partition("-")[0] for member in update.members) == ["t0", "t1", "t2", "t3"]


def test_each_phase_draws_anew_and_a_repeated_one_the_same():
    successes, settings = remembered(tasks=6, each=4), Entropulse(every=1, updates=1, trajectories=6)
    assert sft_groups(successes, settings, 1) == sft_groups(successes, settings, 1)
    chosen = [
        frozenset(m.trajectory_id for m in sft_groups(successes, settings, step)[0].members) for step in range(20)
    ]
    assert len(set(chosen)) > 10


@given(st.integers(1, 9), st.integers(1, 5), st.integers(1, 4), st.integers(1, 9))
def test_an_update_is_full_but_the_last_and_nothing_is_imitated_twice(tasks, each, updates, trajectories):
    found = sft_groups(remembered(tasks, each), Entropulse(every=1, updates=updates, trajectories=trajectories), 3)
    names = Counter(member.trajectory_id for update in found for member in update.members)
    assert sum(names.values()) == len(names) == min(tasks * each, updates * trajectories)
    assert all(len(update.members) == trajectories for update in found[:-1])
