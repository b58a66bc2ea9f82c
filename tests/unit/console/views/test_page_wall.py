"""Which episode is in which slot: each once, where it was, and the newest of those that have ended."""

from hypothesis import given
from hypothesis import strategies as st

from console.runs.run_log import EndHeader, ObservationHeader, OrderHeader, RecordMetadata, ResponseHeader
from console.runs.run_state import RunState
from console.views.page.wall import SlotGrid
from dart_streams.config import parse
from topics.values import BlobRef

SLOTS = 3
CONFIG = parse({"env": {"slots": SLOTS}}, "the test")


def seen(state: RunState, number: int, step: int, *, end: bool = False, host: str = "env-0", screen: str = "") -> None:
    header = ObservationHeader(
        trajectory_id=f"t{number}",
        order=OrderHeader(f"o{number}", "train", "task"),
        step=step,
        end=EndHeader("success", 1.0) if end else None,
        env_host=host,
        at_ms=1000 * number + step,
        screenshot=BlobRef(sha256=screen, size=1, media_type="image/png", width=2, height=3) if screen else None,
    )
    state.apply(RecordMetadata("observations", 0, 0, header.at_ms), header)


def shown(grid: SlotGrid, state: RunState) -> dict[str, tuple[str, str]]:
    return {tile.slot: (tile.trajectory_id, tile.state) for tile in grid.update(state)}


def test_an_episode_stays_in_its_slot_and_too_many_are_all_shown():
    state, grid = RunState(), SlotGrid(CONFIG)
    for number in range(3):
        seen(state, number, 0)
    assert shown(grid, state) == {f"env-0/{n}": (f"t{n}", "waits") for n in range(3)}
    seen(state, 1, 1, end=True)
    seen(state, 7, 0)
    assert shown(grid, state) == {"env-0/0": ("t0", "waits"), "env-0/1": ("t7", "waits"), "env-0/2": ("t2", "waits")}
    state, grid = RunState(), SlotGrid(CONFIG)
    for number in range(5):
        seen(state, number, 0)
    assert len(shown(grid, state)) == 5


def test_an_end_without_a_screen_shows_the_screen_of_the_last_action():
    state, grid = RunState(), SlotGrid(CONFIG)
    seen(state, 0, 0, screen="first")
    seen(state, 0, 1, screen="second")
    seen(state, 0, 2, end=True)
    seen(state, 1, 0, screen="only")
    seen(state, 1, 1, end=True, screen="last")
    screens = {tile.trajectory_id: tile.screenshot for tile in grid.update(state) if tile.trajectory_id}
    assert screens == {"t0": "second", "t1": "last"}
    assert state.screens == {}


def test_a_slot_whose_episode_failed_says_why():
    state, grid = RunState(), SlotGrid(CONFIG)
    end = EndHeader("env_error", None, "step 1 of 1 (open): no such file")
    order = OrderHeader("o", "train", "task")
    header = ObservationHeader(trajectory_id="t", order=order, step=0, end=end, env_host="env-0", at_ms=1)
    state.apply(RecordMetadata("observations", 0, 0, 1), header)
    [tile] = [tile for tile in grid.update(state) if tile.trajectory_id]
    assert (tile.outcome, tile.reason) == ("env_error", "step 1 of 1 (open): no such file")


def test_a_slot_waits_for_an_answer_and_then_acts_until_the_next_screen():
    state, grid = RunState(), SlotGrid(CONFIG)
    seen(state, 0, 0)
    state.apply(RecordMetadata("actions", 0, 0, 1), ResponseHeader("rollout-0", "t0/0/0"))
    assert shown(grid, state)["env-0/0"] == ("t0", "acts")
    seen(state, 0, 1)
    assert shown(grid, state)["env-0/0"] == ("t0", "waits")


def test_unseen_ended_episodes_replace_older_ones():
    state, grid = RunState(), SlotGrid(CONFIG)
    for number in range(3):
        seen(state, number, 1, end=True)
    assert {identity for identity, _ in shown(grid, state).values()} == {"t0", "t1", "t2"}
    for number in range(3, 30):
        seen(state, number, 1, end=True)
    assert {identity for identity, _ in shown(grid, state).values()} == {"t27", "t28", "t29"}


@given(st.lists(st.tuples(st.integers(0, 15), st.booleans(), st.sampled_from(["a", "b"]), st.booleans()), max_size=60))
def test_every_episode_under_way_is_in_exactly_one_slot_of_its_host(events):
    state, grid, steps, hosts = RunState(), SlotGrid(CONFIG), dict.fromkeys(range(16), 0), {}
    for number, end, host, look in events:
        if f"t{number}" in state.ended:
            continue
        seen(state, number, steps[number], end=end, host=hosts.setdefault(number, host))
        steps[number] += 1
        if look:
            grid.update(state)
    tiles = [tile for tile in grid.update(state) if tile.trajectory_id]
    ids = [tile.trajectory_id for tile in tiles]
    assert len(ids) == len(set(ids))
    assert set(state.open) <= set(ids)
    for tile in tiles:
        assert tile.slot.startswith(f"{hosts[int(tile.trajectory_id[1:])]}/")
        assert tile.step == state.newest_step[tile.trajectory_id]


def test_another_fold_begins_with_free_slots():
    state, grid = RunState(), SlotGrid(CONFIG)
    seen(state, 0, 0)
    seen(state, 1, 0)
    grid.update(state)
    again = RunState()
    assert set(shown(grid, again).values()) == {("", "free")}
    seen(again, 5, 0)
    assert shown(grid, again)["env-0/0"] == ("t5", "waits")


def test_a_slot_says_that_a_person_is_asked_until_they_act():
    state, grid = RunState(), SlotGrid(CONFIG)
    order = OrderHeader("o", "train", "task")
    asks = ObservationHeader(trajectory_id="t", order=order, step=1, end=None, env_host="e", at_ms=1, asks="f0")
    place = RecordMetadata("actions", 0, 0, 1)

    def tile() -> tuple[str, bool]:
        [known] = [one for one in grid.update(state) if one.trajectory_id]
        return known.state, known.person

    state.apply(place, asks)
    assert tile() == ("waits", True)
    state.apply(place, ResponseHeader(worker_id="person-0", request_id="t/1/person", alive=True))
    assert tile() == ("waits", True)
    state.apply(place, ResponseHeader(worker_id="person-0", request_id="t/1/person"))
    assert tile() == ("acts", True)
