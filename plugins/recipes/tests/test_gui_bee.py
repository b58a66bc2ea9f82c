"""GUI-Bee: the exploration graph by hand, exploration of the simulated pages, and what never reads an exploration."""

import asyncio
from typing import Any

import msgspec
import pytest

from benchmarks import bundle as bundles
from benchmarks import curation_world
from benchmarks.curation_world import Odds
from benchmarks.recipes import gui_bee as exploration
from console.bundles.replay import replay
from console.runs.bundle import Bundle
from dart_recipes.gui_bee import rules
from dart_recipes.gui_bee.graph import ExplorationGraph, click_places, plan_episode
from dart_streams import actions, stateless_random
from dart_streams.actions import Click
from dart_streams.config import parse
from dart_streams.config.tasks import Task
from dart_streams.curation import difficulty, groups
from dart_streams.curation.hooks import ExplorationFinish, Own
from dart_streams.curation.order_tracker import Limits
from dart_streams.curation.recipes import bind_rules
from dart_streams.curation.reducer import InputRecord
from dart_streams.curation.rule_results import RuleFailed
from dart_streams.episodes.trajectory_summary import summarize
from examples.in_memory_run import ObservationLog, PolicyFunction
from plugins.recipes.tests.agents import orders_in
from tests.unit.workers.curator.test_order_audit import Audited
from tests.unit.workers.env.episodes import TRAINER, StoredLog, runner_of, simulated_config
from topics import trajectories
from topics.rollout_orders import Guide, RolloutOrder
from topics.trajectories import Trajectory
from workers.env.backends.simulated import SimulatedBackend, box_center

TASK = "simulated/steps-3#0"
PLAY = curation_world.play


def known_graph() -> ExplorationGraph:
    """Return a graph where a leads from s to t, b and c change nothing on s, and c leads from t to u."""
    graph = ExplorationGraph(TASK)
    graph.add(["s", "s", "t"], ["b", "a", "c"], "u")
    graph.add(["s"], ["c"], "s")
    return graph


def test_an_episode_adds_its_screens_and_where_its_actions_led():
    graph = known_graph()
    assert graph.start == "s" and graph.screens == {"s", "t", "u"}
    assert graph.tries == {"s": {"b": 1, "a": 1, "c": 1}, "t": {"c": 1}}
    assert graph.leads == {"s": {"a": "t"}, "t": {"c": "u"}}
    assert graph.paths(5) == {"s": [], "t": ["a"], "u": ["a", "c"]}
    assert graph.paths(1) == {"s": [], "t": ["a"]}


def test_unknown_screens_teach_nothing_but_the_try():
    graph = ExplorationGraph(TASK)
    graph.add(["s", ""], ["a", "b"], "t")
    assert (graph.tries, graph.leads) == ({"s": {"a": 1}}, {})


def test_an_action_is_worth_the_share_of_screens_that_it_changed():
    """a changed 1 of 1 screens, b none of 1, and c 1 of 2: (1 + 1) / (1 + 2), (0 + 1) / (1 + 2), (1 + 1) / (2 + 2)."""
    assert known_graph().values() == pytest.approx({"a": 2 / 3, "b": 1 / 3, "c": 1 / 2})


def test_a_plan_goes_to_the_screen_that_promises_most():
    """On t and u, a and b are untried; with 3 actions t has room for both (1 in sum), u for a alone (2 / 3)."""
    assert plan_episode(known_graph(), ["a", "b", "c"], 3) == ["a", "a", "b"]
    assert plan_episode(known_graph(), ["a", "b", "c"], 9)[:2] == ["a", "c"], "and u for all three"


def test_a_plan_repeats_no_pair_while_others_are_within_reach():
    graph = ExplorationGraph(TASK)
    actions = [str(number) for number in range(12)]
    plans = []
    for number in range(3):
        plans.append(plan_episode(graph, actions, 5, number))
        graph.add(["s"] * len(plans[-1]), plans[-1], "s")
    assert [len(plan) for plan in plans] == [5, 5, 2]
    assert sorted((action for plan in plans for action in plan), key=int) == actions
    assert len(plan_episode(graph, actions, 5, 3)) == 5, "then what was tried least"


