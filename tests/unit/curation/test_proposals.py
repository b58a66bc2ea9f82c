"""Proposed tasks: what the agent accepts and refuses, with which reason, and what dispatch makes of it."""

from typing import Any

import msgspec
import pytest

from benchmarks import bundle as bundles
from benchmarks import curation_world
from benchmarks.curation_world import Odds, task_set
from console.bundles import whatif
from console.bundles.replay import replay
from console.runs.bundle import Bundle
from dart_streams.config import Config, parse
from dart_streams.config.tasks import TaskSet
from dart_streams.curation import proposals
from dart_streams.curation.agents import bind_agents
from dart_streams.curation.proposals import OPEN_CHECKS, ProposalSettings, ProposalsState
from dart_streams.curation.reducer import Decision, InputRecord, InvalidEvent, RefusedInput
from topics.curation_log import Source
from topics.rollout_orders import RolloutOrder
from topics.task_verdicts import TaskVerdict
from topics.tasks import ProposedTask
from topics.trajectories import Trajectory

CONFIG = parse({"env": {"backend": "simulated", "slots": 4}, "tasks": {"proposals": True}})
PAGE = "<script>var task = {}</script>"


def proposed(number: int = 0, **fields: Any) -> ProposedTask:
    given = {"task_id": f"simulated/made#{number}", "max_steps": 5, "maker": "test"} | fields
    return ProposedTask(**given)


def checked(order: RolloutOrder, outcome: str = "success", reward: float | None = 1.0, reason: str = "") -> Trajectory:
    done = curation_world.play(order, 0, Odds())
    return msgspec.structs.replace(done, outcome=outcome, reward=reward, reason=reason)


class Reader:
    """The agent with its state, and the offset of the next record of each topic."""

    def __init__(self, config: Config = CONFIG, tasks: TaskSet | None = None) -> None:
        self.state = ProposalsState()
        self.settings = ProposalSettings.of(config, tasks or task_set(3))
        self.offsets = {ProposedTask: 0, Trajectory: 0}
        self.refusals: list[RefusedInput] = []

    def read(self, event: Any) -> list[Decision]:
        offset = self.offsets[type(event)]
        self.offsets[type(event)] += 1
        topic = "tasks" if isinstance(event, ProposedTask) else "trajectories"
        self.state, effects = proposals.apply(self.state, InputRecord(topic, 0, offset, event), self.settings)
        self.refusals += [effect for effect in effects if isinstance(effect, RefusedInput)]
        return [effect for effect in effects if isinstance(effect, Decision)]

    def check_of(self, event: ProposedTask) -> RolloutOrder:
        [decision] = self.read(event)
        assert isinstance(decision.event, RolloutOrder)
        return decision.event


def test_a_proposal_is_checked_by_its_solution_and_accepted():
    reader = Reader()
    order = reader.check_of(proposed(solution=["wait()"]))
    assert (order.order_id, order.purpose, order.max_steps) == ("check/0/simulated/made#0", "check", 5)
    assert (order.plan, order.group_size) == (["wait()"], 1)
    [decision] = reader.read(checked(order))
    assert decision.event == TaskVerdict(
        task_id="simulated/made#0",
        accepted=True,
        reason="",
        max_steps=5,
        maker="test",
        trajectory_id=f"t-{order.order_id}",
    )
    assert (decision.id, reader.refusals) == ("proposals/trajectories/0/0", [])
    assert reader.read(checked(order)) == [], "the check is repeated"


@pytest.mark.parametrize(
    ("outcome", "reward", "reason", "words"),
    [
        ("failure", 0.0, "the start is worth 1, not 0", "its check ended with reward 0: the start is worth 1, not 0"),
        ("failure", 0.5, "", "its check ended with reward 0.5"),
        ("truncated", 0.0, "step limit", "its check ended with reward 0: step limit"),
    ],
)
def test_a_failed_check_refuses_and_names_the_dead_letter(outcome, reward, reason, words):
    reader = Reader()
    reader.read(proposed(7, task_id="no id"))
    order = reader.check_of(proposed())
    [decision] = reader.read(checked(order, outcome, reward, reason))
    assert (decision.event.accepted, decision.event.reason) == (False, words)
    assert reader.refusals[-1].source == Source(topic="tasks", partition=0, offset=1)


