"""The figures of a run with corrections: when each was served, and what they did for the page."""

import pytest

from benchmarks.feedback import figures
from console.runs.run_state import RunState
from tests import events
from topics.feedback import Feedback

PAGE = "click-tab"


def correction(name: str, at_ms: int) -> Feedback:
    """Return a correction of the trajectory ``of-NAME``."""
    return Feedback(
        feedback_id=name,
        task_id=f"miniwob/{PAGE}#1",
        author="a",
        at_ms=at_ms,
        kind="correction",
        trajectory_id=f"of-{name}",
        step=0,
        action="wait()",
    )


def state_of(*corrections: str, served: dict[int, int]) -> RunState:
    """Return a run in which the optimizer step N trained on the Nth correction, and versions were ``served``."""
    state = RunState()
    for number, name in enumerate(corrections, 1):
        event = correction(name, at_ms=1000 * number)
        member = events.member(f"of-{name}", None, reward=0.0, source="pool", corrections=["wait()"])
        group = events.curated_group(f"feedback-{name}", member, task_id=f"miniwob/{PAGE}#1", feedback=[name])
        state.feedback[name] = event
        state.feedback_on[event.trajectory_id].append(name)
        state.groups[group.group_id] = (group, 0)
        state.groups_of[f"of-{name}"].append(group.group_id)
        state.trained[number] = events.trained_step(number, feedback=[group.group_id])
        state.trained_with[group.group_id] = [number]
    for version, since_ms in served.items():
        heartbeat = events.weights_serving(version, since_ms=since_ms, alive_ms=since_ms)
        state.served[version, "rollout-0"] = heartbeat
    return state


def test_a_correction_is_served_with_the_first_version_that_has_its_step():
    state = state_of("one", "two", "three", served={0: 500, 1: 4000, 3: 9000})
    assert figures.served_after_s(state) == [3.0, 7.0, 6.0], "version 2 was passed over: version 3 has its step too"
    found = figures.latency_figures(state)
    assert (found["seconds_to_served_p50"], found["seconds_to_served_max"]) == (6.0, 7.0)
    assert found["seconds_to_served"] == sorted(found["seconds_to_served"]) and max(found["seconds_to_served"]) == 7.0
    assert figures.served_after_s(state_of("one", "two", served={1: 4000})) == [3.0]
    assert figures.latency_figures(RunState()) == {"corrections_served": 0}


def rollouts(*won: bool, page: str = PAGE, purpose: str = "train", first: int = 0) -> RunState:
    """Return a run with rollouts of a page, one each second."""
    state = RunState()
    for number, is_won in enumerate(won, first):
        name = f"{page}-{purpose}-{number}"
        state.finished[name] = events.trajectory(
            trajectory_id=name,
            order_id=name,
            task_id=f"miniwob/{page}#1",
            purpose=purpose,
            reward=float(is_won),
            finished_ms=1000 * number,
        )
    return state


def test_success_counts_rollouts_of_the_page_alone_over_a_full_window():
    state = rollouts(False, True)
    for other in (rollouts(True, page="click-tab-2"), rollouts(True, purpose="eval")):
        state.finished |= other.finished
    assert [one.reward for one in figures.rollouts_of(state, PAGE)] == [0.0, 1.0]
    curve = figures.success_curve(figures.rollouts_of(rollouts(False, True, True, True), PAGE), window=2)
    assert curve == [(1000, 0.5), (2000, 1.0), (3000, 1.0)]
    assert figures.success_curve([], window=2) == []


@pytest.mark.parametrize(("wins", "until"), [(figures.WINDOW // 2, 2), (figures.WINDOW // 2 - 1, None)])
def test_corrections_count_until_half_of_the_window_succeeds(wins: int, until: int | None):
    state = rollouts(*[False] * figures.WINDOW, *[True] * wins)
    last_ms = 1000 * (figures.WINDOW + wins - 1)
    for name, at_ms in (("one", 0), ("two", last_ms), ("three", last_ms + 1)):
        state.feedback[name] = correction(name, at_ms)
    found = figures.lift_figures(state, PAGE)
    assert (found["corrections_given"], found["corrections_until_half"]) == (3, until)
    assert found["rollouts_until_half"] == (until and figures.WINDOW + wins)
    assert found["train_steps_until_half"] == (until and 0)
