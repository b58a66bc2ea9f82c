"""The judge: what it is asked, what counts as no verdict, whose reward counts, and the table of disagreements."""

import asyncio
import base64
import re
from pathlib import Path
from typing import Any

import msgspec
import pytest
import structlog

from console.bundles.bundle_inputs import CONFIG, TASKS
from console.runs.bundle import Bundle, BundleRecord, Manifest, Writer
from dart_data.agreement import compare_verdicts
from dart_recipes.judge import judging
from dart_streams.actions import Click, format
from dart_streams.config import Config
from dart_streams.curation import difficulty
from dart_streams.curation.in_memory import CountingTrainer
from dart_streams.curation.order_tracker import Limits
from dart_streams.curation.recipes import bind_rules
from dart_streams.curation.reducer import InputRecord
from dart_streams.curation.rule_results import RuleFailed
from dart_streams.episodes.trajectory_summary import summarize
from dart_streams.errors import ConfigError, UserError
from examples.in_memory_run import PolicyFunction
from plugins.recipes.tests.agents import recipe_config
from tests import events
from tests.command_line import invoke_json
from tests.installed_packages import install_recipe
from tests.unit.curation.test_groups import Groups
from tests.unit.workers.env.episodes import play, simulated_config
from tests.unit.workers.rollout.misbehaving import Answer, Hang, chat, says, served, truncates, writes
from topics.observations import Observation
from topics.trajectories import Trajectory
from topics.values import Purpose, Verdict
from workers.env.judging import bind_judge
from workers.rollout import openai_endpoint

KEY = "sk-secret-of-the-test"
YES, NO = (Verdict(success=success, judge="m") for success in (True, False))
NONE = Verdict(success=None, reason="late")