def test_places_are_the_middles_of_cells():
    assert click_places(160, 210, 2, 3) == [(40, 35), (120, 35), (40, 105), (120, 105), (40, 175), (120, 175)]


def finished(task_id: str = TASK, purpose: str = "train", order_id: str = "g000000/0/0") -> Trajectory:
    first = exploration.trajectory_of(rules.explore_order(task_id, 0, []), ["s"], 0)
    return msgspec.structs.replace(first, purpose=purpose, order_id=order_id, group_id="g000000")


def test_a_page_has_one_open_exploration_and_as_many_as_the_settings_say():
    own = Own(rules.Settings(episodes=2, steps=3), rules.Explored())
    [first] = rules.order_exploration(own, finished())
    assert (first.order_id, first.task_id, first.purpose, first.max_steps) == (f"explore-0/{TASK}", TASK, "explore", 4)
    assert len(set(first.plan)) == 3
    assert rules.order_exploration(own, finished("simulated/steps-3#7")) == [], "one is open"
    assert rules.order_exploration(own, finished("simulated/box#0"))[0].task_id == "simulated/box#0", "another page"
    ended = exploration.trajectory_of(first, ["s", "s", "s", "t"], 3)
    [second] = rules.order_exploration(own, ended)
    assert second.order_id == f"explore-1/{TASK}"
    assert own.memory.graphs["simulated/steps-3"].leads == {"s": {first.plan[2]: "t"}}
    assert rules.order_exploration(own, ended) == [], "a repeat of the first"
    assert rules.order_exploration(own, exploration.trajectory_of(second, ["s"], 0)) == [], "all were ordered"


def test_pages_may_be_named():
    own = Own(rules.Settings(pages=("simulated/box",)), rules.Explored())
    assert rules.order_exploration(own, finished()) == []
    assert rules.order_exploration(own, finished("simulated/box#0"))


async def test_a_lost_exploration_is_ended_and_the_next_one_ordered():
    """A page has one open exploration, so a lost one would keep all later ones of its page from their orders."""
    audited = Audited({"recipe": "gui-bee", "recipes": {"gui-bee": {"pages": ["simulated/grid"]}}})
    again = await audited.order_again("explore")
    assert [order.order_id.partition("/")[0] for order in again] == ["explore-1"]
    assert {*audited.circle.states["difficulty"].further} == {order.order_id for order in again}


def test_an_exploration_enters_neither_difficulty_nor_groups():
    config = parse({})
    limits, bound = Limits.of(config), bind_rules(config)
    won = msgspec.structs.replace(finished(purpose="explore"), outcome="success", reward=1.0)
    record = InputRecord(trajectories.TOPIC.name, 0, 0, won)
    state, decisions = difficulty.apply(difficulty.DifficultyState(), record, 16, limits, bound)
    assert (state, decisions) == (difficulty.DifficultyState(), [])
    assert groups.apply(groups.GroupsState(), record, config.curation, limits, bound) == (groups.GroupsState(), [])


def test_a_rule_cannot_order_training(monkeypatch):
    ordered = msgspec.structs.replace(rules.explore_order(TASK, 0, []), purpose="train")
    monkeypatch.setattr(rules, "RULES", rules.RULES._replace(further_orders=lambda own, trajectory: [ordered]))
    with pytest.raises(RuleFailed, match="orders of another purpose than train"):
        bind_rules(parse({"recipe": "gui-bee"})).further_orders({}, finished())


async def test_the_env_worker_executes_a_plan_without_a_policy():
    config, log = simulated_config(), ObservationLog()
    task = Task(environment="simulated", page="steps-8", seed=3, max_steps=1, split="train")
    plan = [actions.format(Click(*box_center(task)))] * 3
    policy = PolicyFunction(lambda _: pytest.fail("the policy was asked"), TRAINER)
    runner = runner_of(config, SimulatedBackend(config), log, policy)
    await runner.run(rules.explore_order(task.task_id, 0, plan), task, lambda _: None)
    [observations] = log.observations.values()
    assert sum(observation.taken is not None for observation in observations) == 3, "beyond the task's own limit"
    summary = summarize(observations)
    assert (summary.purpose, summary.outcome, summary.steps) == ("explore", "truncated", 3)
    assert len({*summary.screens, summary.last_screen}) == 4


