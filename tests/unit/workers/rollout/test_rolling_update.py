"""The rolling rule, played by hypothesis: workers see each other late, die, fail to load and meet new versions."""

from hypothesis import given
from hypothesis import strategies as st

from tests import events
from topics.weights_serving import WeightsServing
from workers.rollout.weight_updater import may_switch


def record(worker_id: str, version: int, failed: int | None = None, alive_ms: int = 0) -> WeightsServing:
    return events.weights_serving(version, worker_id=worker_id, alive_ms=alive_ms, failed_version=failed)


def allowed(me: str, target: int, *records: WeightsServing, dead: str = "", width: int = 1) -> bool:
    alive = {record.worker_id for record in records} - set(dead)
    return may_switch(me, target, {r.worker_id: r for r in records}, alive, width)


def test_the_smaller_id_goes_first_and_the_other_waits_until_it_serves():
    assert allowed("a", 1, record("a", 0)), "a worker alone may switch at once"
    assert allowed("a", 1, record("a", 0), record("b", 0))
    assert not allowed("b", 1, record("a", 0), record("b", 0))
    assert allowed("b", 1, record("a", 1), record("b", 0))
    assert not allowed("a", 2, record("a", 1), record("b", 0)), "the other is switching to an older version"


def test_with_width_two_the_first_two_may_switch_together():
    four = [record(name, 0) for name in "abcd"]
    assert [allowed(name, 1, *four, width=2) for name in "abcd"] == [True, True, False, False]


def test_a_dead_worker_is_not_waited_for_whatever_time_it_said_last():
    for alive_ms in (0, 600_000, 253_402_300_799_999):
        dead, live = record("a", 0, alive_ms=alive_ms), record("b", 0, alive_ms=600_000)
        assert not allowed("b", 1, dead, live)
        assert allowed("b", 1, dead, live, dead="a")


def test_a_worker_that_failed_to_load_is_not_waited_for_and_retries_last():
    assert allowed("b", 1, record("a", 0, failed=1), record("b", 0))
    assert not allowed("a", 1, record("a", 0, failed=1), record("b", 0))
    assert allowed("a", 1, record("a", 0, failed=1), record("b", 1))


class Fleet:
    """A model of the workers: each sees the others' announcements up to some place in one log."""

    def __init__(self, size: int, width: int) -> None:
        self.width = width
        self.names = [f"w{index}" for index in range(size)]
        self.log = [record(name, 0) for name in self.names]
        self.read = {name: size for name in self.names}
        self.own = {name: self.log[index] for index, name in enumerate(self.names)}
        self.target = {name: 0 for name in self.names}
        self.switching: dict[str, int] = {}
        self.newest = 0

    def see(self, name: str, upto: int) -> None:
        self.read[name] = max(self.read[name], min(upto, len(self.log)))

    def may(self, name: str) -> bool:
        view = {r.worker_id: r for r in self.log[: self.read[name]]} | {name: self.own[name]}
        target = self.target[name]
        pending = self.own[name].version < target and name not in self.switching
        return pending and may_switch(name, target, view, set(self.names), self.width)

    def retries(self, name: str) -> bool:
        return self.own[name].failed_version == self.target[name]

    def begin(self, name: str) -> None:
        self.switching[name] = self.target[name]

    def end(self, name: str, loads: bool) -> None:
        version = self.switching.pop(name)
        self.own[name] = record(name, version) if loads else record(name, self.own[name].version, failed=version)
        self.log.append(self.own[name])


@given(st.data(), st.integers(2, 5), st.integers(1, 3))
def test_at_most_width_workers_try_at_once_despite_stale_views(data, size, width):
    fleet = Fleet(size, width)
    for _ in range(data.draw(st.integers(1, 60))):
        name = data.draw(st.sampled_from(fleet.names))
        match data.draw(st.sampled_from(["publish", "hear", "see", "step"])):
            case "publish":
                fleet.newest += 1
            case "hear":
                fleet.target[name] = fleet.newest
            case "see":
                fleet.see(name, data.draw(st.integers(0, len(fleet.log))))
            case "step" if name in fleet.switching:
                fleet.end(name, loads=data.draw(st.booleans()))
            case "step" if fleet.may(name) and not fleet.retries(name):
                fleet.begin(name)
        assert len(fleet.switching) <= width


@given(st.data(), st.integers(1, 6), st.integers(1, 3))
def test_all_live_workers_reach_the_newest_version(data, size, width):
    fleet = Fleet(size, width)
    fleet.newest = 3
    for name in fleet.names:
        served = data.draw(st.integers(0, 3))
        failed = data.draw(st.none() | st.integers(served, 3)) if served < 3 else None
        fleet.own[name] = record(name, served, failed=failed)
        fleet.log.append(fleet.own[name])
        fleet.target[name] = 3
    for _ in range(size):
        for name in fleet.names:
            fleet.see(name, len(fleet.log))
        for name in [name for name in fleet.names if fleet.may(name)]:
            fleet.begin(name)
        for name in list(fleet.switching):
            fleet.end(name, loads=True)
    assert {fleet.own[name].version for name in fleet.names} == {3}


@given(st.data())
def test_of_four_workers_that_roll_two_at_a_time_two_always_serve(data):
    fleet = Fleet(4, 2)
    for newest in range(1, 4):
        fleet.newest = newest
        fleet.target = dict.fromkeys(fleet.names, newest)
        while set(fleet.own[name].version for name in fleet.names) != {newest}:
            waiting = [name for name in fleet.names if fleet.may(name)]
            name = data.draw(st.sampled_from([*waiting, *fleet.switching]))
            if name in fleet.switching:
                fleet.end(name, loads=True)
            else:
                fleet.begin(name)
            assert len(fleet.names) - len(fleet.switching) >= 2
            for other in fleet.names:
                fleet.see(other, len(fleet.log))
