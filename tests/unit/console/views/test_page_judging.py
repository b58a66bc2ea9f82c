"""The judging queue: which outcomes are doubtful, and that those come first, whatever the order of the log."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from console.runs.feedback import make_judgement
from console.runs.run_log import LogRecord, RecordMetadata
from console.runs.run_state import RunState
from console.views.page import judging
from tests import events
from topics.trajectories import StepAction, Trajectory
from topics.values import Verdict

CLICK, OTHER = StepAction(name="click", x=3, y=4), StepAction(name="click", x=9, y=4)


def rollout(name: str, **changes) -> Trajectory:
    fields = {"started_ms": 1000, "finished_ms": 2000, "steps": 4, "order_id": name}
    return events.trajectory(name, **(fields | changes))


def judged(name: str, success: bool | None, reward: float, **changes) -> Trajectory:
    return rollout(name, verdict=Verdict(success=success, judge="critic"), reward=reward, **changes)


def loop(name: str, *actions: StepAction, screens: str = "aaaa", **changes) -> Trajectory:
    return rollout(name, actions=list(actions), screens=list(screens), **changes)


def state_of(*given_events) -> RunState:
    metadata = RecordMetadata("any", 0, 0, 0)
    return RunState().fold(LogRecord(metadata, event, b"") for event in given_events)


def queued(*given_events) -> list[str]:
    return [row.episode.trajectory_id for row in judging.judging_queue(state_of(*given_events)).rows]


def kinds(*given_events) -> dict[str, list[str]]:
    rows = judging.judging_queue(state_of(*given_events)).rows
    return {row.episode.trajectory_id: [doubt.kind for doubt in row.doubts] for row in rows}


def test_disagreements_come_before_loops_stragglers_and_the_rest():
    played = [
        *(rollout("newest", finished_ms=2100), rollout("slow", finished_ms=9000)),
        *(loop("loop", CLICK, CLICK, CLICK, OTHER), rollout("good-and-bad"), judged("lenient", True, 0.0)),
        *(judged("strict", False, 1.0), judged("half", True, 0.6), judged("agreed", True, 1.0)),
        judged("unsure", None, 1.0),
    ]
    people = [make_judgement(played[3], *said, "") for said in (("good", "ann", 5), ("bad", "bob", 6))]
    first = ["lenient", "strict", "half", "good-and-bad", "loop", "slow", "newest"]
    assert queued(*played, *people) == [*first, "agreed", "unsure"]
    found = judging.judging_queue(state_of(*played, *people))
    assert (found.doubtful, found.waiting) == (6, 9)
    assert found.rows[0].doubts[0].text == "critic says a success, reward 0"
    assert found.rows[3].judgements == {"ann": "good", "bob": "bad"}


def test_a_judged_rollout_leaves_until_people_disagree():
    both = rollout("a"), rollout("b")
    good = make_judgement(both[0], "good", "ann", 5, "")
    bad = make_judgement(both[0], "bad", "bob", 6, "")
    again = make_judgement(both[0], "good", "bob", 7, "")
    assert queued(*both, good) == ["b"]
    assert queued(*both, good, bad) == ["a", "b"]
    assert queued(*both, good, bad, again) == ["b"], "each person's newest judgement counts"


def test_only_training_rollouts_with_actions_are_judged():
    others = [rollout(purpose, purpose=purpose) for purpose in ("eval", "explore", "demonstration", "check")]
    assert queued(rollout("a"), rollout("crashed", steps=0, outcome="env_error", reward=None), *others) == ["a"]


@pytest.mark.parametrize(
    ("played", "length"),
    [
        (loop("a", CLICK, CLICK, OTHER, CLICK), 2),
        (loop("a", OTHER, CLICK, CLICK, CLICK), 3),
        (loop("a", CLICK, CLICK, CLICK, CLICK, screens="abcd"), 1),
        (loop("a", *[StepAction()] * 4), 0),
        (rollout("a", actions=[CLICK] * 4, screens=[""] * 4), 0),
        (rollout("a"), 0),
    ],
)
def test_a_loop_is_the_same_action_on_the_same_screen_again(played: Trajectory, length: int):
    assert judging.longest_loop(played) == length


def test_a_straggler_is_slow_beside_enough_rollouts_of_its_task():
    peers = [rollout(f"p{number}") for number in range(3)]
    assert kinds(*peers, rollout("slow", finished_ms=4100))["slow"] == ["straggler"]
    assert kinds(*peers, rollout("slow", finished_ms=4000))["slow"] == [], "three times is the bound"
    assert kinds(*peers[:2], rollout("slow", finished_ms=90_000))["slow"] == []
    assert kinds(*peers, rollout("slow", finished_ms=90_000, task_id="t/other#1"))["slow"] == []


def test_of_two_loops_the_longer_one_comes_first_and_then_more_doubts():
    longer = loop("longer", *[CLICK] * 4)
    peers = [loop("short", CLICK, CLICK, CLICK, OTHER), *[rollout(f"p{n}", finished_ms=1000 + n) for n in range(3)]]
    both = loop("slow-too", CLICK, CLICK, CLICK, OTHER, finished_ms=20_000)
    assert queued(*peers, longer, both)[:3] == ["longer", "slow-too", "short"]
    assert kinds(*peers, longer, both)["slow-too"] == ["loop", "straggler"]


@given(st.permutations(range(12)))
def test_the_order_of_the_log_does_not_matter(order: list[int]):
    played = [
        loop(f"t{n}", *[CLICK] * (n % 4), reward=n % 2, finished_ms=2000 + n % 3 * 5000, screens="aaaa"[: n % 4])
        for n in range(12)
    ]
    verdicts = [judged(f"v{n}", bool(n % 2), 1.0) for n in range(12)]
    assert queued(*[played[n] for n in order], *[verdicts[n] for n in order]) == queued(*played, *verdicts)


def test_a_long_queue_is_cut_and_counted():
    played = [rollout(f"t{number}", finished_ms=2000 + number) for number in range(judging.MAX_ROWS + 3)]
    found = judging.judging_queue(state_of(*played))
    assert (len(found.rows), found.waiting, found.doubtful) == (judging.MAX_ROWS, judging.MAX_ROWS + 3, 0)
    assert found.rows[0].episode.trajectory_id == f"t{judging.MAX_ROWS + 2}", "the newest"