@pytest.fixture(autouse=True)
def key(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("TEST_JUDGE_KEY", KEY)
    monkeypatch.setattr(openai_endpoint, "FIRST_PAUSE_S", 0.01)


def judged_by(url: str, **settings: Any) -> dict[str, Any]:
    """Return the tables of a run with a judge."""
    endpoint = {"base_url": url, "model": "m", "api_key": "env:TEST_JUDGE_KEY"}
    return {"recipe": ["judge"], "recipes": {"judge": {**endpoint, **settings}}}


def simulated_by(url: str, **changes: Any) -> Config:
    """Return a run with a judge whose simulated environment has these settings."""
    config = simulated_config(**judged_by(url))
    simulated = msgspec.structs.replace(config.env.simulated, **changes)
    return msgspec.structs.replace(config, env=msgspec.structs.replace(config.env, simulated=simulated))


def clicks(x_offset: int = 0) -> PolicyFunction:
    """Return a policy that clicks the box, or beside it."""

    def answer(request) -> str:
        text = next(turn.text for turn in request.turns if turn.text and "Click the box" in turn.text)
        x, y = map(int, text.partition("(")[2].partition(")")[0].split(","))
        return format(Click(x + x_offset, y))

    return PolicyFunction(answer, CountingTrainer(1))


async def played(url: str, purpose: Purpose = "train", x_offset: int = 0, **settings: Any) -> list[Observation]:
    """Return the observations of one episode that a judge at ``url`` sees."""
    config = simulated_config(**judged_by(url, **settings))
    [observations] = await play(config, clicks(x_offset), "steps-2", purpose=purpose)
    return observations


async def verdict_of(*answers: Answer, **settings: Any) -> Verdict:
    """Return the recorded verdict on a success."""
    async with served(*answers) as endpoint, asyncio.timeout(60):
        observations = await played(endpoint.url, **settings)
    assert observations[-1].end is not None and observations[-1].end.reward == 1.0, "whatever the judge says"
    verdict = observations[-1].verdict
    assert verdict is not None
    return verdict


async def test_the_judge_sees_task_actions_and_the_last_screen():
    async with served(says(chat("The box was clicked twice.\nVerdict: success"))) as endpoint:
        observations = await played(endpoint.url, max_tokens=77, options={"reasoning_effort": "low"})
    [body] = endpoint.bodies
    text, image = body["messages"][1]["content"]
    assert observations[0].instruction in text["text"]
    actions = [observation.taken.action for observation in observations if observation.taken is not None]
    assert len(actions) == 2 and all(f"{number}. {action}" in text["text"] for number, action in enumerate(actions, 1))
    assert base64.b64decode(image["image_url"]["url"].partition(",")[2]).startswith(b"\x89PNG")
    assert (body["model"], body["max_tokens"], body["temperature"], body["reasoning_effort"]) == ("m", 77, 0.0, "low")
    assert endpoint.headers[0]["Authorization"] == f"Bearer {KEY}"


async def test_its_verdict_is_recorded_beside_the_reward():
    async with served(says(chat("It looks wrong.\nVerdict: failure"))) as endpoint:
        observations = await played(endpoint.url)
    assert [observation.verdict for observation in observations[:-1]] == [None] * (len(observations) - 1)
    trajectory = summarize(observations)
    assert (trajectory.reward, trajectory.outcome) == (1.0, "success")
    expected = Verdict(success=False, reason="It looks wrong.\nVerdict: failure", judge="m")
    assert trajectory.verdict == expected
    encoded = msgspec.json.encode(trajectory)
    assert msgspec.json.decode(encoded, type=Trajectory).verdict == expected
    assert b"verdict" not in msgspec.json.encode(events.trajectory()), "bytes of runs without a judge are as before"


@pytest.mark.parametrize(
    ("answer", "success"),
    [
        ("Verdict: success", True),
        ("**Verdict:** Failure", False),
        ("First I thought Verdict: success. But no.\nVERDICT: FAILURE", False),
        ("It is a success.", None),
        ("Verdict: successful?", None),
        ("Verdict: maybe", None),
        ("", None),
    ],
)
def test_the_last_verdict_in_an_answer_counts(answer: str, success: bool | None):
    assert judging.read_verdict(answer, "m").success is success


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (says(chat("I can't help with that.")), "no verdict in the answer: I can't help"),
        (says({"choices": [{"message": {"refusal": "No."}, "finish_reason": "stop"}]}), "no verdict in the answer: No"),
        (says(chat(choices=[{"message": {"content": "Verdict: su"}, "finish_reason": "content_filter"}])), "filter"),
        (says({"choices": []}), "no choices"),
        (says({}, 500), "500"),
        (says({"error": "too many images"}, 400), "400.*too many images"),
        (says({"error": f"wrong {KEY}"}, 401), r"401.*wrong \*\*\*.*recipes\.judge\.api_key"),
        (writes(b"<html>"), "not a chat completion"),
        (writes(b"\xff\xfe"), "not a chat completion"),
        (truncates, "failed"),
        (Hang(), "in time"),
        (says({}, 429), "429"),
    ],
    ids=["prose", "refusal", "filter", "no choice", "500", "400", "401", "html", "bytes", "cut", "silent", "429"],
)
async def test_what_is_no_verdict_is_no_failure_and_ends_no_episode(answer: Answer, reason: str, monkeypatch):
    monkeypatch.setattr(openai_endpoint, "pause_s", lambda tried: 3600.0)
    with structlog.testing.capture_logs() as logged:
        verdict = await verdict_of(answer, timeout_s=0.5 if isinstance(answer, Hang) else 60.0)
    assert verdict.success is None
    assert re.search(reason, verdict.reason), verdict.reason
    [line] = [line for line in logged if line["event"] == "no verdict"]
    assert line["reason"] == verdict.reason
    assert KEY not in str(logged)


async def test_a_busy_judge_is_asked_again_within_its_time():
    verdict = await verdict_of(says({}, 429), says({}, 503), says(chat("Verdict: success")))
    assert verdict.success is True


