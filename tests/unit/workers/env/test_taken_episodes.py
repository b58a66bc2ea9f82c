"""Whole episodes of the policy that a person takes over: each action is marked as whose it is, and prompts go on."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from dart_streams.actions import Click, Finished, format
from dart_streams.config import parse
from dart_streams.config.tasks import Task
from dart_streams.episodes.trajectory_summary import summarize
from examples.in_memory_run import PolicyFunction
from tests import events
from tests.unit.clockwork import by_clockwork
from tests.unit.workers.env.episodes import TRAINER, StoredLog, simulated_config
from tests.unit.workers.env.test_guided_episodes import POINT, Answers
from tests.waiting import until
from topics.action_requests import ActionRequest
from topics.actions import ActionResponse
from topics.feedback import Feedback
from topics.observations import Observation
from topics.rollout_orders import Guide, PersonLease, RolloutOrder
from workers.env.backends.simulated import SimulatedBackend
from workers.env.episode_runner import EpisodeRunner
from workers.env.policy_client import InvalidResponse
from workers.env.take_overs import TakeOvers, may_be_taken

LEASE = PersonLease(person="person-1", lease_ms=2500)
Act = Callable[[Observation], ActionResponse | Awaitable[ActionResponse]]


def taking(trajectory_id: str, number: int = 0, person: str = "person-1") -> Feedback:
    lease = PersonLease(person=person, lease_ms=2500)
    given = {"task_id": "t", "author": "ann", "at_ms": 0, "trajectory_id": trajectory_id, "lease": lease}
    return Feedback(feedback_id=f"f{number}", kind="take-over", **given)


def click(shown: Observation, beside: int = 0) -> ActionResponse:
    """Click where the instruction says, in pixels of the screen."""
    x, y = map(int, POINT.findall(shown.instruction)[0])
    return events.action_response(format(Click(x + beside, y)), generate_ms=1234.5)


class Both(PolicyFunction):
    """The policy, and the people who take over after its answers to these requests, and act by number of turn."""

    def __init__(self, log: StoredLog, after: list[int], acts: list[Act | Exception], policy: Answers) -> None:
        super().__init__(policy, TRAINER)
        self.log, self.after, self.acts = log, after, acts
        self.take_overs = TakeOvers()
        self.turns: list[str] = []
        self.prompts: list[ActionRequest] = []

    async def request(self, request: ActionRequest, timeout_s: float) -> ActionResponse:
        self.prompts.append(request)
        if request.step in self.after:
            number = self.after.index(request.step)
            self.take_overs.add(taking(request.trajectory_id, number))
            self.take_overs.add(taking(request.trajectory_id, 9, "person-2"))
        return await super().request(request, timeout_s)

    async def await_person(self, request_id: str, lease: PersonLease) -> ActionResponse:
        assert lease == LEASE, "the second person is not asked"
        await until(lambda: self.is_shown(int(request_id.split("/")[1])))
        act = self.acts[len(self.turns)]
        self.turns.append(request_id)
        if isinstance(act, Exception):
            raise act
        answer = act(self.shown[-1])
        return answer if isinstance(answer, ActionResponse) else await answer

    async def is_shown(self, step: int) -> bool:
        return len(self.shown) == step + 1

    @property
    def shown(self) -> list[Observation]:
        return next(iter(self.log.observations.values()), [])


async def played(
    acts: list[Act | Exception], after: list[int] | None = None, policy: Answers | None = None, **fields: Any
) -> tuple[list[Observation], Both]:
    """Play a page of four boxes, which people take over after the policy's answers to requests ``after``."""
    config, log = fields.pop("config", None) or simulated_config(), StoredLog()
    both = Both(log, [0] if after is None else after, acts, policy or Answers())
    task = Task(environment="simulated", page="steps-4", seed=3, max_steps=6, split="train")
    order: RolloutOrder = events.rollout_order(task_id=task.task_id, **fields)
    given: Any = log
    runner = EpisodeRunner(config, "env-0", SimulatedBackend(config), given, given, both, both.take_overs)  # type: ignore[arg-type]
    await runner.run(order, task, lambda _: None)
    assert both.take_overs.holder(both.shown[0].trajectory_id) is None, "forgotten at the end"
    return both.shown, both


def give_back(_: Observation) -> ActionResponse:
    return events.action_response(gives_back=True)


def whose(shown: list[Observation]) -> list[str | None]:
    return [one.taken.take_over for one in shown[1:] if one.taken]


async def test_a_person_takes_over_at_the_next_step_and_solves_it():
    shown, both = await played([click, click, click])
    assert shown[-1].end.kind == "success"
    assert whose(shown) == [None, "f0", "f0", "f0"]
    assert [one.asks for one in shown] == [None, "f0", "f0", "f0", None]
    identity = shown[0].trajectory_id
    assert both.turns == [f"{identity}/{step}/person" for step in (1, 2, 3)]
    assert [one.taken.request_id for one in shown[1:]] == [f"{identity}/0/0", *both.turns]
    assert {one.taken.generate_ms for one in shown[2:]} == {1234.5}
    summary = summarize(shown)
    assert (summary.person_steps, summary.take_overs, summary.own_steps) == ([1, 2, 3], ["f0"], [0])
    assert (summary.untrainable, summary.step_entropies, summary.version_min) == ("", [1.0, 0.0, 0.0, 0.0], 0)


