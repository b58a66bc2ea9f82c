"""What a fault of the browser costs a run, from its log."""

from benchmarks.circle_faults import CausedFault, costs
from dart_streams.console.runs.run_log import RecordMetadata
from dart_streams.console.runs.run_state import RunState
from topics.trajectories import Trajectory

START_MS = 1_700_000_000_000


def run_of(ended_ms):
    """A run with an episode of each of these ends, the last of them with a fault."""
    state = RunState()
    for number, at_ms in enumerate(ended_ms):
        last = at_ms == ended_ms[-1]
        state.apply(
            RecordMetadata("trajectories", 0, number, at_ms),
            Trajectory(
                trajectory_id=f"t{number}",
                order_id=f"g{number:06}/0/0",
                group_id=f"g{number:06}",
                group_size=1,
                attempt=0,
                task_id="miniwob/click-test#1",
                purpose="train",
                outcome="env_error" if last else "success",
                reward=None if last else 1.0,
                steps=1,
                step_entropies=[],
                version_min=0,
                version_max=0,
                started_ms=at_ms - 500,
                finished_ms=at_ms,
            ),
        )
    return state


def test_a_fault_costs_the_time_until_episodes_end_at_their_rate_again():
    before = [START_MS + 100 * n for n in range(200)]
    after = [START_MS + 23_000 + 100 * n for n in range(200)]
    found = costs([CausedFault("browser killed", START_MS + 20_000)], run_of(before + after))
    assert found["faults"] == [{"fault": "browser killed", "episodes_per_s_before": 10.0, "back_s": 3.0}]
    assert found["outcomes"] == {"success": 399, "env_error": 1}


def test_a_run_that_stays_slow_is_not_back():
    before, after = [START_MS + 100 * n for n in range(200)], [START_MS + 20_000 + 300 * n for n in range(60)]
    found = costs([CausedFault("browser frozen", START_MS + 20_000)], run_of(before + after))
    assert found["faults"][0]["back_s"] is None