def test_a_check_that_failed_without_a_reward_is_refused():
    """Its text needs the reward: the TypeError ended the curator at each start."""
    reader = Reader()
    order = reader.check_of(proposed())
    with pytest.raises(InvalidEvent, match="outcome failure with reward None"):
        reader.read(checked(order, "failure", None))
    assert [decision.event.accepted for decision in reader.read(checked(order))] == [True]


def test_a_fault_is_checked_again_and_refuses_after_the_last_attempt():
    reader = Reader()
    order = reader.check_of(proposed())
    for attempt in range(2):
        assert reader.read(checked(order, "cancelled", None)) == [], "its order comes again by itself"
        [again] = reader.read(checked(order, "env_error", None, "browser gone"))
        order = again.event
        assert order.order_id == f"check/{attempt + 1}/simulated/made#0"
    [decision] = reader.read(checked(order, "env_error", None, "evaluate() returned nan"))
    assert decision.event.reason == "3 checks ended as env_error: evaluate() returned nan"


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"task_id": "simulated/grid#1"}, "the task file has a task of this id"),
        ({"task_id": "simulated/../../etc/passwd#1"}, "its id is no environment/page#seed"),
        ({"task_id": "grid#1"}, "its id is no environment/page#seed"),
        ({"task_id": f"simulated/{'x' * 490}#1"}, "of at most 480 characters"),
        ({"max_steps": 11}, "it has 11 steps: 1 to 10 are allowed"),
        ({"max_steps": 0}, "it has 0 steps"),
        ({"max_steps": 1, "solution": ["wait()"] * 2}, "its solution has 2 actions, and its episodes 1 steps"),
        ({"document": PAGE}, "it has a page, and env.backend simulated plays only its own"),
    ],
)
def test_what_no_check_could_show_is_refused_at_once(fields, words):
    reader = Reader()
    [decision] = reader.read(proposed(**fields))
    assert not decision.event.accepted
    assert words in decision.event.reason
    [(source, reason)] = reader.refusals
    assert (decision.id, source.offset, words in reason) == ("proposals/tasks/0/0", 0, True)
    assert not reader.state.open
    with pytest.raises(InvalidEvent, match="another proposal has this id"):
        reader.read(proposed(**fields | {"maker": "another"}))


def test_another_proposal_of_an_id_is_refused_and_a_repeat_ignored():
    reader = Reader()
    order = reader.check_of(proposed())
    assert reader.read(proposed()) == []
    with pytest.raises(InvalidEvent, match="another proposal has this id"):
        reader.read(proposed(max_steps=6))
    [decision] = reader.read(checked(order))
    assert decision.event.accepted and decision.event.max_steps == 5
    with pytest.raises(InvalidEvent, match="another proposal has this id"):
        reader.read(proposed(max_steps=6))


def test_a_flood_of_proposals_has_a_few_open_checks_in_order():
    reader = Reader()
    orders = [decision.event for number in range(10) for decision in reader.read(proposed(number))]
    assert [order.task_id for order in orders] == [f"simulated/made#{number}" for number in range(OPEN_CHECKS)]
    verdict, following = reader.read(checked(orders[1], "failure", 0.0))
    assert (verdict.event.task_id, following.event.task_id) == ("simulated/made#1", f"simulated/made#{OPEN_CHECKS}")
    assert len(reader.state.waiting) == 10 - OPEN_CHECKS - 1


def test_a_run_takes_a_bounded_number_of_proposals(monkeypatch):
    monkeypatch.setattr(proposals, "MOST_PROPOSALS", 1)
    reader = Reader()
    reader.check_of(proposed())
    with pytest.raises(InvalidEvent, match="takes no more"):
        reader.read(proposed(1))


