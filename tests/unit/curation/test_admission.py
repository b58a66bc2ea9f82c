"""The modes of dispatch: what each promises, in any interleaving of rollouts, agents, trainer and workers."""

from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.curation_world import Odds, SimulatedCircle, task_set
from dart_streams.config import Config, parse
from dart_streams.curation.dispatch import DispatchState, OpenGroup, admits
from dart_streams.curation.order_tracker import ENDED, parse_order_id
from dart_streams.curation.recipes import bind_rules

SHAPES = st.fixed_dictionaries(
    {
        "slots": st.sampled_from([1, 8, 20, 64]),
        "batch": st.sampled_from([1, 2, 8]),
        "workers": st.integers(1, 3),
        "tasks": st.sampled_from([1, 7, 30]),
        "faults": st.sampled_from([0.0, 0.2]),
        "dynamic": st.booleans(),
        "seed": st.integers(0, 10_000),
    }
)


class Deployment(SimulatedCircle):
    """A circle with rollout workers that switch when they like; ``opened`` says what was so when groups were opened."""

    def __init__(self, shape, mode):
        config = parse(
            {
                "env": {"slots": shape["slots"]},
                "rollout": {"workers": shape["workers"]},
                "trainer": {"groups_per_step": shape["batch"]},
                "curation": {"dispatch": {"mode": mode}, "budget": {"dynamic": shape["dynamic"]}},
            }
        )
        self.workers = [-1] * shape["workers"]
        self.opened = []
        super().__init__(config, task_set(shape["tasks"]), Odds(faults=shape["faults"], lift=0.02), shape["seed"])

    def deliver(self, agent, topic, offset):
        before, reserved = self.states["dispatch"].next_group, self.reserved()
        decided = super().deliver(agent, topic, offset)
        kept = self.states["dispatch"]
        still_to_come = sum(at != ENDED for samples in kept.orders.open.values() for at in samples)
        assert (kept.open_orders, kept.reserved) == (still_to_come, self.reserved())
        for number in range(before, self.states["dispatch"].next_group):
            self.opened.append((number, self.trainer.version, min(self.workers), len(self.trainer.trained), reserved))
        return decided

    def reserved(self):
        return sum(group.size for group in self.states["dispatch"].groups.values())

    def switch(self, worker):
        self.workers[worker] = self.trainer.version
        self.serve(worker, self.trainer.version)

    def turn(self):
        """Let anything happen that could."""
        choice = self.random.random()
        if self.running and choice < 0.5:
            self.end_one()
        elif choice < 0.6:
            self.train(self.random.randrange(3))
        elif choice < 0.7:
            self.switch(self.random.randrange(len(self.workers)))
        for _ in range(self.random.randrange(6)):
            if turns := self.waiting():
                self.advance(*self.random.choice(turns))

    def rest(self):
        """Let everything happen that is due, until only rollouts are under way."""
        for _ in range(3):
            self.settle()
            self.train()
            for worker in range(len(self.workers)):
                self.switch(worker)
        self.settle()


