"""A data set that is exported from a run and imported as demonstrations is equal."""

import asyncio
import contextlib
import threading
import tomllib
from collections.abc import Iterator

import msgspec
import pytest
import tomli_w

from console.runs import run_folder
from console.runs.bundle import Bundle
from dart_data import demonstrations
from dart_data.demonstrations import as_demonstration
from dart_streams.bus.sync_clients import read_events
from dart_streams.config import Config
from dart_streams.config.tasks import load
from dart_streams.errors import UserError
from plugins.data.tests.unit.test_demonstrations import GOOD, lines, without_ids
from tests.command_line import invoke_json
from tests.integration.recorded_run import record
from topics import observations, trajectories
from workers.recorder.main import connect
from workers.runtime.lifecycle import run_until_stopped


@pytest.fixture(scope="module")
def bundle(tmp_path_factory) -> Bundle:
    return Bundle(record(tmp_path_factory.mktemp("import") / "run.dart"))


def folder_of(config: Config, bundle: Bundle, tmp_path, name: str, timeout_s: float = 120.0):
    """Write the folder of a run on the given topics, as `dart-streams run` does; return the state folder."""
    tasks = tmp_path / "tasks.toml"
    tasks.write_text(bundle.text("tasks.toml"))
    replace = msgspec.structs.replace
    config = replace(config, evaluation=replace(config.evaluation, timeout_s=timeout_s))
    made = run_folder.create(config, tasks, name, resume=False)
    made_config = replace(config, tasks=replace(config.tasks, file="tasks.toml"))
    run_folder.write_toml(made.config_file, made_config)
    return made


@contextlib.contextmanager
def recorder(config: Config) -> Iterator[None]:
    """A recorder in a thread of its own, for the command has an event loop of its own."""
    stop: list = []
    ready = threading.Event()

    async def record_until_stopped() -> None:
        event = asyncio.Event()
        stop.append((asyncio.get_running_loop(), event))
        ready.set()
        await run_until_stopped(connect, config, "recorder-0", event)

    thread = threading.Thread(target=lambda: asyncio.run(record_until_stopped()))
    thread.start()
    assert ready.wait(60)
    try:
        yield
    finally:
        loop, event = stop[0]
        loop.call_soon_threadsafe(event.set)
        thread.join(120)
        assert not thread.is_alive()


def episodes(path) -> list:
    return [placed.episode for placed in demonstrations.episodes_in(path)]


@pytest.mark.parametrize("layout", ["step", "trajectory"])
def test_a_set_becomes_demonstrations_of_a_run_and_its_export_is_equal(services, bundle, tmp_path, layout):
    made = folder_of(services.config(), bundle, tmp_path, f"run-{layout}")
    state, config = made.path.parents[1], made.config()
    first, second = tmp_path / "first.parquet", tmp_path / "second.parquet"
    invoke_json("data", "export", first, "--bundle", bundle.path, "--rows", layout, "--outcome", "success")
    with recorder(config):
        [result] = invoke_json("data", "import", first, "--state", state, "--run", made.id)
        invoke_json("data", "import", first, "--state", state, "--run", made.id)
    [counts] = invoke_json("data", "export", second, "--state", state, "--run", made.id, "--rows", layout)

    wanted = [as_demonstration(one, config, load(made.path / "tasks.toml")) for one in episodes(first)]
    assert result["demonstrations"] == len(wanted) == counts["episodes"] > 10
    assert result["left_out"] == {}
    assert {one.observations[0].trajectory_id: one for one in episodes(second)} == {
        one.observations[0].trajectory_id: one for one in wanted
    }
    content = {one.observations[0].order.task_id: one.images for one in episodes(first)}
    assert {one.observations[0].order.task_id: one.images for one in episodes(second)}.keys() == content.keys()
    again = [as_demonstration(one, config, load(made.path / "tasks.toml")) for one in episodes(second)]
    assert sorted(map(repr, map(without_ids, again))) == sorted(map(repr, map(without_ids, wanted)))
    assert {one.purpose for one in read_events(config.bus, "test", trajectories.TOPIC)} == {"demonstration"}


def test_json_lines_become_demonstrations_and_what_is_none_is_counted(services, bundle, tmp_path):
    made = folder_of(services.config(), bundle, tmp_path, "run-lines")
    path = lines(tmp_path, GOOD, {**GOOD, "task_id": "simulated/box#100"}, {**GOOD, "reward": 0.2})
    with recorder(made.config()):
        [result] = invoke_json("data", "import", path, "--state", made.path.parents[1], "--run", made.id)
    assert result["demonstrations"] == result["steps"] == 1
    assert result["left_out"] == {"held-out task": 1, "no success": 1}
    assert "set.jsonl:2: simulated/box#100 is held out" in result["example"]


def test_without_a_recorder_the_error_names_what_to_start(services, bundle, tmp_path):
    made = folder_of(services.config(), bundle, tmp_path, "run-alone", timeout_s=2.0)
    path = lines(tmp_path, GOOD)
    with pytest.raises(UserError, match="start `dart-streams worker recorder`"):
        invoke_json("data", "import", path, "--state", made.path.parents[1], "--run", made.id)
    assert len(read_events(made.config().bus, "test", observations.TOPIC)) == 2
    known = tomllib.loads(made.config_file.read_text())
    known["evaluation"]["timeout_s"] = 120.0
    made.config_file.write_text(tomli_w.dumps(known))
    with recorder(made.config()):
        [result] = invoke_json("data", "import", path, "--state", made.path.parents[1], "--run", made.id)
    assert result["demonstrations"] == 1


def test_a_set_without_any_demonstration_is_an_error_with_an_example(services, bundle, tmp_path):
    made = folder_of(services.config(), bundle, tmp_path, "run-none")
    path = lines(tmp_path, {**GOOD, "reward": 0.0})
    with pytest.raises(UserError, match=r"no demonstration in the set, for instance .*only successes"):
        invoke_json("data", "import", path, "--state", made.path.parents[1], "--run", made.id)
