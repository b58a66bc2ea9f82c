"""The scripted engine: it answers from the words of the prompt, the same each time, in figures that agree."""

import asyncio
import itertools
import math
from collections import Counter

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dart_streams import actions
from dart_streams.config import ActionDialect, Config, Policy, parse
from tests import events
from tests.unit.clockwork import by_clockwork
from topics.action_requests import ActionRequest, ReplayedRequest
from topics.values import BlobRef, MessagePart
from workers.rollout.scripted import ALTERNATIVES, ScriptedEngine, synthetic_distributions, version_spans

SEEN = (168, 224)
"""What the policy sees of a screen of 160x210."""


def request(number: int = 0, instruction: str = "Click the box at (84,120).", step: int = 0) -> ActionRequest:
    return events.action_request(
        f"r{number}",
        step=step,
        turns=[
            MessagePart(role="system", text="You use a computer; (1,1) is the top."),
            MessagePart(role="user", text=instruction),
            MessagePart(role="user", image=BlobRef(sha256="s", size=1, width=160, height=210)),
        ],
    )


def config(**scripted) -> Config:
    return parse({"rollout": {"scripted": {"latency_ms": 0.0, **scripted}}}, source="test")


def engine(**scripted) -> ScriptedEngine:
    return ScriptedEngine(config(**scripted))


def test_of_several_points_each_step_has_its_own():
    oracle = engine(success_rate=1.0)
    wanted = ["(3,4)", "(50,60)", "(50,60)"]
    found = [oracle.answer(request(instruction="Click (3,4), then (50,60).", step=step)) for step in range(3)]
    assert all(point in text for point, text in zip(wanted, found, strict=True))


async def test_recorded_tokens_have_their_scores_and_others_are_improbable():
    scripted = engine()
    await scripted.start(events.weight_version(0))
    made = await scripted.generate(request())
    recorded = ReplayedRequest(request_id="r0", tokens=made.tokens)
    again = msgspec.structs.replace(request(5), recorded=recorded)
    scored = await scripted.generate(again)
    assert (scored.tokens, scored.logprobs, scored.entropies) == (made.tokens, made.logprobs, made.entropies)
    other = msgspec.structs.replace(recorded, tokens=[made.tokens[0], made.tokens[1] + 1, *made.tokens[2:]])
    doctored = await scripted.generate(msgspec.structs.replace(again, recorded=other))
    differ = [one != other for one, other in zip(made.logprobs, doctored.logprobs, strict=True)]
    assert [place for place, differs in enumerate(differ) if differs] == [1]
    assert doctored.logprobs[1] < math.log(0.5)
    generated = await scripted.generate(msgspec.structs.replace(again, recorded=ReplayedRequest(request_id="r0")))
    assert (generated.tokens, generated.logprobs) == (made.tokens, made.logprobs)


def test_the_oracle_succeeds_at_the_configured_rate():
    oracle = engine(success_rate=0.7)
    answers = Counter(oracle.answer(request(number)) for number in range(1000))
    assert 0.65 < answers.pop("Action: click(start_box='(84,120)')") / 1000 < 0.75
    [wrong] = answers
    click = actions.parse(wrong)
    assert abs(click.x - 84) > 50
    assert abs(click.y - 120) > 50


def test_it_answers_in_the_policys_dialect():
    dialect = ActionDialect(name="qwen-computer-use", coordinates="relative")
    settings = msgspec.structs.replace(config(success_rate=1.0), policy=Policy(max_tokens=99, dialect=dialect))
    oracle = ScriptedEngine(settings)
    assert '"action": "left_click", "coordinate": [500, 536]' in oracle.answer(request())


@pytest.mark.parametrize("behaviour", ["oracle", "random"])
@given(instruction=st.text(max_size=40), number=st.integers(0, 10**6))
def test_every_answer_is_a_click_on_the_screen_and_the_same_each_time(behaviour, instruction, number):
    asked = request(number, instruction="Do it. " + instruction)
    texts = {engine(behaviour=behaviour).answer(asked) for _ in range(2)}
    [text] = texts
    click = actions.parse(text)
    assert isinstance(click, actions.Click)
    if "(" not in instruction:
        assert 0 <= click.x < SEEN[0]
        assert 0 <= click.y < SEEN[1]


@given(st.text(max_size=10), st.integers(0, 50))
def test_a_log_probability_and_its_entropy_are_of_one_distribution(seed, count):
    for logp, entropy in zip(*synthetic_distributions(seed, count), strict=True):
        p = math.exp(logp)
        rest = (1 - p) / ALTERNATIVES
        assert 0.5 < p < 1
        assert entropy == pytest.approx(-p * logp - ALTERNATIVES * rest * math.log(rest))


@given(
    st.lists(st.floats(0, 10, allow_nan=False), max_size=5).map(sorted),
    st.floats(0, 10, allow_nan=False),
    st.floats(0, 10, allow_nan=False),
    st.integers(1, 30),
)
def test_spans_cover_every_token_once_in_order_of_versions(switched, one, other, tokens):
    started, ended = sorted((one, other))
    switches = [(-math.inf, 0), *((at, number) for number, at in enumerate(switched, start=1))]
    found = version_spans(switches, started, ended, tokens)
    assert [segment.start for segment in found] == [0, *(segment.end for segment in found[:-1])]
    assert found[-1].end == tokens
    assert all(a.version < b.version for a, b in itertools.pairwise(found))


@by_clockwork
async def test_a_switch_in_the_middle_of_an_answer_gives_it_two_spans():
    scripted = engine(latency_ms=60.0)
    await scripted.start(events.weight_version(0))
    answer = asyncio.create_task(scripted.generate(request()))
    await asyncio.sleep(0.03)
    assert await scripted.load(events.weight_version(5)) == 0.0
    made = await answer
    assert [segment.version for segment in made.versions] == [0, 5]
    assert made.versions[-1].end == len(made.tokens) == len(made.logprobs) == len(made.entropies)
    after = await scripted.generate(request(1))
    assert [segment.version for segment in after.versions] == [5]


async def test_the_prompts_name_changes_with_the_prompt():
    scripted = engine()
    await scripted.start(events.weight_version(0))
    one, same = await scripted.generate(request(0)), await scripted.generate(request(1))
    other = await scripted.generate(msgspec.structs.replace(request(0), turns=request().turns[:-1]))
    assert one.prompt_sha == same.prompt_sha != other.prompt_sha