@pytest.mark.parametrize(("most", "said"), [("MOST_PAGES", {"document": "é"}), ("MOST_SOLUTIONS", {"solution": ["é"]})])
def test_pages_and_solutions_of_a_run_are_bounded_in_bytes(monkeypatch, most, said):
    monkeypatch.setattr(proposals, most, 5)
    reader = Reader()
    for number in range(2):
        reader.read(proposed(number, **said))
    with pytest.raises(InvalidEvent, match="propose smaller ones"):
        reader.read(proposed(2, **said))


def test_the_agent_of_proposals_is_there_with_the_setting():
    [*_, agent, dispatch] = bind_agents(CONFIG, task_set(1))
    assert (agent.name, dispatch.inputs[-1].name) == ("proposals", "task-verdicts")


def only_proposed(config: Config, count: int, rounds: int) -> bundles.LoggingCircle:
    """Return a circle without tasks of its own after ``rounds`` rollouts, of ``count`` proposals at its beginning."""
    page = msgspec.structs.replace(task_set(1).pages[0], train_seeds=(0, 0))
    circle = bundles.LoggingCircle(config, TaskSet([page]), Odds(faults=0.05, lift=0.01), 3)
    for number in range(count):
        circle.publish("tasks", f"p{number}", proposed(number))
    circle.settle()
    assert circle.running and all(order.purpose == "check" for order, _ in circle.running)
    return circle.play_rounds(rounds)


def test_a_run_trains_on_accepted_tasks_only_and_replays_equal(tmp_path):
    circle = only_proposed(CONFIG, 12, 300)
    verdicts = [written.event for written in circle.logs["task-verdicts"]]
    accepted = {verdict.task_id for verdict in verdicts if verdict.accepted}
    assert 0 < len(accepted) < 12 == len(verdicts)
    ordered = {written.event.task_id for written in circle.logs["rollout-orders"] if written.event.purpose == "train"}
    trained = {group.task_id for group in circle.trainer.trained}
    assert ordered == accepted
    assert trained and trained <= accepted
    assert not {member.trajectory_id for group in circle.trainer.trained for member in group.members} & {
        written.event.trajectory_id for written in circle.logs["trajectories"] if written.event.purpose == "check"
    }
    path = tmp_path / "run.dart"
    bundles.write(path, CONFIG, circle.tasks, circle)
    again = replay(Bundle(path))
    assert again.equal
    assert {count.agent: count.bytes_compared > 0 for count in again.agents}["proposals"]


def test_tasks_join_a_run_under_way_and_what_if_does_the_same(tmp_path):
    circle = bundles.LoggingCircle(CONFIG, task_set(3), Odds(lift=0.01), 3).play_rounds(60)
    before = {written.event.task_id for written in circle.logs["rollout-orders"]}
    for number in range(6):
        circle.publish("tasks", f"p{number}", proposed(number))
    circle.play_rounds(150)
    accepted = {written.event.task_id for written in circle.logs["task-verdicts"] if written.event.accepted}
    ordered = [written.event for written in circle.logs["rollout-orders"] if written.event.purpose == "train"]
    assert accepted and not accepted & before
    assert accepted <= {order.task_id for order in ordered}
    assert {order.max_steps for order in ordered if order.task_id in accepted} <= set(range(1, 6))
    path = tmp_path / "run.dart"
    bundles.write(path, CONFIG, circle.tasks, circle)
    assert replay(Bundle(path)).equal
    recorded = whatif.RecordedOutcomes(Bundle(path))
    assert {verdict.task_id for _, verdict in recorded.accepted} == accepted
    assert min(ended for ended, _ in recorded.accepted) >= 50, "not before it was proposed"
    run = whatif.SimulatedRun("own settings", CONFIG, circle.tasks, recorded)
    assert run.run(recorded.metrics.rollouts_ended).steps_trained > 0
    assert accepted <= run.circle.states["dispatch"].tasks.keys()
