"""The tracker on a real broker and database; what it writes is read by each tool's own library."""

import asyncio
import contextlib
import io
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import msgspec
import pytest
from PIL import Image

from console.runs.run_folder import write_toml
from dart_data.tracker.backends import wandb_run
from dart_data.tracker.main import connect
from dart_data.tracker.points import point_of
from dart_streams.bus.clients import Publisher
from dart_streams.bus.lag import by_group, lag_reader
from dart_streams.config import Config
from dart_streams.errors import ConfigError
from dart_streams.store import AsyncStore, connect_async
from plugins.data.tests.unit.test_episode_rows import png
from tests import events
from tests.events import episode
from tests.sources import ROOT
from tests.waiting import until
from tests.worker_runs import running_worker
from topics import trained
from topics.trained import TrainedStep
from workers.runtime.lifecycle import run_until_stopped

KINDS = ("tensorboard", "mlflow", "trackio", "wandb")
BOUND_S = 180.0
SAMPLED = 2


def step(number: int, epoch: int = 1) -> TrainedStep:
    """An optimizer step whose numbers are exact in single precision, which is what TensorBoard has."""
    return events.trained_step(
        number,
        epoch=epoch,
        group_ids=[f"g{number}"],
        trajectory_ids=["t1", "t2", "t3"],
        metrics={"loss": 1 / 2**number, "reward": number / 8, "reward/click-test": 0.25, "train_ms": 500.0 * number},
        at_ms=1_700_000_000_000 + 1000 * number,
    )


def expected(numbers) -> Counter:
    """Every (name, step, value) of these steps."""
    points = [point_of(step(number)) for number in numbers]
    return Counter((name, point.step, value) for point in points for name, value in point.values.items())


def read_tensorboard(folder: Path, run: str):
    from tensorboard.backend.event_processing.event_accumulator import IMAGES, EventAccumulator

    found = EventAccumulator(str(folder / run), size_guidance={"scalars": 0, IMAGES: 0}).Reload()
    points = [(tag, one.step, one.value) for tag in found.Tags()["scalars"] for one in found.Scalars(tag)]
    images = [(one.step, one.encoded_image_string) for tag in found.Tags()["images"] for one in found.Images(tag)]
    return points, images


def read_mlflow(folder: Path, run: str):
    from mlflow import MlflowClient

    client = MlflowClient(tracking_uri=f"sqlite:///{folder}/mlflow.db")
    experiment = client.get_experiment_by_name("dart_streams")
    [found] = client.search_runs([experiment.experiment_id])
    assert found.info.run_name == run
    points = [
        (name, one.step, one.value)
        for name in found.data.metrics
        for one in client.get_metric_history(found.info.run_id, name)
    ]
    images = []
    for file in client.list_artifacts(found.info.run_id, "samples"):
        data = Path(client.download_artifacts(found.info.run_id, file.path)).read_bytes()
        if file.path.endswith(".png"):
            images.append((int(Path(file.path).name.split("-")[1]), data))
    return points, images


def read_trackio(folder: Path, run: str):
    import trackio

    points, images = [], []
    for row in trackio.SQLiteStorage.get_logs("dart_streams", run):
        for name, value in row.items():
            if isinstance(value, dict) and value.get("_type") == "trackio.image":
                images.append((row["step"], (folder / "media" / value["file_path"]).read_bytes()))
            elif name.startswith("train/"):
                points.append((name, row["step"], value))
    return points, images


def read_wandb(folder: Path, run: str):
    """Read what `wandb leet inspect` prints, the library's reader of its files."""
    points, images = [], []
    for path in sorted(folder.glob(f"wandb/offline-run-*-{run}/run-{run}.wandb")):
        command = [sys.executable, "-m", "wandb", "leet", "inspect", "--json", str(path)]
        done = subprocess.run(command, capture_output=True, check=True, timeout=BOUND_S)
        for text in done.stdout.splitlines():
            row = msgspec.json.decode(text).get("history", {}).get("item", {})
            for name, value in row.items():
                if name.startswith("train/"):
                    points.append((name, row["train_step"], value))
                elif value == "image-file":
                    file = row[name.removesuffix("_type") + "path"]
                    images.append((row["train_step"], (path.parent / "files" / file).read_bytes()))
    return points, images


READ = {"tensorboard": read_tensorboard, "mlflow": read_mlflow, "trackio": read_trackio, "wandb": read_wandb}


def tracked(services, kind: str, folder: Path) -> Config:
    return services.config(tracker={"tool": kind, "target": str(folder), "samples": SAMPLED, "samples_every": 4})


async def publish(config: Config, steps) -> None:
    async with Publisher(config.bus, "trainer") as publisher:
        for one in steps:
            await publisher.publish(trained.TOPIC, one)


async def store_trajectories(config: Config) -> None:
    """Put the trajectories that steps name into the store, with a screen each; the third has none there any more."""
    session = await connect_async(config.store)
    try:
        store = AsyncStore(session, config.bus.run, 0)
        for number in (1, 2):
            ref = await store.put_blob(png(number), "image/png", 2, 2)
            for one in episode(number):
                await store.write_step(msgspec.structs.replace(one, screenshot=ref))
    finally:
        session.cluster.shutdown()


async def behind(config: Config) -> int:
    """Return how many steps the tracker has not committed."""
    async with lag_reader(config.bus) as lags:
        found = {group: count for (group, _), count in by_group(await lags.read()).items() if "tracker" in group}
    return next(iter(found.values()), -1)


