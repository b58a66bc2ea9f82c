"""Whole episodes in every dialect: real runner and simulated environment, the answers of a function."""

import asyncio
import re
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from dart_streams.actions import Click, format
from dart_streams.actions.dialects import View
from dart_streams.config import Config
from dart_streams.screens import smart_resize
from examples.in_memory_run import PolicyFunction
from tests.unit.workers.env import episodes
from tests.unit.workers.env.episodes import TRAINER, simulated_config
from topics.action_requests import ActionRequest
from topics.observations import Observation
from topics.values import Purpose
from workers.env import metrics
from workers.env.backends.simulated import SIZE

SEEN = View(*smart_resize(*SIZE, 3136, 1_003_520))
DIALECTS: list[dict[str, Any]] = [
    {"name": "native"},
    {"name": "ui-tars"},
    {"name": "ui-tars", "prompt": "box"},
    {"name": "ui-tars", "coordinates": "relative"},
    {"name": "qwen-computer-use"},
    {"name": "qwen-computer-use", "coordinates": "relative"},
    {"name": "computer_13"},
    {"name": "computer_13", "coordinates": "relative"},
]
POINT = re.compile(r"box at \((\d+),(\d+)\)")

Answer = Callable[[Click], str]
"""What the policy says, given the click that its prompt asks for."""


def configured(**dialect: str) -> Config:
    return simulated_config(policy={"max_tokens": 400, "dialect": dialect})


def play(config: Config, page: str, answer: Answer, purpose: Purpose = "train") -> list[Observation]:
    """Play an episode; return its observations."""

    def policy(request: ActionRequest) -> str:
        (place,) = POINT.findall(" ".join(turn.text or "" for turn in request.turns))
        return answer(Click(int(place[0]), int(place[1])))

    (observations,) = asyncio.run(episodes.play(config, PolicyFunction(policy, TRAINER), page, purpose))
    return observations


def outcome(observations: list[Observation]) -> tuple[str, int]:
    """How an episode ended, and its number of steps."""
    end = observations[-1].end
    assert end is not None
    return end.kind, len(observations) - 1


@pytest.mark.parametrize("dialect", DIALECTS, ids=str)
def test_a_box_is_clicked_in_every_dialect(dialect):
    config = configured(**dialect)
    made = config.policy.dialect.build()
    observations = play(config, "box", lambda click: made.write(click, SEEN))
    assert outcome(observations) == ("success", 1)
    taken = observations[1].taken
    assert taken is not None
    assert "click" in taken.text.lower()
    assert (taken.action or "").startswith("Action: click(start_box='(")


@pytest.mark.parametrize("dialect", DIALECTS, ids=str)
def test_the_oracle_speaks_every_dialect(dialect):
    config = configured(**dialect)
    observations = play(config, "steps-3", lambda _: "", purpose="demonstration")
    assert outcome(observations) == ("success", 3)
    for observation in observations[1:]:
        taken = observation.taken
        assert taken is not None
        (action,) = config.policy.dialect.build().read(taken.text, SEEN).actions
        assert isinstance(action, Click)
        assert taken.action is not None
        assert taken.action.startswith("Action: click(")


@pytest.mark.parametrize(("several", "steps"), [("all", 1), ("first", 3)])
def test_an_answers_actions_are_executed_once_all_or_the_first(several, steps):
    config = configured(name="ui-tars", several=several)

    def thrice(click: Click) -> str:
        return format(click) + 2 * f"\n\n{format(click).removeprefix('Action: ')}"

    before = wrong_answers()
    observations = play(config, "steps-3", thrice)
    assert outcome(observations) == ("success", steps)
    assert wrong_answers() - before == ({} if several == "all" else {("several", "executed"): 3})


def test_nothing_is_executed_after_the_environment_is_done():
    config = configured(name="ui-tars", several="all")
    beside = "click(start_box='(0,0)')"
    assert outcome(play(config, "box", lambda click: f"{format(click)}\n\n{beside}")) == ("success", 1)
    assert outcome(play(config, "box", lambda click: f"Action: {beside}\n\n{format(click)[8:]}")) == ("failure", 1)


def test_an_answer_ends_the_episode_after_what_it_says_first():
    config = configured(name="ui-tars", several="all")
    observations = play(config, "steps-3", lambda click: f"{format(click)}\n\nfinished(content='done')")
    assert outcome(observations) == ("failure", 1), "one click of three"
    taken = observations[1].taken
    assert taken is not None
    assert (taken.action or "").endswith("\n\nfinished(content='done')")
    assert observations[1].screenshot != observations[0].screenshot, "the click was executed"


@pytest.mark.parametrize(("strictness", "kind"), [("lenient", "success"), ("strict", "invalid_action")])
def test_errors_of_executed_and_refused_answers_are_counted(strictness, kind):
    before = wrong_answers()
    config = configured(name="ui-tars", strictness=strictness)
    observations = play(config, "box", lambda click: format(click).removeprefix("Action: ") + " Done.")
    assert outcome(observations) == (kind, 1)
    treated = "executed" if strictness == "lenient" else "refused"
    kinds = ["marker", "text"] if strictness == "lenient" else ["marker"]
    assert wrong_answers() - before == {(kind, treated): 1 for kind in kinds}


def wrong_answers() -> Counter[tuple[str, str]]:
    """Return the counts of wrong answers by kind and treatment."""
    counts = ((dict(key), count) for key, count in metrics.answers_wrong._totals.items())
    return Counter({(key["kind"], key["treated"]): count for key, count in counts})
