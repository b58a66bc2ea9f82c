"""What the recorder keeps of unfinished trajectories: their steps in order, or not all of them."""

from hypothesis import given
from hypothesis import strategies as st

from dart_streams.episodes.trajectory_summary import is_whole
from tests import events
from topics.observations import EpisodeEnd, Observation
from workers.recorder.written_steps import WrittenSteps

LAST = 3


def observation(trajectory: int, step: int) -> Observation:
    return events.observation(
        step,
        trajectory_id=f"t{trajectory}",
        end=EpisodeEnd(kind="success", reward=1.0) if step == LAST else None,
        at_ms=1000 + step,
    )


written = st.lists(st.tuples(st.integers(0, 5), st.integers(0, LAST)), max_size=60)


@given(written)
def test_a_trajectory_is_whole_exactly_if_all_its_steps_were_written(order):
    kept = WrittenSteps(1000)
    for trajectory, step in order:
        kept.add(observation(trajectory, step))
    for trajectory in range(6):
        steps = sorted({step for one, step in order if one == trajectory})
        found = kept.take(f"t{trajectory}")
        assert found == [observation(trajectory, step) for step in steps]
        assert is_whole(found) == (steps == list(range(LAST + 1)))
        assert kept.take(f"t{trajectory}") == []
    assert kept.count == 0


@given(written, st.integers(0, 10))
def test_no_more_is_kept_than_there_is_room_for(order, limit):
    kept = WrittenSteps(limit)
    for trajectory, step in order:
        kept.add(observation(trajectory, step))
        assert kept.count <= limit
    found = [step for trajectory in range(6) for step in kept.take(f"t{trajectory}")]
    assert len(found) <= limit
    assert kept.count == 0


def test_the_trajectory_that_began_first_is_dropped_first():
    kept = WrittenSteps(3)
    for trajectory, step in ((0, 0), (1, 0), (1, 1), (2, 0)):
        kept.add(observation(trajectory, step))
    assert [len(kept.take(f"t{trajectory}")) for trajectory in (0, 1, 2)] == [0, 2, 1]
