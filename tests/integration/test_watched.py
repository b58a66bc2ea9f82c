"""`bench watched` on a real run: a viewer comes and goes, is sent what a tab is, and the page works only for it."""

import sys
from pathlib import Path

import msgspec
import pytest
from rich.console import Console

from benchmarks import watched
from benchmarks.watched_run import measure
from dart_streams.config import Ui
from dart_streams.errors import UserError
from dart_streams.history.run_folder import RunFolder
from dart_streams.launch import processes
from dart_streams.launch.session import Finish, Session
from dart_streams.launch.supervisor import ProcessSpec
from tests.integration.test_circle import HERE, STAND_IN, circle_config

BLOCK_S = 15.0


def session_of(made: RunFolder, console: Console, finish: Finish) -> Session:
    program = Path(sys.executable).parent / "dart-streams"
    cast = processes.processes_of(made.config(), made.config_file, processes.Programs(program, program))
    stand_in = ProcessSpec("trainer", (sys.executable, "-m", STAND_IN, str(made.config_file)))
    return Session(made, msgspec.structs.replace(cast, trainer=(stand_in,)), finish, console)


@pytest.mark.timeout(600)
def test_every_second_block_is_watched_and_costs_the_page_its_work(services, tmp_path: Path, monkeypatch):
    monkeypatch.setattr(watched, "SETTLED_S", 5.0)
    config = circle_config(services, tmp_path, episodes=0, train_steps=100_000)
    tasks = msgspec.structs.replace(config.tasks, file=str(HERE / "circle-tasks.toml"))
    config = msgspec.structs.replace(config, ui=Ui(port=0), tasks=tasks)
    found = measure(config, 4 * BLOCK_S / 60, BLOCK_S, session_of)
    blocks = found["blocks"]
    assert [block.watched for block in blocks] == [number % 2 == 1 for number in range(len(blocks))]
    assert len(blocks) >= 2
    assert all(block.steps_per_s > 0 for block in blocks)
    seen = blocks[1]
    assert seen.messages > BLOCK_S / 2, "a few messages a second, fewer on a slow machine"
    assert seen.screens > 5
    assert blocks[0].messages == 0
    assert blocks[0].page_cpu < seen.page_cpu, "nobody had looked yet, so nothing was read"
    assert found["cost"] is not None


def test_blocks_that_would_not_count_are_refused_before_anything_is_started(services, tmp_path: Path):
    with pytest.raises(UserError, match="longer than"):
        measure(circle_config(services, tmp_path), 10, watched.SETTLED_S)
    with pytest.raises(UserError, match="longer than"):
        measure(circle_config(services, tmp_path), 1, 180)
    assert not list(tmp_path.iterdir())