async def test_a_plan_that_is_no_action_is_a_fault():
    config, log = simulated_config(), ObservationLog()
    task = Task(environment="simulated", page="steps-8", seed=3, max_steps=1, split="train")
    runner = runner_of(config, SimulatedBackend(config), log, PolicyFunction(lambda _: "", TRAINER))
    await runner.run(rules.explore_order(task.task_id, 0, ["click it"]), task, lambda _: None)
    [observations] = log.observations.values()
    assert observations[-1].end.kind == "env_error" and "plan of the order" in observations[-1].end.reason


def shown(order: RolloutOrder, *world: Any) -> Trajectory:
    """Return the trajectory of an order; that of an exploration has one of five screens before each action."""
    screens = [f"{stateless_random.number(order.plan[:step]) % 5}" for step in range(len(order.plan) + 1)]
    played = PLAY(order, *world)
    if order.purpose != "explore":
        return played
    return msgspec.structs.replace(played, steps=len(order.plan), screens=screens[:-1], last_screen=screens[-1])


def test_decisions_replay_to_the_same_bytes(tmp_path, monkeypatch):
    monkeypatch.setattr(curation_world, "play", shown)
    config = parse({"recipe": "gui-bee", "recipes": {"gui-bee": {"episodes": 8}}, "env": {"slots": 8}})
    tasks = curation_world.task_set(4)
    circle = bundles.play_rollouts(config, tasks, 200, Odds())
    explored = [order for order in orders_in(circle) if order.purpose == "explore"]
    assert [order.order_id.partition("/")[0] for order in explored] == [f"explore-{number}" for number in range(8)]
    assert len(circle.states["difficulty"].memories["gui-bee"].graphs["simulated/grid"].screens) == 5
    curated = {member.trajectory_id for written in circle.logs["curated"] for member in written.event.members}
    assert curated and not any(name.startswith("t-explore") for name in curated)
    bundles.write(tmp_path / "run.dart", config, tasks, circle)
    assert replay(Bundle(tmp_path / "run.dart")).equal


def test_start_states_are_screens_that_no_exploration_had_shown():
    """Of the screens s, t, v, v, w with t known, v and w are new after 2 and 4 actions; w is the last action's."""
    own = Own(rules.Settings(episodes=2, steps=4, start_share=0.5), rules.Explored())
    [first] = rules.order_exploration(own, finished())
    own.memory.graphs["simulated/steps-3"].add(["s"], ["a"], "t")
    ended = exploration.trajectory_of(first, ["s", "t", "v", "v", "w"], 4)
    assert rules.find_starts(own, ended) == [2]
    assert rules.find_starts(own, finished(order_id="g000007/0/0")) == [], "no exploration of ours"
    few = own._replace(settings=rules.Settings(start_share=0.5, start_actions=1))
    assert rules.find_starts(few, ended) == [], "too many actions away"
    off = own._replace(settings=rules.Settings())
    assert rules.find_starts(off, ended) == []


def training_order(group: int, task_id: str = TASK) -> RolloutOrder:
    order = rules.explore_order(task_id, 0, [])
    name = f"g{group:06d}"
    return msgspec.structs.replace(order, order_id=f"{name}/0/0", group_id=name, purpose="train", max_steps=4)


def test_a_group_begins_at_a_start_state_of_its_task():
    own = Own(rules.Settings(start_share=1.0), rules.Explored())
    plain = training_order(0)
    assert rules.order_from_start(own, plain) == plain, "nothing is found yet"
    rules.remember_starts(own, ExplorationFinish(TASK, "x", [4, 2]))
    first = rules.order_from_start(own, training_order(1))
    assert (first.guide.trajectory_id, first.guide.mode, first.guide.steps) == ("x", "prefix", 2), "4 leaves no step"
    assert rules.order_from_start(own, training_order(2, task_id="simulated/box#0")).guide is None, "another task"


