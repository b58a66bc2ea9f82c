"""The growth of the page's file per optimizer step and group is bounded."""

import asyncio
import random
import uuid
from pathlib import Path

import pytest

from console.runs.bundle import Bundle
from console.runs.run_log import RecordMetadata
from console.views.page import export
from console.views.page.assets import load_assets
from console.views.page.bundle_source import BundleSource
from tests import events
from tests.integration.recorded_run import record, settings
from topics import training_metrics
from topics.curated import CuratedGroup
from topics.trained import TrainedStep, TrainedToken

FEW, MANY = 100, 400
METRICS = [one.name for one in training_metrics.ALL]
GROUPS = 3
MEMBERS = 4
BEGUN_MS = 1_790_000_000_000
STEP_BYTES = 480
"""412 when this was written; 858 with a row a step, every digit and each id as a text."""
GROUP_BYTES = 28
"""22 when this was written; 31 as rows."""
SHELL_BYTES = 84_000
"""Without the plot library: 82,554 with taking over and further runs; 171,524 with fewer scripts, each as Base64."""


def identity(rng: random.Random, at_ms: int) -> str:
    """Return a UUID of version 7."""
    return str(uuid.UUID(int=at_ms << 80 | 7 << 76 | rng.getrandbits(12) << 64 | 2 << 62 | rng.getrandbits(62)))


def trained(source: BundleSource, count: int, groups: int) -> None:
    """Let a run have had ``count`` further optimizer steps like the demonstration's."""
    rng, state = random.Random(7), source.state
    first = max(state.trained) + 1
    seen = [identity(rng, BEGUN_MS - 1000 - number) for number in range(20)]
    for number in range(first, first + count):
        at_ms = BEGUN_MS + 900 * number + rng.randrange(300)
        taken = [group(rng, number, number * groups + place, at_ms) for place in range(groups)]
        fresh = [member.trajectory_id for one in taken for member in one.members]
        event = step(rng, number, [one.group_id for one in taken], fresh, rng.sample(seen, 16), at_ms)
        seen = [*seen[4:], *fresh[:4]]
        version = events.weight_version(number)
        for topic, applied in (*(("curated", one) for one in taken), ("trained", event), ("weights", version)):
            state.apply(RecordMetadata(topic, 0, number, at_ms), applied)


def group(rng: random.Random, step: int, number: int, at_ms: int) -> CuratedGroup:
    """Return a group of a task of the demonstration's many."""
    members = [
        events.member(
            identity(rng, at_ms - rng.randrange(5000)),
            reward=float(rng.random() < 0.5),
            advantage=rng.gauss(0, 1),
            selected=[0, 1],
            version_min=max(0, step - rng.randrange(3)),
            version_max=step,
        )
        for _ in range(MEMBERS)
    ]
    mean = sum(member.reward for member in members) / MEMBERS
    task = f"miniwob/click-test-{rng.randrange(12)}#{rng.randrange(40)}"
    return events.curated_group(f"g{number:06}", *members, task_id=task, mean=mean)


def step(
    rng: random.Random, number: int, groups: list[str], fresh: list[str], imitated: list[str], at_ms: int
) -> TrainedStep:
    """Return an optimizer step with 40 metrics, of which 15 are measured and 15 counted, and eight tokens."""
    tokens = [
        TrainedToken(
            trajectory_id=rng.choice(fresh),
            step=rng.randrange(2),
            index=rng.randrange(20),
            token=rng.randrange(1000),
            logprob=-rng.expovariate(1),
            log_ratio=rng.gauss(0, 0.3),
            weight=min(1.0, rng.lognormvariate(0, 0.3)),
            gradient_share=rng.random() / 8,
        )
        for _ in range(8)
    ]
    return events.trained_step(
        number,
        group_ids=groups,
        trajectory_ids=fresh,
        metrics={name: rng.gauss(1, 1) for name in METRICS[:15]}
        | {name: float(rng.randrange(20)) for name in METRICS[15:30]}
        | dict.fromkeys(METRICS[30:40], 1.0),
        at_ms=at_ms,
        imitated=imitated,
        top_tokens=tokens,
    )


@pytest.fixture(scope="module")
def bundle(tmp_path_factory) -> Path:
    return record(tmp_path_factory.mktemp("size") / "run.dart", 60, settings(step_ms=1))


def size(bundle: Path, count: int, groups: int = GROUPS) -> int:
    """Return the bytes of the file of a run with ``count`` further steps."""
    source = BundleSource(Bundle(bundle)).read()
    trained(source, count, groups)
    return len(export.render(load_assets(None), asyncio.run(export.collect(source)), "dart.x"))


def test_a_step_or_group_more_costs_no_more_than_what_is_new_in_it(bundle: Path):
    few, many = size(bundle, FEW), size(bundle, MANY)
    assert (many - few) / (MANY - FEW) < STEP_BYTES
    three, six = size(bundle, MANY), size(bundle, MANY, 2 * GROUPS)
    assert (six - three) / (MANY * GROUPS) < GROUP_BYTES


def test_the_pages_own_scripts_are_in_the_file_compressed():
    assert len(export.render(load_assets(None), export.Archive({}, {}), "dart.x")) < SHELL_BYTES
