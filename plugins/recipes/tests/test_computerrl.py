"""Entropulse of ComputerRL: when a phase is due, and what it imitates."""

from collections import Counter

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from dart_recipes.computerrl.rules import Settings
from dart_recipes.computerrl.training import PhaseMemory, phase_groups, remember_step, supervised_phase
from dart_streams.curation.hooks import Own
from plugins.recipes.tests.agents import played, recipe_config
from tests import events
from trainer.data.successes import successes_of
from trainer.hooks import StepStart, bind_training


def own_of(**settings):
    """Return the recipe's settings and an empty memory."""
    return Own(Settings(**settings), PhaseMemory())


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
    own, dues = own_of(every=3), []
    for _ in range(9):
        dues.append(bool(supervised_phase(own, StepStart(1, 0))))
        remember_step(own, [group(0, 1.0)])
    assert dues == [False, False, True] * 3


def test_no_phase_is_due_without_a_success():
    own = own_of(every=1)
    remember_step(own, [group(0, 0.0, 0.5)])
    assert (own.memory.steps, supervised_phase(own, StepStart(2, 0))) == (1, [])
    remember_step(own, [group(0, 1.0)])
    assert (own.memory.steps, bool(supervised_phase(own, StepStart(3, 0)))) == (2, True), "as soon as there is one"


def test_a_phase_draws_on_the_whole_history():
    """Four successes of each task were all that was remembered once; the paper draws on all of them."""
    own, drawn = own_of(every=1, updates=2, trajectories=4), set()
    for number in range(40):
        remember_step(own, [group(number, 1.0, task_id=f"task{number % 4}")])
    assert len(own.memory.history) == 40
    for train_step in range(60):
        made = supervised_phase(own, StepStart(train_step, 0))
        drawn |= {member.trajectory_id for update in made for member in update.members}
    assert len(drawn) == 40


def test_a_memory_from_a_checkpoint_has_the_same_phase():
    own = own_of(every=1, updates=2, trajectories=3)
    for number in range(9):
        remember_step(own, [group(number, 1.0, task_id=f"task{number % 4}")])
    again = msgspec.json.decode(msgspec.json.encode(own.memory), type=PhaseMemory)
    start = StepStart(10, 0)
    assert supervised_phase(own._replace(memory=again), start) == supervised_phase(own, start) != []


def test_phases_imitate_successes_of_earlier_batches_in_a_circle():
    config = recipe_config("computerrl")
    rules, memories, phases, past = bind_training(config), {}, 0, set()
    trained, size = played(config, rounds=3000).trainer.trained, config.trainer.groups_per_step
    for number, start in enumerate(range(0, len(trained), size), start=1):
        phase, batch = rules.supervised_phase(memories, StepStart(number, 0)), trained[start : start + size]
        assert bool(phase) == (number % 12 == 0)
        chosen = [member.trajectory_id for update in phase for member in update.members]
        assert set(chosen) <= past
        phases += len(chosen) > 32
        rules.remember(memories, batch)
        past |= {success.trajectory_id for success in successes_of(batch)}
    assert phases > 1


def test_a_phase_has_advantage_one_and_no_correction():
    [update] = phase_groups(remembered(tasks=1, each=1), Settings(every=1), train_step=7)
    [member] = update.members
    assert (member.advantage, member.source, member.selected) == (1.0, "pool", [0, 2])
    assert update.group_id == "phase-000007-0"


def test_tasks_take_turns():
    settings = Settings(every=1, updates=3, trajectories=4)
    updates = phase_groups(remembered(tasks=4, each=3), settings, train_step=1)
    for update in updates:
        assert sorted(member.trajectory_id.partition("-")[0] for member in update.members) == ["t0", "t1", "t2", "t3"]


def test_each_phase_draws_anew_and_a_repeated_one_the_same():
    successes, settings = remembered(tasks=6, each=4), Settings(every=1, updates=1, trajectories=6)
    assert phase_groups(successes, settings, 1) == phase_groups(successes, settings, 1)
    chosen = [
        frozenset(m.trajectory_id for m in phase_groups(successes, settings, step)[0].members) for step in range(20)
    ]
    assert len(set(chosen)) > 10


@given(st.integers(1, 9), st.integers(1, 5), st.integers(1, 4), st.integers(1, 9))
def test_an_update_is_full_but_the_last_and_nothing_is_imitated_twice(tasks, each, updates, trajectories):
    found = phase_groups(remembered(tasks, each), Settings(every=1, updates=updates, trajectories=trajectories), 3)
    names = Counter(member.trajectory_id for update in found for member in update.members)
    assert sum(names.values()) == len(names) == min(tasks * each, updates * trajectories)
    assert all(len(update.members) == trajectories for update in found[:-1])