def test_a_start_state_leaves_an_action_to_the_policy(monkeypatch):
    monkeypatch.setattr(rules, "RULES", rules.RULES._replace(start_states=lambda own, trajectory: [3]))
    with pytest.raises(RuleFailed, match="fewer than the exploration has"):
        bind_rules(parse({"recipe": "gui-bee"})).start_states(
            {}, exploration.trajectory_of(rules.explore_order(TASK, 0, []), ["s"] * 4, 3)
        )


async def test_a_rollout_begins_at_the_screen_that_an_exploration_found():
    config, log = simulated_config(), StoredLog()
    task = Task(environment="simulated", page="steps-8", seed=3, max_steps=6, split="train")
    asked: list[int] = []

    def answer(request: Any) -> str:
        asked.append(request.step)
        return "finished()"

    runner = runner_of(config, SimulatedBackend(config), log, PolicyFunction(answer, TRAINER))
    plan = [actions.format(Click(*box_center(task)))] * 4
    await runner.run(rules.explore_order(task.task_id, 0, plan), task, lambda _: None)
    [(explored, observations)] = log.observations.items()
    found = summarize(observations)
    guide = Guide(trajectory_id=explored, mode="prefix", steps=2)
    order = msgspec.structs.replace(training_order(1, task_id=task.task_id), guide=guide, max_steps=6)
    await runner.run(order, task, lambda _: None)
    [played] = [summarize(shown) for name, shown in log.observations.items() if name != explored]
    assert played.screens[2] == found.screens[2] != found.screens[0]
    assert (played.recorded_steps, asked) == ([0, 1], [2]), "the first two are not the policy's"


def test_tasks_begin_at_found_screens_and_statistics_are_of_whole_ones(tmp_path, monkeypatch):
    monkeypatch.setattr(curation_world, "play", shown)
    settings = {"episodes": 8, "start_share": 0.5, "start_actions": 5}
    config = parse({"recipe": "gui-bee", "recipes": {"gui-bee": settings}, "env": {"slots": 8}})
    tasks = curation_world.task_set(4)
    circle = bundles.play_rollouts(config, tasks, 200, Odds(faults=0.1))
    orders = [order for order in orders_in(circle) if order.purpose == "train"]
    groups_of = {order.group_id: set() for order in orders}
    for order in orders:
        groups_of[order.group_id].add(order.guide)
    assert all(len(guides) == 1 for guides in groups_of.values()), "a group begins at one screen, repeats too"
    begun = [order for order in orders if order.guide is not None]
    assert begun and len(begun) < len(orders)
    [explored] = {order.task_id for order in begun}
    assert {order.guide.trajectory_id for order in begun} <= {f"t-explore-{number}/{explored}" for number in range(8)}
    rewarded = [
        written.event
        for written in circle.logs["trajectories"]
        if written.event.purpose == "train" and written.event.reward is not None and not written.event.guided
    ]
    attempts = sum(len(task.rewards) for task in circle.states["difficulty"].tasks.values())
    by_task = [sum(one.task_id == task for one in rewarded) for task in {one.task_id for one in rewarded}]
    assert attempts == sum(min(count, difficulty.WINDOW) for count in by_task)
    bundles.write(tmp_path / "run.dart", config, tasks, circle)
    assert replay(Bundle(tmp_path / "run.dart")).equal


@pytest.mark.parametrize("page", ["simulated/steps-3", "simulated/steps-8"])
def test_it_finds_more_distinct_screens_a_step_than_random(page):
    config = simulated_config()
    results = asyncio.run(exploration.compare_on(config, [page], 5, rules.Settings(episodes=150), 150))
    found = {"gui-bee": 0, "random": 0}
    for result in results:
        assert result.steps == 150
        found[result.method] += result.screens
    assert found["gui-bee"] > 1.5 * found["random"]
