"""A workload taken from a run: what was drawn is found again."""

import random
import statistics
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import pytest
import tomli_w
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from benchmarks import modes
from benchmarks.decoupling import SimulatedRun
from benchmarks.observed import pages, quantiles, tables, times
from benchmarks.utilization import figures
from dart_streams.bus.codec import encode
from dart_streams.config import parse
from dart_streams.config import tasks as task_sets
from dart_streams.config.workload import Spread, typical_steps
from dart_streams.console.bundles.bundle_inputs import CONFIG
from dart_streams.console.cli import main
from dart_streams.console.runs.bundle import BundleRecord, Manifest, Writer
from dart_streams.console.runs.run_folder import without_nulls
from dart_streams.console.runs.run_log import LogRecord, log_record
from dart_streams.console.runs.run_state import RunState
from dart_streams.episodes.episode import new_trajectory_id
from dart_streams.errors import UserError
from topics import Topic, observations, trained, weights_serving
from topics.observations import EpisodeEnd, ExecutedAction, Observation
from topics.rollout_orders import RolloutOrder
from topics.trained import TrainedStep
from topics.values import BlobRef, Sampling
from topics.weights_serving import WeightsServing

SHOT = BlobRef(sha256="", size=1, width=1, height=1)


class LoggedEvent(NamedTuple):
    """An event, and when it was written."""

    at_ms: int
    event: Any


def kept(topic: Topic, offset: int, logged: LoggedEvent) -> BundleRecord:
    made = encode(topic, logged.event, (), str(offset))
    return BundleRecord(0, offset, logged.at_ms, made.key, made.value, list(made.headers))


TOPICS = {Observation: observations.TOPIC, TrainedStep: trained.TOPIC, WeightsServing: weights_serving.TOPIC}


def state(records: list[LoggedEvent]) -> RunState:
    return RunState(keep_steps=True).fold(read_back(record) for record in records)


def read_back(logged: LoggedEvent) -> LogRecord:
    topic = TOPICS[type(logged.event)]
    return log_record(topic.name, kept(topic, 0, logged))


def played(
    task: str, steps: int, began_ms: int, *, won: bool, chance: random.Random, purpose="train"
) -> list[LoggedEvent]:
    """Return an episode's observations: reset about 1000 ms, generation about 40 ms, actions 10 ms, evaluator 5 ms."""
    trajectory = new_trajectory_id(began_ms, chance.randbytes(10))
    order = RolloutOrder(
        order_id=trajectory,
        group_id="g",
        group_size=1,
        sample=0,
        attempt=0,
        task_id=task,
        max_steps=50,
        purpose=purpose,
        sampling=Sampling(),
        after_version=0,
    )
    records, at_ms = [], began_ms + chance.randint(900, 1_100)
    for step in range(steps + 1):
        generate_ms = chance.uniform(30, 50)
        taken = ExecutedAction(
            request_id="r",
            text="",
            action="",
            tokens=[],
            logprobs=[],
            entropies=[],
            versions=[],
            prompt_sha="",
            queue_ms=0.0,
            generate_ms=generate_ms,
            execute_ms=10.0,
        )
        at_ms += int(generate_ms + 10) if step else 0
        end = EpisodeEnd(kind="success" if won else "failure", reward=float(won)) if step == steps else None
        event = Observation(
            trajectory_id=trajectory,
            order=order,
            step=step,
            instruction="",
            screenshot=SHOT,
            taken=taken if step else None,
            end=end,
            env_host="env-0",
            at_ms=at_ms,
        )
        records.append(LoggedEvent(at_ms + (5 if end else 0), event))
    return records


def run(episodes=200) -> list[LoggedEvent]:
    chance = random.Random(4)
    found = []
    for number in range(episodes):
        steps = 4 if number % 2 else 20
        varied = max(1, round(steps * chance.choice([0.9, 1.0, 1.1])))
        found += played(f"t{number % 10}", varied, number * 500, won=number % 4 == 0, chance=chance)
    return [*found, *played("shown", 3, 0, won=True, chance=chance, purpose="demonstration")]


def step_of(train_ms: float) -> LoggedEvent:
    metrics = {"train_ms": train_ms, "publish_ms": 100.0}
    return LoggedEvent(
        0,
        TrainedStep(train_step=1, version=1, epoch=1, group_ids=[], trajectory_ids=[], metrics=metrics, at_ms=0),
    )