@given(SHAPES)
def test_coupled_orders_a_batch_once_the_last_one_is_served_by_all(shape):
    circle = Deployment(shape, "coupled")
    for _ in range(400):
        circle.turn()
    for number, version, served, trained, _ in circle.opened:
        if number % shape["batch"] == 0:
            assert trained == number, "a batch may begin only when all groups before it are trained on"
            assert served == version == number // shape["batch"]
    batches = [number // shape["batch"] for number, *_ in circle.opened]
    assert batches == sorted(batches)
    assert len(circle.opened) % shape["batch"] == 0, "a batch is ordered as a whole"


@given(SHAPES)
def test_coupled_trains_on_nothing_stale_and_never_stops(shape):
    circle = Deployment(shape, "coupled")
    for _ in range(150):
        circle.rest()
        assert circle.running
        circle.end_one()
    assert circle.trainer.version > 0 or len(circle.running) + 150 >= shape["batch"]
    for index, group in enumerate(circle.trainer.trained):
        for member in group.members:
            assert member.version_min in (None, index // shape["batch"])


@given(SHAPES)
def test_coupled_groups_without_a_signal_have_no_members(shape):
    circle = Deployment(shape, "coupled")
    for _ in range(400):
        circle.turn()
    circle.settle()
    published = [written.event for written in circle.logs.get("curated", [])]
    closed = circle.states["dispatch"].next_group - len(circle.states["dispatch"].groups)
    assert len({group.group_id for group in published}) == len(published) == closed
    for group in published:
        assert not group.members or len({member.reward for member in group.members}) > 1


@given(SHAPES)
def test_task_wise_rollouts_never_exceed_the_slots(shape):
    circle = Deployment(shape, "task-wise")
    for _ in range(150):
        circle.rest()
        assert circle.running
        assert len(circle.states["dispatch"].groups) == 1 or circle.reserved() <= shape["slots"]
        circle.end_one()
    sizes = {}
    for written in circle.logs["rollout-orders"]:
        sizes.setdefault(parse_order_id(written.event.order_id).number, written.event.group_size)
    assert len(sizes) == circle.states["dispatch"].next_group


def deployment(mode="rollout-wise", slots=16) -> Config:
    """Return a deployment with a backlog of 32 orders and groups of at most 8 rollouts."""
    return parse(
        {
            "env": {"workers": 1, "slots": slots},
            "rollout": {"workers": 2},
            "trainer": {"groups_per_step": 4},
            "curation": {"max_staleness": 2, "dispatch": {"mode": mode}, "budget": {"base": 8}},
        }
    )


class Load(NamedTuple):
    """The present load: groups opened so far, open now, and curated but not consumed; orders; workers that serve."""

    opened: int
    open: int
    unconsumed: int
    consumed: int
    orders: int
    reserved: int
    serving: int
    batch_end: int

    def state(self) -> DispatchState:
        return DispatchState(
            groups={number: OpenGroup("task", 8, 10) for number in range(self.open)},
            open_orders=self.orders,
            reserved=self.reserved,
            next_group=self.opened,
            version=1,
            curated=self.consumed + self.unconsumed,
            consumed=self.consumed,
            serving={f"worker-{number}": int(number < self.serving) for number in range(2)},
            batch_end=self.batch_end,
        )


QUIET = Load(opened=0, open=0, unconsumed=0, consumed=0, orders=0, reserved=0, serving=2, batch_end=0)


@pytest.mark.parametrize(
    ("mode", "load", "admitted"),
    [
        ("rollout-wise", QUIET, True),
        ("rollout-wise", QUIET._replace(orders=32), False),
        ("rollout-wise", QUIET._replace(open=5, unconsumed=3), False),
        ("rollout-wise", QUIET._replace(open=2, reserved=16, serving=0), True),
        ("task-wise", QUIET._replace(open=1, reserved=8), True),
        ("task-wise", QUIET._replace(open=2, reserved=9), False),
        ("task-wise", QUIET._replace(open=1, unconsumed=7, reserved=3), False),
        ("coupled", QUIET, True),
        ("coupled", QUIET._replace(serving=1), False),
        ("coupled", QUIET._replace(opened=3, open=3, batch_end=4, serving=0), True),
        ("coupled", QUIET._replace(opened=4, open=1, batch_end=4), False),
        ("coupled", QUIET._replace(opened=4, unconsumed=4, batch_end=4), False),
        ("coupled", QUIET._replace(opened=4, consumed=4, batch_end=4), True),
        ("coupled", QUIET._replace(opened=4, consumed=4, batch_end=4, serving=1), False),
    ],
)
def test_each_mode_has_its_rule(mode, load, admitted):
    config = deployment(mode)
    assert admits(load.state(), config, bind_rules(config)) is admitted


def test_a_group_larger_than_all_slots_is_played_all_the_same():
    config = deployment("task-wise", slots=3)
    assert admits(QUIET.state(), config, bind_rules(config))


def test_only_the_coupled_mode_reads_heartbeats():
    for mode, reads_serving in [("rollout-wise", False), ("task-wise", False), ("coupled", True)]:
        config = parse({"curation": {"dispatch": {"mode": mode}}})
        circle = SimulatedCircle(config, task_set(3), Odds())
        assert ("weights-serving" in [topic.name for topic in circle.agents["dispatch"].inputs]) is reads_serving