async def test_episodes_without_a_reward_or_of_the_oracle_are_not_judged():
    async with served(says(chat("Verdict: success"))) as endpoint:
        assert (await played(endpoint.url, "demonstration"))[-1].verdict is None
        assert (await played(endpoint.url, "eval"))[-1].verdict is not None
        [observations] = await play(simulated_by(endpoint.url, fault_rate=1), clicks())
        assert observations[-1].end is not None and observations[-1].end.kind == "env_error"
        assert observations[-1].verdict is None
    assert len(endpoint.bodies) == 1


async def test_without_a_last_screen_there_is_no_verdict():
    [observations] = await play(simulated_by("http://127.0.0.1:9/v1", last_screen=False), clicks())
    verdict = observations[-1].verdict
    assert verdict is not None and verdict.success is None and "last_screen" in verdict.reason
    assert recipe_config("judge").env.miniwob.last_screen, "the recipe asks for one"


async def test_without_an_endpoint_nothing_is_judged():
    [observations] = await play(simulated_config(recipe=["judge"]), clicks())
    assert observations[-1].verdict is None


def test_rewards_of_a_judge_without_an_endpoint_are_refused():
    with pytest.raises(ConfigError, match="needs base_url"):
        recipe_config("judge", recipes={"judge": {"reward": "judge"}})
    with pytest.raises(ConfigError, match="model must name"):
        recipe_config("judge", recipes={"judge": {"base_url": "http://127.0.0.1:9/v1"}})


async def test_a_judge_that_raises_ends_the_worker_with_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    rule = (
        "from workers.env.judging import EpisodeRules\n"
        "async def judge(own, episode):\n    raise ValueError('broken')\n"
        "RULES = EpisodeRules(judge=judge)\n"
    )
    install_recipe(tmp_path, monkeypatch, "broken_judge", {"recipe.toml": "", "judging.py": rule})
    with pytest.raises(RuleFailed, match=r"'broken_judge'.*rule judge ended with ValueError: broken"):
        await play(simulated_config(recipe=["broken_judge"]), clicks())
    with pytest.raises(ConfigError, match="'judge' and 'broken_judge' both bring the rule judge"):
        bind_judge(simulated_config(recipe=["judge", "broken_judge"]))


def outcomes(reward: str) -> dict[str, Any]:
    return judged_by("http://127.0.0.1:9/v1", reward=reward)


def test_the_environments_reward_counts_unless_a_key_says_otherwise():
    agent = Groups(outcomes("environment"))
    agent.see(0, 1.0, size=3, verdict=NO)
    agent.see(1, 0.0, size=3, verdict=YES)
    group = agent.see(2, 0.0, size=3, verdict=NONE)
    assert [member.reward for member in group.members] == [1.0, 0.0, 0.0]


def test_the_judges_reward_leaves_out_what_it_did_not_judge():
    agent = Groups(outcomes("judge"))
    agent.see(0, 1.0, size=4, verdict=NO)
    agent.see(1, 0.0, size=4, verdict=YES)
    agent.see(2, 1.0, size=4, verdict=NONE)
    group = agent.see(3, 1.0, size=4)
    assert [(member.trajectory_id, member.reward) for member in group.members] == [("t0-0-0", 0.0), ("t0-1-0", 1.0)]


def test_a_group_that_no_judge_answered_for_is_not_trained_on():
    agent = Groups(outcomes("judge"))
    assert agent.see_all(1.0, 0.0, verdict=NONE) is None
    assert agent.state.counts.empty == 1


@pytest.mark.parametrize(
    ("reward", "verdict", "rate", "outcome"),
    [
        ("environment", YES, 0.0, "failure"),
        ("judge", YES, 1.0, "success"),
        ("judge", NO, 0.0, "failure"),
        ("judge", NONE, None, "failure"),
    ],
)
def test_difficulty_and_dispatch_learn_the_same_reward(reward, verdict, rate, outcome):
    config = recipe_config("judge", recipes=outcomes(reward)["recipes"])
    event = events.trajectory(
        outcome="failure", reward=0.0, verdict=verdict, order_id="g000000/0/0", group_id="g000000"
    )
    record = InputRecord("trajectories", 0, 0, event)
    state = difficulty.DifficultyState()
    _, [decision] = difficulty.apply(state, record, difficulty.WINDOW, Limits.of(config), bind_rules(config))
    assert (decision.event.success_rate, decision.event.cause.outcome) == (rate, outcome)


