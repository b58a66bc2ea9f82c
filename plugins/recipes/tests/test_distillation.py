"""On-policy distillation: what the teacher is asked, what its silence does, and what happens in a circle."""

import asyncio
from collections import Counter
from functools import partial

import msgspec
import pytest
import structlog

from console.launch.services.daemon import free_port
from dart_recipes.distillation import teacher, training
from dart_recipes.distillation.rules import Settings
from dart_recipes.distillation.teacher import Teacher, UnusableTeacher
from dart_streams.curation.members import PooledSuccess
from dart_streams.curation.recipes import bind_rules
from dart_streams.curation.rule_results import RuleFailed
from dart_streams.deadline import Deadline
from dart_streams.errors import ConfigError
from plugins.recipes.tests.agents import groups_in, played, recipe_config
from tests import events
from tests.unit.workers.rollout.misbehaving import Hang, says, served, writes
from topics.values import BlobRef
from trainer.data.samples import ReadyGroup, TrainingSample
from trainer.data.scores import ScoreRequest, add_scores, encode_scores, restore_scores, scores_in
from trainer.hooks import bind_training
from workers.rollout import openai_endpoint
from workers.rollout.openai_endpoint import EndpointRefused

KEY = "sk-secret-of-the-test"
SCREEN = BlobRef(sha256="screen", size=3)
IMAGES = {"screen": b"png"}


