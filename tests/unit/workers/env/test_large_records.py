"""What no record has room for ends its episode as a fault that a record can carry, and nothing else."""

import asyncio
from typing import Any

import msgspec
import pytest

from dart_streams.bus.codec import encode
from dart_streams.config.tasks import Task
from dart_streams.episodes.trajectory_summary import summarize
from dart_streams.errors import MAX_REASON
from examples.in_memory_run import PolicyFunction
from tests.unit.workers.env import episodes
from tests.unit.workers.env.episodes import TRAINER, EncodingLog, simulated_config
from topics import action_requests, observations
from topics.action_requests import ActionRequest
from topics.actions import ActionResponse
from topics.observations import Observation
from workers.env.backends.simulated import SimulatedBackend, SimulatedEnvironment
from workers.env.environment import Screen

CLICK = "Action: click(start_box='(1,1)')"
LIMIT = observations.TOPIC.max_message_bytes


class Wordy(SimulatedBackend):
    """States its tasks at length."""

    words = ""

    async def open(self, task: Task) -> SimulatedEnvironment:
        environment = await super().open(task)
        reset = environment.reset

        async def wordy_reset(task: Task) -> Screen:
            screen = await reset(task)
            return msgspec.structs.replace(screen, instruction=screen.instruction + self.words)

        environment.reset = wordy_reset
        return environment


class Answers(PolicyFunction):
    """Answers with a text and a number of tokens; requests are encoded as they are for Kafka."""

    def __init__(self, text: str, tokens: int) -> None:
        super().__init__(lambda _: text, TRAINER)
        self.tokens = tokens

    async def request(self, request: ActionRequest, timeout_s: float) -> ActionResponse:
        encode(action_requests.TOPIC, request)
        answer = await super().request(request, timeout_s)
        worst = [-1.2345678901234567e-05] * self.tokens
        return msgspec.structs.replace(
            answer, tokens=[151_643] * self.tokens, logprobs=worst, entropies=worst, versions=answer.versions
        )


def play(text: str, tokens: int = 1, words: str = "", **policy: Any) -> list[list[Observation]]:
    config = simulated_config(policy=policy)
    backend = Wordy(config)
    backend.words = words
    return asyncio.run(episodes.play(config, Answers(text, tokens), log=EncodingLog(), backend=backend))


def test_an_answer_of_32768_tokens_is_recorded_whole():
    (observed,) = play(CLICK, tokens=32_768, max_tokens=32_768)
    assert observed[-1].end is not None
    assert observed[-1].end.kind == "failure"
    assert [len(one.taken.tokens) for one in observed if one.taken] == [32_768]


@pytest.mark.parametrize(
    ("text", "words", "said"),
    [
        ("\x01" * 800_000, "", "an event of observations cannot be published: the value takes"),
        (f"Thought: {'世' * 1_500_000}\n{CLICK}", "", "an event of observations cannot be published: the value takes"),
        ("a" * (LIMIT + 1), "", "an event of observations cannot be published: the value takes"),
        ("🌐" * (LIMIT // 4), "", "an event of observations cannot be published: the value takes"),
        ('"' * (LIMIT // 2), "", "an event of observations cannot be published: the value takes"),
        (CLICK, "x" * (LIMIT + 1), "instruction of"),
        (CLICK, "世" * 50_000, "instruction of"),
    ],
    ids=["control characters", "long thought", "long text", "emoji", "quotes", "words", "words in Chinese"],
)
def test_an_observation_too_large_for_a_record_is_a_named_fault(text: str, words: str, said: str):
    *_, observed = play(text, words=words)
    end = observed[-1].end
    assert end is not None
    assert (end.kind, end.reward) == ("env_error", None)
    assert said in end.reason
    assert summarize(observed).outcome == "env_error"
    assert [one.step for one in observed] == list(range(len(observed)))
    assert len(encode(observations.TOPIC, observed[-1]).value) < 10 * MAX_REASON


def test_a_prompt_too_large_for_a_record_is_a_fault_of_the_policy():
    """Each answer has room for itself, also where its quotes take two bytes; the fourth request would repeat three."""
    observed, *_ = play("Thought: " + '"' * 800_000 + "\nAction: wait()", max_texts=5)
    end = observed[-1].end
    assert end is not None
    assert (end.kind, end.reward) == ("policy_error", None)
    assert "an event of action-requests cannot be published: the value takes" in end.reason
    assert len([one for one in observed if one.taken is not None]) == 3