def served(worker: str, version: int, pause_ms: float | None) -> LoggedEvent:
    return LoggedEvent(0, WeightsServing(worker_id=worker, version=version, since_ms=0, alive_ms=0, pause_ms=pause_ms))


def test_the_times_of_a_run_are_found_again_at_its_scale():
    recorded = state([*run(), step_of(1_900), step_of(1_900), served("a", 1, 20.0)])
    found = tables(recorded, times(recorded), 15.0, 50.0, 10.0)
    workload = parse(found).workload
    assert workload.time_scale == 10.0
    assert statistics.mean(workload.reset_s.quantiles) == pytest.approx(50.0, rel=0.05)
    assert set(workload.settle_s.quantiles) == {0.5}
    assert set(workload.evaluate_s.quantiles) == {0.25}
    chance = random.Random(0)
    generated = [workload.generation.takes_s(workload.generation.tokens.draw(chance), 0.7) for _ in range(2_000)]
    assert statistics.mean(generated) == pytest.approx(2.0, rel=0.05)
    assert workload.optimiser_s.draw(chance) == pytest.approx(100.0)
    assert (workload.switch_s, workload.call_s, workload.hang_share) == (1.0, 750.0, 0.0)
    assert workload.steps_sigma == pytest.approx(0.08, abs=0.03)
    assert 0 <= workload.success[0] < workload.success[1] <= 1


def test_tasks_are_told_by_their_lengths():
    set_ = task_sets.parse(pages(times(state(run()))), "test")
    lengths = sorted(typical_steps(task.page) for task in set_.train)
    assert lengths[:5] == [4] * 5
    assert all(18 <= steps <= 22 for steps in lengths[5:])
    assert len(lengths) == 10


def test_faults_are_the_share_that_hangs():
    records = run(10)
    last = records[-5].event
    assert times(state(records)).faults == 0
    fault = LoggedEvent(
        0, Observation(**{**as_dict(last), "step": last.step + 1, "end": EpisodeEnd(kind="env_error", reward=None)})
    )
    assert times(state([*records, fault])).faults == 1


def as_dict(event: Observation) -> dict:
    return {name: getattr(event, name) for name in event.__struct_fields__}


def test_a_run_without_episodes_is_refused():
    with pytest.raises(UserError, match="nothing to take"):
        tables(state([]), times(state([])), 1.0)


def test_heartbeats_are_no_switches():
    records = [served("a", 1, 20.0), served("a", 1, 20.0), served("b", 1, 40.0), served("a", 2, None)]
    assert [event.pause_ms for event in state(records).served.values()] == [20.0, 40.0, None]


@given(st.lists(st.floats(0, 1e3), min_size=1, max_size=60))
def test_quantiles_keep_the_ends_and_the_order(values):
    found = quantiles(values)
    assert len(found) == (21 if len(values) > 1 else 1)
    assert (found[0], found[-1]) == (min(values), max(values))
    assert min(values) <= Spread(quantiles=tuple(found)).draw(random.Random(0)) <= max(values)


def bundle_of(path: Path, records: list[LoggedEvent]) -> Path:
    config = parse({"env": {"miniwob": {"call_timeout_s": 12.0}}})
    logs = {observations.TOPIC: records, trained.TOPIC: [step_of(900)], weights_serving.TOPIC: []}
    manifest = Manifest(run="r", prefix="dart.r.", captured_ms=0, schemas={topic.name: topic.version for topic in logs})
    with Writer(path, manifest) as bundle:
        bundle.text(CONFIG, tomli_w.dumps(without_nulls(msgspec.to_builtins(config))))
        for topic, log in logs.items():
            bundle.records(topic.name, [kept(topic, offset, record) for offset, record in enumerate(log)])
    return path


def test_the_workload_of_a_bundle_can_be_simulated(tmp_path: Path):
    bundle, folder = bundle_of(tmp_path / "run.dart", run()), tmp_path / "mine"
    arguments = ("bench", "workload", str(bundle), "-o", str(folder), "--scale", "5")
    done = CliRunner().invoke(main.build(arguments), arguments)
    assert done.exit_code == 0, done.output
    base = modes.read(folder / "workload.toml")
    assert base.workload.time_scale == 5.0
    assert base.workload.call_s == 12.0
    assert base.workload.optimiser_s.draw(random.Random(0)) == pytest.approx(1.0)
    shape = modes.proportioned(8, 45, 2)
    account = SimulatedRun(base, 0.05).play(modes.deployment(base, "dart", shape, 0), "dart", 0)
    found = figures(account, 30)
    assert found.env_utilisation > 0.5
