"""Whole episodes that a person plays: no policy is asked, and what goes wrong on their side is a plain fault."""

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from dart_streams.actions import Click, Finished, format
from dart_streams.config.tasks import Task
from dart_streams.episodes.trajectory_summary import summarize
from tests import events
from tests.unit.workers.env.episodes import StoredLog, runner_of, simulated_config
from tests.unit.workers.env.test_guided_episodes import POINT
from tests.waiting import until
from topics.actions import ActionResponse
from topics.observations import Observation
from topics.rollout_orders import PersonLease
from workers.env import persons
from workers.env.backends.simulated import SimulatedBackend
from workers.env.policy_client import InvalidResponse

LEASE = PersonLease(person="person-1", lease_ms=2500)
Answer = Callable[[str, StoredLog], ActionResponse]


class Person:
    """Answers by what has been published, as a person by their page; whoever asks a policy fails."""

    partition = 0

    def __init__(self, log: StoredLog, answer: Answer) -> None:
        self.log = log
        self.answer = answer
        self.asked: list[tuple[str, float]] = []

    async def await_person(self, request_id: str, lease: PersonLease) -> ActionResponse:
        self.asked.append((request_id, lease.lease_ms / 1000))
        await until(self.is_shown)
        return self.answer(request_id, self.log)

    async def is_shown(self) -> bool:
        return bool(self.log.observations)


def respond(text: str = "", **changes: Any) -> ActionResponse:
    return events.action_response(text, generate_ms=1234.5, **changes)


def solve(request_id: str, log: StoredLog) -> ActionResponse:
    """Click where the instruction says, in pixels of the screen."""
    [shown] = log.observations.values()
    assert request_id.startswith(shown[0].trajectory_id)
    return respond(format(Click(*map(int, POINT.findall(shown[0].instruction)[0]))))


async def played(answer: Answer, config=None, **fields: Any) -> tuple[list[Observation], Person]:
    config, log = config or simulated_config(), StoredLog()
    person = Person(log, answer)
    task = Task(environment="simulated", page="steps-3", seed=3, max_steps=6, split="train")
    order = events.rollout_order(task_id=task.task_id, purpose="demonstration", lease=LEASE, **fields)
    await runner_of(config, SimulatedBackend(config), log, person).run(order, task, lambda _: None)
    [observations] = log.observations.values()
    return observations, person


async def test_a_person_plays_where_an_oracle_would_and_is_timed():
    observations, person = await played(solve)
    assert observations[-1].end.kind == "success"
    assert len(person.asked) == len(observations) - 1 == 3
    assert {lease_s for _, lease_s in person.asked} == {2.5}
    assert [one.taken.request_id for one in observations[1:]] == [asked for asked, _ in person.asked]
    assert {one.taken.generate_ms for one in observations[1:]} == {1234.5}
    assert summarize(observations).purpose == "demonstration"
    assert summarize(observations).step_entropies == []


async def test_the_answer_is_written_in_the_policys_dialect():
    observations, _ = await played(solve, simulated_config(policy={"dialect": {"name": "ui-tars"}, "max_tokens": 400}))
    assert observations[-1].end.kind == "success"
    first = observations[1].taken
    assert first.text != first.action
    assert first.action.startswith("Action: click(start_box='(")


@pytest.mark.parametrize(
    "answer, reason",
    [
        (TimeoutError(), "the person was lost: no action and no sign of life for 2.5 s"),
        (InvalidResponse("no JSON"), "the person's action can't be read: no JSON"),
        (respond(error="the person ended dart-streams demonstrate"), "the person ended dart-streams demonstrate"),
        (respond("I am a teapot"), "the person's action can't be read: the answer has no line"),
    ],
    ids=["lost", "undecodable", "left", "unparsable"],
)
async def test_what_goes_wrong_on_the_persons_side_is_a_fault(answer, reason):
    def give(request_id: str, log: StoredLog) -> ActionResponse:
        if isinstance(answer, Exception):
            raise answer
        return answer

    observations, _ = await played(give)
    end = observations[-1].end
    assert (end.kind, end.reward) == ("policy_error", None)
    assert end.reason.startswith(reason)
    assert observations[-1].taken is None


async def test_finished_is_evaluated_as_any_end():
    observations, _ = await played(lambda request_id, log: respond(format(Finished())))
    assert (observations[-1].end.kind, observations[-1].end.reward) == ("failure", 0.0)
    assert observations[-1].taken.action == "Action: finished(content='')"


@pytest.mark.parametrize("limit_s, expected", [(5.0, persons.EPISODE_S), (900.0, 900.0)])
def test_a_person_has_more_time_than_a_policy(limit_s, expected):
    config = simulated_config()
    config = msgspec.structs.replace(config, env=msgspec.structs.replace(config.env, episode_timeout_s=limit_s))
    assert persons.episode_limit_s(events.rollout_order(lease=LEASE), config) == expected
    assert persons.episode_limit_s(events.rollout_order(), config) == limit_s