async def has_caught_up(config: Config) -> bool:
    return await behind(config) == 0


def tracker(config: Config) -> contextlib.AbstractAsyncContextManager[asyncio.Task[int]]:
    return running_worker(connect, config, "tracker-0")


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Where a tool writes; trackio reads its place when it is imported, so it is imported anew."""
    monkeypatch.setattr(wandb_run.WandbRun, "flush_s", 2.0)  # its folders are named by the second
    for name in [name for name in sys.modules if name.partition(".")[0] == "trackio"]:
        del sys.modules[name]
    return tmp_path / "tracker"


@pytest.mark.parametrize("kind", KINDS)
async def test_what_a_tool_reads_is_what_the_topic_has(services, kind, folder):
    config = tracked(services, kind, folder)
    await store_trajectories(config)
    await publish(config, map(step, range(1, 10)))
    async with tracker(config):
        await until(lambda: has_caught_up(config))
    points, images = READ[kind](folder, config.run.id)
    assert Counter(points) == expected(range(1, 10))
    assert {number for number, _ in images} == {4, 8}
    assert len(images) >= SAMPLED
    for _, data in images:
        with Image.open(io.BytesIO(data)) as image:
            assert image.width >= 320
    assert await behind(config) == 0


@pytest.mark.parametrize("kind", KINDS)
async def test_a_tracker_that_was_down_goes_on_from_its_offset(services, kind, folder):
    config = tracked(services, kind, folder)
    await store_trajectories(config)
    await publish(config, map(step, range(1, 4)))
    async with tracker(config):
        await until(lambda: has_caught_up(config))
    await publish(config, map(step, range(4, 7)))
    assert await behind(config) == 3
    async with tracker(config):
        await until(lambda: has_caught_up(config))
    points, _ = READ[kind](folder, config.run.id)
    assert Counter(points) == expected(range(1, 7))


@pytest.mark.parametrize("kind", KINDS)
async def test_a_killed_tracker_loses_no_step(services, kind, folder):
    """Killed with SIGKILL while steps come: the next one writes what was not committed; only wandb has some twice."""
    config = tracked(services, kind, folder)
    await store_trajectories(config)
    file = folder.parent / "config.toml"
    write_toml(file, config)
    command = [sys.executable, "-m", "console.cli", "worker", "tracker", "--config", str(file)]
    # Tests before it have a service of wandb's running, which a process would share that inherits its place.
    environment = {name: value for name, value in os.environ.items() if name != "WANDB_SERVICE"}
    process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.DEVNULL, env=environment)

    async def has_begun() -> bool:
        """Return whether the steps are committed, or for wandb, which commits seldom, whether its files are there."""
        assert process.returncode is None
        return bool(list(folder.glob("wandb/offline-run-*"))) if kind == "wandb" else await has_caught_up(config)

    try:
        await publish(config, map(step, range(1, 6)))
        await until(has_begun)
        await publish(config, map(step, range(6, 9)))
    finally:
        process.kill()
        await process.wait()
    async with tracker(config):
        await until(lambda: has_caught_up(config))
    points, _ = READ[kind](folder, config.run.id)
    if kind == "wandb":
        assert set(points) == set(expected(range(1, 9)))
    else:
        assert Counter(points) == expected(range(1, 9))


async def test_a_step_of_a_fenced_trainer_is_not_tracked(services, folder):
    config = tracked(services, "tensorboard", folder)
    await store_trajectories(config)
    await publish(config, [step(1, epoch=2), step(9, epoch=1), step(2, epoch=2)])
    async with tracker(config):
        await until(lambda: has_caught_up(config))
    points, _ = READ["tensorboard"](folder, config.run.id)
    assert Counter(points) == expected([1, 2])


async def test_tensorboard_shows_the_newer_of_repeated_steps(services, folder):
    config = tracked(services, "tensorboard", folder)
    await store_trajectories(config)
    other = {"loss": 2.0}
    repeated = [msgspec.structs.replace(step(number, epoch=2), metrics=other) for number in (4, 5, 6)]
    await publish(config, [*map(step, range(1, 6)), *repeated])
    async with tracker(config):
        await until(lambda: has_caught_up(config))
    points, images = READ["tensorboard"](folder, config.run.id)
    losses = [(number, value) for name, number, value in points if name == "train/loss"]
    assert losses == [(1, 0.5), (2, 0.25), (3, 0.125), (4, 2.0), (5, 2.0), (6, 2.0)]
    assert [number for number, _ in images] == [4], "of the two that are drawn the store has one, shown once"


async def test_a_tracker_is_named_by_the_configuration(services):
    with pytest.raises(ConfigError, match="choose tensorboard, mlflow, wandb or trackio"):
        await run_until_stopped(connect, services.config(), "tracker-0", asyncio.Event())


def test_wandb_s_server_without_a_key_is_an_error_that_names_the_keys(tmp_path):
    """In a process of its own: a key of this machine's must not be found, and wandb keeps what it has found."""
    code = """
import sys
from pathlib import Path
from dart_streams.errors import ConfigError
from plugins.data.tests.test_tracker import point_of, step
from dart_data.tracker.backends.wandb_run import WandbRun
try:
    WandbRun(Path("."), "p", "r", offline=False).log(point_of(step(1)))
except ConfigError as error:
    sys.exit(str(error))
"""
    bare = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, env=bare, capture_output=True, text=True, timeout=BOUND_S
    )
    assert "tracker.offline = false" in done.stderr
    assert "WANDB_API_KEY" in done.stderr
