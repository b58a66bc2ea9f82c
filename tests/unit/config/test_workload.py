"""A workload: what is drawn from it, and that the simulated parts keep to it."""

import asyncio
import random
import statistics
from itertools import pairwise
from pathlib import Path

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from dart_streams import config as configuration
from dart_streams.actions import parse as action_of
from dart_streams.config import parse, tasks
from dart_streams.config.tasks import Task
from dart_streams.config.workload import GenerationTimes, Spread, Workload, draw_course, success_rate, typical_steps
from dart_streams.errors import ConfigError
from tests import events
from tests.unit.clockwork import Clockwork, by_clockwork
from topics.action_requests import ActionRequest
from topics.values import BlobRef, MessagePart
from workers.env.backends.simulated import SimulatedBackend
from workers.env.environment import EnvironmentFault, rescale
from workers.rollout.scripted import Pauses, ScriptedEngine

FILE = Path(__file__).parents[3] / "deploy/config/workload/desktop.toml"
DESKTOP = configuration.load(FILE).workload
QUICK = {"time_scale": 1e6, "hang_share": 0.0}


def task(steps: int, seed: int = 0) -> Task:
    return Task(environment="simulated", page=f"work-{steps}", seed=seed, max_steps=50, split="train")


def drawn(spread: Spread, count: int = 20_000) -> list[float]:
    chance = random.Random(1)
    return sorted(spread.draw(chance) for _ in range(count))


