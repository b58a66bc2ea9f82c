"""What a run does at its end about services that other runs of the same folder use."""

import io
from pathlib import Path

import pytest
from rich.console import Console

from dart_streams.config import Config, Run
from dart_streams.console.launch import process_registry
from dart_streams.console.launch.process_registry import ProcessIdentity, ProcessRegistry
from dart_streams.console.launch.session import Session
from dart_streams.console.launch.supervisor import Supervisor
from dart_streams.console.runs import run_folder

TASKS = """
[[pages]]
environment = "simulated"
page = "box"
max_steps = 2
train_seeds = [0, 2]
heldout_seeds = [10, 12]
"""
GONE = ProcessIdentity("supervisor", 2**22 - 1, 0.0, ())


async def nothing(_: object) -> None:
    pass


@pytest.mark.parametrize(
    ("other", "ending"),
    [
        (process_registry.this_process(), "Kafka and Cassandra stay up for other"),
        (GONE, "the services were down already"),
        (None, "the services were down already"),
    ],
)
async def test_a_run_that_started_the_services_leaves_them_to_another_run_that_lives(tmp_path: Path, other, ending):
    (tmp_path / "tasks.toml").write_text(TASKS)
    config = Config(run=Run(state_dir=str(tmp_path / "state")))
    made = run_folder.create(config, tmp_path / "tasks.toml", "ours", resume=False)
    if other is not None:
        (made.path.parent / "other").mkdir()
        process_registry.write(made.path.parent / "other" / "processes.json", ProcessRegistry(other))
    shown = io.StringIO()
    session = Session(made, None, nothing, Console(file=shown, width=200), owns_services=True)
    supervisor = Supervisor(made.path, drain_s=1)
    await session.end(session.make_run(supervisor), "complete")
    assert ending in shown.getvalue()
