"""The memory of own successes, and the uniform draw beside each batch."""

from collections import Counter

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dart_streams.config import Imitate, Trainer, parse
from dart_streams.errors import ConfigError
from tests import events
from topics.curated import CuratedGroup, Member
from trainer.data.consumer import Position
from trainer.data.successes import (
    MAX_REMEMBERED,
    RememberedSuccess,
    SuccessMemory,
    draw_uniformly,
    history_limit,
    successes_of,
)
from trainer.hooks import DART, StepStart
from trainer.learning.imitation import StepImitation, plan_imitation, trajectories_of
from trainer.state import TrainerState

IMITATE = Trainer(imitate=Imitate(trajectories=3, recent=6))


def member(name: str, reward: float = 1.0, source: str = "online", selected: tuple[int, ...] = (0, 2)) -> Member:
    return events.member(name, reward=reward, selected=list(selected), source=source)


def group(number: int, *members: Member) -> CuratedGroup:
    return events.curated_group(f"g{number}", *members, task_id=f"task{number}")


def history(count: int) -> tuple[RememberedSuccess, ...]:
    return tuple(RememberedSuccess(trajectory_id=f"t{n}", task_id=f"task{n % 3}", selected=[0]) for n in range(count))


def names(successes: list[RememberedSuccess]) -> list[str]:
    return [success.trajectory_id for success in successes]


def test_only_own_successes_with_selected_steps_are_remembered():
    found = successes_of(
        [
            group(0, member("won"), member("lost", reward=0.0), member("partly", reward=0.9)),
            group(1, member("pooled", source="pool"), member("nothing selected", selected=())),
        ]
    )
    assert found == [RememberedSuccess(trajectory_id="won", task_id="task0", selected=[0, 2])]


@given(st.lists(st.integers(0, 5), max_size=20), st.integers(0, 12))
def test_the_memory_keeps_the_newest_successes_in_order(steps: list[int], kept: int):
    memory, seen = SuccessMemory(), []
    for number, count in enumerate(steps):
        won = [member(f"{number}-{index}") for index in range(count)]
        seen += [one.trajectory_id for one in won]
        memory = memory.after_step([group(number, *won)], kept)
        assert names(list(memory.history)) == seen[max(0, len(seen) - kept) :]


@given(st.integers(0, 30), st.integers(1, 10), st.integers(1, 40), st.integers(), st.integers(0, 10**6))
def test_a_draw_is_of_different_recent_successes_or_none(
    known: int, count: int, recent: int, seed: int, train_step: int
):
    found = draw_uniformly(history(known), count, recent, seed, train_step)
    if min(known, recent) < count:
        assert found == []
        return
    assert len(set(names(found))) == len(found) == count
    assert set(names(found)) <= {f"t{n}" for n in range(max(0, known - recent), known)}
    assert draw_uniformly(history(known), count, recent, seed, train_step) == found


@given(st.permutations(history(9)), st.integers(0, 99))
def test_a_draw_does_not_depend_on_the_order_in_which_successes_came(order: list[RememberedSuccess], train_step: int):
    assert draw_uniformly(order, 4, 9, 0, train_step) == draw_uniformly(history(9), 4, 9, 0, train_step)


def test_successes_and_pairs_are_drawn_uniformly():
    known, count, steps = 12, 4, 6000
    single: Counter[str] = Counter()
    pairs: Counter[tuple[str, str]] = Counter()
    for train_step in range(steps):
        found = sorted(names(draw_uniformly(history(known), count, known, 7, train_step)))
        single.update(found)
        pairs.update((one, other) for one in found for other in found if one < other)
    for counts, cells, drawn in ((single, known, count), (pairs, known * (known - 1) // 2, count * (count - 1) // 2)):
        expected = steps * drawn / cells
        assert len(counts) == cells
        assert all(abs(number - expected) < 5 * expected**0.5 for number in counts.values()), counts


@pytest.mark.parametrize("changed", [{"seed": 1}, {"train_step": 1}])
def test_seed_and_step_each_change_the_draw(changed: dict[str, int]):
    arguments = {"seed": 0, "train_step": 0}
    first = draw_uniformly(history(50), 10, 50, **arguments)
    assert names(draw_uniformly(history(50), 10, 50, **arguments | changed)) != names(first)


def planned(memory: SuccessMemory, train_step: int, seed: int = 0) -> StepImitation:
    return plan_imitation(memory, IMITATE, DART, {}, StepStart(train_step, seed))


@given(st.integers(0, 12), st.integers(1, 50))
def test_a_resumed_trainer_imitates_what_it_would_have(known: int, train_step: int):
    memory = SuccessMemory(history=history(known))
    state = TrainerState(version=3, train_step=train_step, position=Position(), memory=memory)
    again = msgspec.json.decode(msgspec.json.encode(state), type=TrainerState)
    assert again == state
    assert planned(again.memory, train_step + 1, 5) == planned(memory, train_step + 1, 5)


def test_imitation_beside_a_batch_has_advantage_one_and_no_correction():
    [made] = planned(SuccessMemory(history=history(6)), 12).beside
    assert made.group_id == "imitate-000012"
    assert len(trajectories_of(made)) == 3
    assert {(one.advantage, one.source, one.version_min) for one in made.members} == {(1.0, "pool", None)}


def test_only_what_may_be_imitated_is_remembered_and_nothing_of_before():
    assert history_limit(Trainer()) == 0
    assert history_limit(IMITATE) == 6
    for text in (b'{"version":3,"train_step":3}', b'{"memory":{"steps":1,"successes":{"t":[]}}}'):
        assert msgspec.json.decode(text, type=TrainerState).memory.history == ()


def test_more_than_what_is_remembered_cannot_be_drawn():
    with pytest.raises(ConfigError, match=r"raise imitate\.recent"):
        parse({"trainer": {"imitate": {"trajectories": 24, "recent": 23}}})
    with pytest.raises(ConfigError):
        parse({"trainer": {"imitate": {"recent": MAX_REMEMBERED + 1}}})
