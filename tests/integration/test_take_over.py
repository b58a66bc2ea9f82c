"""A person takes over a rollout of a real environment worker: their records, and what the worker makes of them."""

import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from dart_streams.actions import Click, format
from dart_streams.config import Config
from dart_streams.episodes.trajectory_summary import summarize
from tests import events
from tests.integration.env_harness import POINT, QUICK, Harness, harness_of, order, solve, worker
from tests.task_files import write_tasks
from tests.waiting import until
from topics import actions, feedback
from topics.action_requests import ActionRequest
from topics.feedback import Feedback
from topics.observations import Observation
from topics.rollout_orders import PersonLease
from workers.env.policy_client import PolicyClient
from workers.env.take_overs import TakeOvers

TASK = "simulated/steps-3#1"
PEOPLE = {"f0": "person-0", "f1": "person-1", "f0-again": "person-0"}


def taken_config(services, folder: Path, tasks: dict[str, str] | None = None) -> Config:
    return services.config(
        env={
            "backend": "simulated",
            "slots": 2,
            "simulated": QUICK,
            "request_timeout_s": 300.0,
            "episode_timeout_s": 900.0,
        },
        tasks=tasks or write_tasks(folder, "box", "steps-3"),
        run={"drain_s": 6, "state_dir": str(folder)},
        feedback={"enabled": True},
    )


class Halted:
    """A policy that does not answer its first request before it is let go on."""

    def __init__(self) -> None:
        self.first: ActionRequest | None = None

    def __call__(self, request: ActionRequest) -> str | None:
        if self.first is None:
            self.first = request
            return None
        return solve(request)


async def send(circle: Harness, shown: Observation, person: str, text: str = "", **fields) -> None:
    """Send a record of a person for the newest screen, to the one partition that the worker reads."""
    identity = f"{shown.trajectory_id}/{shown.step}/person"
    answered = {"request_id": identity, "trajectory_id": shown.trajectory_id, "step": shown.step, "worker_id": person}
    for partition in range(await circle.publisher.partitions_of(actions.TOPIC)):
        await circle.publisher.publish(
            actions.TOPIC, events.action_response(text, **answered | fields), partition=partition
        )


async def take_over(circle: Harness, name: str) -> str:
    """Ask for the only episode; return its id."""
    [identity] = circle.observed
    lease = PersonLease(person=PEOPLE[name], lease_ms=60_000)
    given = {"task_id": TASK, "author": "ann", "at_ms": 1, "trajectory_id": identity, "lease": lease}
    await circle.publisher.publish(feedback.TOPIC, Feedback(feedback_id=name, kind="take-over", **given))
    return identity


async def is_asked(circle: Harness, name: str, step: int) -> Observation:
    """Wait until an observation asks the person of a take-over, and return it."""
    await circle.until(lambda: any(one[-1].asks == name and one[-1].step == step for one in circle.observed.values()))
    [[*_, newest]] = circle.observed.values()
    return newest


def click(shown: Observation) -> str:
    return format(Click(*map(int, POINT.findall(shown.instruction)[0])))


class Circle:
    """A worker that plays one rollout, whose first request the policy answers once their take-overs are noted."""

    def __init__(self, harness: Harness, policy: Halted, noted: list[str]) -> None:
        self.harness, self.policy, self.noted = harness, policy, noted

    async def taken(self, *names: str) -> Observation:
        """Let people ask for the episode one after the other; return the observation that asks the first."""
        await self.harness.until(lambda: self.policy.first is not None and bool(self.harness.observed))
        for name in names:
            await take_over(self.harness, name)
        await until(lambda: self.has_noted(len(names)))
        assert self.policy.first is not None
        await self.harness.respond(self.policy.first, solve(self.policy.first))
        return await is_asked(self.harness, names[0], 1)

    async def has_noted(self, count: int) -> bool:
        return len(self.noted) == count

    async def end(self) -> list[Observation]:
        """Wait for the end of the rollout, and return it."""
        await self.harness.until(lambda: bool(self.harness.ended))
        [trajectory] = self.harness.observed.values()
        return trajectory


@contextlib.asynccontextmanager
async def circle(config: Config, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Circle]:
    policy, noted = Halted(), list[str]()
    add = TakeOvers.add

    def note(self: TakeOvers, given: Feedback) -> None:
        add(self, given)
        noted.append(given.feedback_id)

    monkeypatch.setattr(TakeOvers, "add", note)
    async with harness_of(config, policy) as harness, worker(config):
        await harness.order(order(0, TASK))
        yield Circle(harness, policy, noted)


def whose(trajectory: list[Observation]) -> list[str | None]:
    return [one.taken.take_over for one in trajectory[1:] if one.taken]


async def test_the_first_of_two_people_takes_over_and_solves_the_task(services, tmp_path, monkeypatch):
    async with circle(taken_config(services, tmp_path), monkeypatch) as one:
        shown = await one.taken("f0", "f1")
        await send(one.harness, shown, "person-1", "wait()")  # who was not asked
        await send(one.harness, shown, "person-0", click(shown))
        shown = await is_asked(one.harness, "f0", 2)
        await send(one.harness, shown, "person-0", alive=True)
        await send(one.harness, shown, "person-0", click(shown))
        ended = await one.end()
    assert ended[-1].end.kind == "success"
    assert whose(ended) == [None, "f0", "f0"]
    assert [request.step for request in one.harness.requests] == [0], "the policy was asked once"
    assert summarize(ended).person_steps == [1, 2]


async def test_who_gives_back_or_is_lost_leaves_the_next_step_to_the_policy(services, tmp_path, monkeypatch):
    async with circle(taken_config(services, tmp_path), monkeypatch) as one:
        shown = await one.taken("f0")
        await send(one.harness, shown, "person-0", gives_back=True)
        ended = await one.end()
    assert (ended[-1].end.kind, whose(ended)) == ("success", [None, None, None])
    assert [one.asks for one in ended] == [None, "f0", None, None]


async def test_who_gives_back_and_asks_at_once_has_the_turn_after(services, tmp_path, monkeypatch):
    """The worker reads the second take-over before what was given back: they come on two topics."""
    async with circle(taken_config(services, tmp_path), monkeypatch) as one:
        shown = await one.taken("f0")
        await take_over(one.harness, "f0-again")
        await until(lambda: one.has_noted(2))
        await send(one.harness, shown, "person-0", gives_back=True)
        shown = await is_asked(one.harness, "f0-again", 2)
        await send(one.harness, shown, "person-0", click(shown))
        ended = await one.end()
    assert (ended[-1].end.kind, whose(ended)) == ("success", [None, None, "f0-again"])


async def test_a_lost_person_gives_the_episode_back_and_their_steps_stay_theirs(services, tmp_path, monkeypatch):
    wait, brief = PolicyClient.await_person, PersonLease(person="person-0", lease_ms=1000)

    def wait_briefly_at_the_end(client, request_id, lease):
        return wait(client, request_id, brief if request_id.endswith("/2/person") else lease)

    monkeypatch.setattr(PolicyClient, "await_person", wait_briefly_at_the_end)
    async with circle(taken_config(services, tmp_path), monkeypatch) as one:
        shown = await one.taken("f0")
        await send(one.harness, shown, "person-0", click(shown))
        ended = await one.end()
    assert (ended[-1].end.kind, whose(ended)) == ("success", [None, "f0", None])
    assert [request.request_id.split("/")[1:] for request in one.harness.requests] == [["0", "0"], ["2", "0"]]
    prompt = one.harness.requests[-1].turns
    assert [turn.text for turn in prompt if turn.role == "assistant"] == [one.taken.text for one in ended[1:3]]