@pytest.fixture(autouse=True)
def key(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("TEST_TEACHER_KEY", KEY)
    monkeypatch.setattr(openai_endpoint, "FIRST_PAUSE_S", 0.01)
    monkeypatch.setattr(teacher, "LOOK_S", 0.01)


def own_answer(name: str = "t", answer: tuple[int, ...] = (7, 8)) -> TrainingSample:
    return TrainingSample(
        prompt=[1, 2], answer=list(answer), images=[SCREEN], logprobs=[-1.0] * len(answer), trajectory_id=name
    )


def response(*logprobs: dict[int, float]) -> dict:
    """Return vLLM's response for a prompt whose last tokens have these log-probabilities."""
    entries = [{str(token): {"logprob": value, "rank": 1} for token, value in of.items()} for of in logprobs]
    return {"prompt_logprobs": [None, {"2": {"logprob": -0.5}}, *entries], "choices": []}


GOOD = response({7: -0.25}, {8: -3.0})


def asking(url: str, *samples: TrainingSample, stopped=lambda: False, **settings) -> Teacher:
    settings = {"base_url": url, "model": "big", "api_key": "env:TEST_TEACHER_KEY", **settings}
    return Teacher(Settings(**settings), ScoreRequest(samples or (own_answer(),), IMAGES, stopped))


async def test_the_teacher_scores_the_tokens_that_were_sampled():
    demonstration = msgspec.structs.replace(own_answer(), logprobs=None)
    async with served(says(GOOD)) as endpoint:
        assert await asking(endpoint.url, demonstration, own_answer()).score_all() == [None, [-0.25, -3.0]]
    [body] = endpoint.bodies
    assert body == {
        "model": "big",
        "token_ids": [1, 2, 7, 8],
        "content_parts": [{"type": "image_url", "url": "data:image/png;base64,cG5n"}],
        "sampling_params": {"max_tokens": 1, "prompt_logprobs": 0, "detokenize": False},
    }
    assert endpoint.headers[0]["Authorization"] == f"Bearer {KEY}"


async def test_a_step_waits_for_a_teacher_that_is_away_and_says_so(monkeypatch):
    monkeypatch.setattr(teacher, "LOG_EVERY_S", 0.0)
    timeouts: list[asyncio.Timeout] = []
    monkeypatch.setattr(Deadline, "timeout", lambda _: timeouts.append(asyncio.timeout(60)) or timeouts[-1])

    async def hangs(_) -> None:
        timeouts[-1].reschedule(0.0)
        await asyncio.Event().wait()

    async with served(says({}, 500), writes(b"<html>"), says({}, 503), hangs, says(GOOD)) as endpoint:
        with structlog.testing.capture_logs() as logged:
            assert await asking(endpoint.url).score_all() == [[-0.25, -3.0]]
    assert len(endpoint.bodies) == 5
    waits = [line for line in logged if line["event"] == "the teacher does not answer: the step waits"]
    assert ["answered 500" in line["reason"] for line in waits] == [True, False, False]
    assert KEY not in str(logged)


async def test_a_teacher_that_starts_late_is_waited_for():
    port = free_port()
    waiting = asking(f"http://127.0.0.1:{port}/v1", timeout_s=0.2)
    asked = asyncio.ensure_future(waiting.score_all())
    await asyncio.sleep(0.3)
    assert not asked.done()
    waiting.settings = msgspec.structs.replace(waiting.settings, timeout_s=60.0)
    async with served(says(GOOD), port=port), asyncio.timeout(60):
        assert await asked == [[-0.25, -3.0]]


async def test_a_stop_of_the_trainer_ends_the_wait():
    stop, silent = asyncio.Event(), Hang()
    async with served(silent) as endpoint, asyncio.timeout(60):
        asked = asyncio.ensure_future(asking(endpoint.url, stopped=stop.is_set).score_all())
        await silent.asked.wait()
        stop.set()
        assert await asked == [None]
        await silent.left.wait()


async def test_only_a_key_has_steps_trained_on_without_the_teacher(monkeypatch):
    monkeypatch.setattr(teacher, "LOG_EVERY_S", 3600.0)
    async with served(says({}, 500)) as endpoint, asyncio.timeout(60):
        monkeypatch.setattr(Teacher, "waited_s", property(lambda _: 900.0 * len(endpoint.bodies)))
        with structlog.testing.capture_logs() as logged:
            assert await asking(endpoint.url, required=False, patience_s=3600.0).score_all() == [None]
    assert ["required = false" in line["event"] for line in logged if "waited_s" in line] == [False, True], "each once"


@pytest.mark.parametrize(
    ("answer", "error", "reason"),
    [
        (says({"error": "too long"}, 400), UnusableTeacher, "too long.*context"),
        (says({"choices": []}), UnusableTeacher, "lacks log-probabilities"),
        (says(response({7: -0.25}, {9: -3.0})), UnusableTeacher, "lacks log-probabilities"),
        (says(response({7: -0.25})), UnusableTeacher, "lacks log-probabilities"),
        (says({"error": f"no {KEY}"}, 401), EndpointRefused, r"401.*no \*\*\*.*recipes.distillation.api_key"),
        (says({}, 403), EndpointRefused, "recipes.distillation.base_url"),
    ],
)
async def test_a_teacher_that_can_never_answer_ends_the_trainer(answer, error, reason):
    async with served(answer) as endpoint:
        with pytest.raises(error, match=reason):
            await asking(endpoint.url).score_all()
    assert len(endpoint.bodies) == 1


async def test_requests_are_bounded():
    busiest, together = [0, 0], asyncio.Barrier(3)

    async def answer(_):
        busiest[0] += 1
        busiest[1] = max(busiest)
        await together.wait()
        await asyncio.sleep(0.02)
        busiest[0] -= 1
        return await says(GOOD)(_)

    async with served(answer) as endpoint:
        samples = [own_answer(f"t{number}") for number in range(12)]
        assert await asking(endpoint.url, *samples, in_flight=3).score_all() == [[-0.25, -3.0]] * 12
    assert busiest == [0, 3]


def test_a_run_without_a_teacher_is_refused_when_it_would_ask():
    score = bind_training(recipe_config("distillation")).score
    with pytest.raises(ConfigError, match=r"recipes\.distillation\.base_url"):
        score(ScoreRequest([own_answer()], IMAGES, bool))
    with pytest.raises(ConfigError, match="api_key"):
        recipe_config("distillation", recipes={"distillation": {"api_key": "literal"}})


def test_recorded_scores_are_restored_to_their_samples():
    samples = [own_answer("b"), own_answer("a"), own_answer("none")]
    group = partial(ReadyGroup, group=events.curated_group("g"), images=IMAGES, refused=Counter(), read_ms=0.0)
    scored = add_scores(samples, [[-0.1, -0.2], [-1 / 3, -2.0], None])
    data = encode_scores(scores_in([group(samples=scored)]))
    assert data == encode_scores(scores_in([group(samples=scored[::-1])])), "in any order of ranks"
    assert restore_scores(group(samples=samples), data).samples == scored


def test_scores_that_do_not_fit_the_tokens_are_refused(monkeypatch):
    monkeypatch.setattr(training, "ask_teacher", lambda settings, request: [[-1.0]])
    score = bind_training(recipe_config("distillation")).score
    with pytest.raises(RuleFailed, match="finite number for each token"):
        score(ScoreRequest([own_answer()], IMAGES, bool))


def test_groups_of_equal_rewards_are_distilled_too():
    equal = [
        len({member.reward for member in group.members}) == 1
        for group in groups_in(played(recipe_config("distillation")))
    ]
    assert any(equal) and not all(equal)
    members = [PooledSuccess("t", "g000000/0/0", 0.0, 1)] * 2
    assert bind_rules(recipe_config("distillation")).keep_group({}, members, [0.0, 0.0])
    assert not bind_rules(recipe_config("dart")).keep_group({}, members, [0.0, 0.0])