@pytest.mark.parametrize(("reward", "value"), [("environment", 0.0), ("judge", 1.0)])
def test_other_recipes_remember_the_reward_that_counts(reward, value):
    tables = outcomes(reward)
    agent = Groups({**tables, "recipe": ["digirl", "judge"]})
    agent.see(0, 0.0, size=3, verdict=YES)
    agent.see(1, 0.0, size=3, verdict=NONE)
    tally = agent.state.memories["digirl"].tasks["simulated/grid#0"]
    assert tally.rewards / tally.count == value
    assert tally.count == (1 if reward == "judge" else 2)


def ten_rollouts() -> list[Trajectory]:
    """Return rollouts of two tasks: six agreements, two only to the judge, one only to the reward, one silent."""
    pairs = [(1.0, YES)] * 4 + [(0.0, NO)] * 2 + [(0.0, YES)] * 2 + [(1.0, NO), (1.0, NONE)]
    return [
        events.trajectory(
            f"t{number}",
            task_id=f"pages/a#{int(number >= 6)}",
            reward=reward,
            outcome="success" if reward else "failure",
            verdict=verdict,
        )
        for number, (reward, verdict) in enumerate(pairs)
    ]


def test_the_table_of_disagreements():
    rollouts = ten_rollouts()
    demonstration = events.trajectory("d", purpose="demonstration", verdict=NO)
    fault = events.trajectory("f", outcome="env_error", reward=None)
    total, worst, best = compare_verdicts([*rollouts, rollouts[0], demonstration, fault])
    assert (total.rollouts, total.no_verdict, total.agreement) == (10, 1, round(6 / 9, 4))
    assert (total.both_success, total.both_failure, total.only_judge, total.only_reward) == (4, 2, 2, 1)
    assert (worst.task, worst.agreement, worst.rollouts) == ("pages/a#1", 0.0, 4)
    assert (worst.only_judge_examples, worst.only_reward_examples) == (["t6", "t7"], ["t8"])
    assert (best.task, best.agreement, best.only_judge_examples) == ("pages/a#0", 1.0, [])


def test_partial_credit_is_no_success():
    [total, _] = compare_verdicts([events.trajectory(reward=0.5, outcome="failure", verdict=YES)])
    assert (total.only_judge, total.agreement) == (1, 0.0)


def bundle_of(path: Path, trajectories: list[Trajectory]) -> Path:
    """Write a bundle of these trajectories."""
    golden = Path(__file__).parents[3] / "tests/unit/golden" / "bundle.v1.dart"
    source = Bundle(golden)
    manifest = Manifest(run="r", prefix="p.", captured_ms=0, schemas={"trajectories": 1})
    with Writer(path, manifest) as bundle:
        bundle.text(CONFIG, source.text(CONFIG))
        bundle.text(TASKS, source.text(TASKS))
        headers = next(iter(source.records("trajectories"))).headers
        bundle.records(
            "trajectories",
            (
                BundleRecord(
                    partition=0,
                    offset=number,
                    at_ms=number,
                    key=b"k",
                    value=msgspec.json.encode(event),
                    headers=headers,
                )
                for number, event in enumerate(trajectories)
            ),
        )
    return path


def test_the_command_prints_the_table_of_a_bundle(tmp_path: Path):
    path = bundle_of(tmp_path / "run.dart", ten_rollouts())
    rows = invoke_json("data", "agreement", "--bundle", path)
    found = [(row["task"], row["agreement"]) for row in rows]
    assert found == [("all tasks", 0.6667), ("pages/a#1", 0.0), ("pages/a#0", 1.0)]
    assert rows[1]["only_judge_examples"] == ["t6", "t7"]
    bare = bundle_of(tmp_path / "bare.dart", [events.trajectory()])
    with pytest.raises(UserError, match="none of the 1 rollouts has a verdict"):
        invoke_json("data", "agreement", "--bundle", bare)