async def test_after_a_give_back_the_policy_goes_on_with_the_real_history():
    shown, both = await played([click, give_back])
    assert shown[-1].end.kind == "success"
    assert whose(shown) == [None, "f0", None, None]
    assert [one.asks for one in shown] == [None, "f0", "f0", None, None]
    assert [prompt.request_id.partition("/")[2] for prompt in both.prompts] == ["0/0", "2/0", "3/0"]
    said = [turn.text for turn in both.prompts[1].turns if turn.role == "assistant"]
    assert said == [one.taken.text for one in shown[1:3]]
    assert summarize(shown).untrainable == "", "the policy's answers have their tokens"


async def test_a_rollout_may_be_taken_over_again():
    shown, _ = await played([click, give_back, click], after=[0, 2])
    assert shown[-1].end.kind == "success"
    assert whose(shown) == [None, "f0", None, "f1"]
    assert summarize(shown).take_overs == ["f0", "f1"]


@pytest.mark.parametrize(
    "gone",
    [TimeoutError(), InvalidResponse("no JSON"), lambda _: events.action_response("I am a teapot")],
    ids=["lost", "undecodable", "unparsable"],
)
async def test_a_person_who_is_gone_gives_the_episode_back(gone):
    shown, both = await played([click, gone])
    assert shown[-1].end.kind == "success"
    assert whose(shown) == [None, "f0", None, None]
    assert len(both.turns) == 2


async def test_a_person_may_end_the_episode_as_a_fault_or_to_be_evaluated():
    shown, _ = await played([click, lambda _: events.action_response(error="the person ended the episode")])
    assert (shown[-1].end.kind, shown[-1].end.reason) == ("policy_error", "the person ended the episode")
    shown, _ = await played([lambda _: events.action_response(format(Finished()))])
    assert (shown[-1].end.kind, shown[-1].end.reward, whose(shown)) == ("failure", 0.0, [None, "f0"])


async def test_an_episode_without_an_action_of_a_person_is_the_policys():
    shown, _ = await played([give_back])
    summary = summarize(shown)
    assert (summary.assisted, summary.own_reward, summary.person_steps, summary.take_overs) == (False, 1.0, [], [])


async def test_an_action_of_a_person_is_written_in_the_policys_dialect():
    config = simulated_config(policy={"dialect": {"name": "ui-tars"}, "max_tokens": 400})
    shown, both = await played([click, give_back], config=config)
    assert shown[2].taken.text != shown[2].taken.action
    assert shown[2].taken.text in [turn.text for turn in both.prompts[1].turns]


@pytest.mark.parametrize(("think_s", "outcome"), [(300.0, "success"), (500.0, "policy_error")])
@by_clockwork
async def test_a_person_has_more_time_than_the_policy(think_s: float, outcome: str):
    """The policy has a minute, and people eight from the beginning of the episode."""
    quick = {"reset_ms": 0, "step_ms": 0, "evaluate_ms": 0}
    config = parse({"env": {"backend": "simulated", "simulated": quick, "episode_timeout_s": 60.0}})

    async def think(shown: Observation) -> ActionResponse:
        await asyncio.sleep(think_s)
        return click(shown)

    shown, _ = await played([think, click, click], config=config)
    assert shown[-1].end.kind == outcome
    assert outcome == "success" or shown[-1].end.reason == "straggler: waited for an action"


@pytest.mark.parametrize(
    ("fields", "may"),
    [
        ({}, True),
        ({"purpose": "eval"}, False),
        ({"purpose": "demonstration"}, False),
        ({"purpose": "explore"}, False),
        ({"lease": LEASE}, False),
        ({"plan": ["wait()"]}, False),
        ({"guide": Guide(trajectory_id="r", mode="prefix")}, False),
    ],
)
def test_only_rollouts_that_the_policy_plays_for_training_are_taken_over(fields, may):
    order = events.rollout_order(**fields)
    assert may_be_taken(order) == may
    held = TakeOvers()
    held.begin("t", order)
    held.add(taking("t"))
    assert (held.holder("t") is not None) == may


def test_the_first_person_holds_an_episode_and_strangers_are_ignored():
    held = TakeOvers()
    held.add(taking("t", 0))
    assert held.holder("t") is None, "it was not running here"
    held.begin("t", events.rollout_order())
    note = {"feedback_id": "n", "task_id": "t", "author": "ann", "kind": "note", "trajectory_id": "t", "note": "cut"}
    held.add(Feedback(at_ms=0, **note))
    for number in (1, 2):
        held.add(taking("t", number, f"person-{number}"))
    assert held.holder("t") == taking("t", 1)
    held.release("t")
    assert held.holder("t") is None
    held.add(taking("t", 3))
    assert held.holder("t") == taking("t", 3)
    held.end("t")
    held.release("t")
    assert held.holder("t") is None


def test_who_asks_again_before_they_give_back_has_the_next_turn():
    held = TakeOvers()
    held.begin("t", events.rollout_order())
    for number, person in ((0, "person-1"), (0, "person-1"), (1, "person-2")):
        held.add(taking("t", number, person))
    held.release("t")
    assert held.holder("t") is None, "neither a repeated record nor another person asks again"
    for number in (2, 3):
        held.add(taking("t", number))
    held.release("t")
    assert held.holder("t") == taking("t", 3)
    held.release("t")
    assert held.holder("t") is None, "once"