def test_the_shipped_workload_is_the_default_with_times_of_desktops():
    assert statistics.median(drawn(DESKTOP.reset_s)) == pytest.approx(60, rel=0.02)
    assert statistics.median(drawn(DESKTOP.settle_s)) == pytest.approx(2, rel=0.02)
    judged = drawn(DESKTOP.evaluate_s)
    assert 1 < judged[len(judged) // 20] < judged[-len(judged) // 20] < 5
    tokens, engine = drawn(DESKTOP.generation.tokens), DESKTOP.generation
    assert 1 < engine.takes_s(tokens[len(tokens) // 10], 0.0) < engine.takes_s(tokens[-len(tokens) // 10], 0.5) < 4
    lengths = [typical_steps(page.page) for page in tasks.load(FILE.parent / "tasks.toml").pages]
    assert (min(lengths), max(lengths)) == (5, 50)
    assert Workload() == DESKTOP


@given(
    st.builds(
        Spread,
        median=st.floats(0, 100),
        sigma=st.floats(0, 2),
        tail=st.floats(0, 1),
        alpha=st.floats(0.5, 4),
        most=st.floats(0.1, 200),
    ),
    st.integers(),
)
def test_no_draw_is_negative_or_beyond_the_most(spread, seed):
    assert 0 <= spread.draw(random.Random(seed)) <= spread.most


@given(st.lists(st.floats(0, 1e4), min_size=1, max_size=30).map(sorted), st.integers())
def test_quantiles_are_the_distribution(values, seed):
    spread = Spread(median=1e9, quantiles=tuple(values))
    assert values[0] <= spread.draw(random.Random(seed)) <= values[-1]


def test_draws_from_quantiles_have_those_quantiles():
    found = drawn(Spread(quantiles=(0.0, 1.0, 10.0)))
    assert found[len(found) // 2] == pytest.approx(1.0, abs=0.05)
    assert statistics.mean(found) == pytest.approx(3.0, rel=0.03)


@given(st.integers(1, 50), st.integers(), st.floats(0, 1))
def test_a_course_keeps_to_its_bounds(typical, seed, hang_share):
    workload = msgspec.structs.replace(DESKTOP, hang_share=hang_share)
    drawn = draw_course(workload, "a task", typical, random.Random(seed))
    assert 1 <= drawn.steps <= workload.most_steps
    assert drawn.hangs_at is None or 0 <= drawn.hangs_at <= drawn.steps


def test_tasks_have_rates_of_their_own_and_episodes_succeed_by_them():
    names = [f"task {number}" for number in range(200)]
    rates = sorted(success_rate(DESKTOP, name) for name in names)
    assert DESKTOP.success[0] <= rates[0] < 0.2 < 0.8 < rates[-1] <= DESKTOP.success[1]
    chance = random.Random(3)
    won = [draw_course(DESKTOP, names[0], 10, chance).success for _ in range(5_000)]
    assert statistics.mean(won) == pytest.approx(success_rate(DESKTOP, names[0]), abs=0.03)


def test_a_full_engine_takes_longer():
    engine = GenerationTimes(prefill_s=1.0, token_s=0.01, load=0.5)
    assert [engine.takes_s(100, fullness) for fullness in (0.0, 1.0)] == [2.0, 3.0]


def test_a_wrong_key_or_a_scale_of_nothing_is_refused():
    with pytest.raises(ConfigError, match="did you mean 'reset_s'"):
        parse({"workload": {"reset_ms": {"median": 1}}})
    with pytest.raises(ConfigError, match="time_scale"):
        parse({"workload": {"time_scale": 0}})


def simulated(**workload) -> SimulatedBackend:
    return SimulatedBackend(parse({"env": {"simulated": {"call_timeout_s": 0.01}}, "workload": QUICK | workload}))


def engine_of(**workload) -> ScriptedEngine:
    return ScriptedEngine(
        parse({"rollout": {"scripted": {"success_rate": 1.0}, "max_in_flight": 2}, "workload": QUICK | workload})
    )


async def played(backend: SimulatedBackend, of: Task) -> tuple[int, float]:
    """Play an episode as the scripted engine answers; return its steps and its reward."""
    engine = engine_of()
    environment = await backend.open(of)
    screen = await environment.reset(of)
    seen = BlobRef(sha256="s", size=1, width=screen.width, height=screen.height)
    turns = [MessagePart(role="user", text=screen.instruction), MessagePart(role="user", image=seen)]
    steps, shown = 0, [screen.image]
    while not screen.done:
        action = action_of(engine.answer(asked(f"{of.task_id} {steps}", turns, steps)))
        on_screen = rescale(action, environment.policy_size, (screen.width, screen.height))
        screen, steps = await environment.step(on_screen, f"a{steps}"), steps + 1
        shown.append(screen.image)
    assert all(before != after for before, after in pairwise(shown)), "or the episode would end as a loop"
    return steps, await environment.evaluate()


def asked(request_id: str, turns: list[MessagePart], step: int) -> ActionRequest:
    return events.action_request(request_id, step=step, turns=turns)


@pytest.mark.parametrize(("success", "reward"), [((1.0, 1.0), 1.0), ((0.0, 0.0), 0.0)])
async def test_an_episode_has_its_length_whether_it_succeeds_or_not(success, reward):
    assert await played(simulated(success=success, steps_sigma=0.0), task(12)) == (12, reward)


async def test_lengths_vary_around_a_tasks_own():
    backend = simulated(steps_sigma=0.3)
    found = [(await played(backend, task(12)))[0] for _ in range(20)]
    assert 9 <= statistics.median(found) <= 15
    assert len(set(found)) > 3


async def test_an_episode_that_hangs_or_has_no_workload_is_a_fault():
    backend = simulated(hang_share=1.0, steps_sigma=0.0)
    for seed in range(6):
        with pytest.raises(EnvironmentFault, match="hang"):
            await played(backend, task(3, seed))
    environment = await SimulatedBackend(parse({})).open(task(3))
    with pytest.raises(EnvironmentFault, match=r"needs a \[workload\]"):
        await environment.reset(task(3))


@by_clockwork
async def test_a_switch_of_weights_is_added_to_what_is_under_way():
    engine = engine_of(time_scale=1.0, switch_s=0.05, generation={"prefill_s": 0.05, "token_s": 0.0, "load": 0.0})
    await engine.start(events.weight_version(0))
    loop = asyncio.get_running_loop()
    started = loop.time()
    under_way = asyncio.create_task(engine.generate(asked("r", [], 0)))
    await asyncio.sleep(0.01)
    assert await engine.load(events.weight_version(1)) == pytest.approx(50)
    made = await under_way
    assert loop.time() - started == pytest.approx(0.1)
    assert [segment.version for segment in made.versions][-1] == 1


@given(st.integers(1, 20), st.lists(st.tuples(st.integers(1, 30), st.integers(1, 30)), max_size=4), st.integers(0, 40))
@example(1, [(1, 1), (1, 1)], 0)
@example(1, [(1, 1), (1, 1)], 1)
def test_work_lasts_as_long_as_without_pauses(seconds, pauses, begins):
    """Pauses are (time until it, its length); counted second by second."""
    ends, at = [], 0
    for before, lasts in pauses:
        at += before
        ends.append((at, at + lasts))
        at += lasts

    async def pausing(paused: Pauses) -> None:
        for before, lasts in pauses:
            await asyncio.sleep(before)
            await paused.pause(lasts)

    async def live() -> float:
        paused = Pauses()
        others = asyncio.create_task(pausing(paused))
        await asyncio.sleep(begins + 0.5)
        await paused.work(seconds)
        finished = asyncio.get_running_loop().time()
        await others
        return finished

    expected, left = begins + 0.5, float(seconds)
    while left > 0:
        expected += 0.5
        left -= 0.5 * (not any(start < expected - 0.25 < end for start, end in ends))
    with asyncio.Runner(loop_factory=Clockwork) as runner:
        assert runner.run(live()) == pytest.approx(expected)
