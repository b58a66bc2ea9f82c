"""The whole circle as real processes under the real supervisor, with scripted answers and simulated screens."""

import asyncio
import io
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import msgspec
import psutil
import pytest
from rich.console import Console

from dart_streams import config as configuration
from dart_streams.cli.run import changelogs
from dart_streams.config import Config
from dart_streams.run import folder, leftovers, processes, report
from dart_streams.run.circle import Circle
from dart_streams.run.session import InterruptedRun, Session
from dart_streams.run.supervisor import Spec

HERE = Path(__file__).parent
STAND_IN = HERE / "stand_in_trainer.py"


def circle_config(services, tmp_path: Path, **run) -> Config:
    base = configuration.load(HERE / "circle.toml")
    replace = msgspec.structs.replace
    running = services.running
    return replace(
        base,
        bus=replace(base.bus, servers=running.bus.servers),
        store=replace(base.store, hosts=running.store.hosts, port=running.store.port, keyspace=services.keyspace),
        run=replace(base.run, state_dir=str(tmp_path), **run),
    )


def session_of(made: folder.RunFolder, console: Console) -> Session:
    config = made.config()
    program = Path(sys.executable).parent / "dart-streams"
    cast = processes.cast(config, made.config_file, processes.Programs(program, program))
    stand_in = Spec("trainer", (sys.executable, str(STAND_IN), str(made.config_file)))
    cast = msgspec.structs.replace(cast, trainer=(stand_in,))

    def make_circle(supervisor):
        return Circle(made, supervisor, cast, extra_topics=changelogs(config), tell=session.tell)

    async def finish(circle):
        session.tell(await report.finish(circle))

    session = Session(made, make_circle, finish, console)
    return session


def living_below(pid: int) -> list[psutil.Process]:
    return [p for p in psutil.Process(pid).children(recursive=True) if p.status() != psutil.STATUS_ZOMBIE]


def test_the_circle_turns_and_loses_nothing(services, tmp_path):
    config = circle_config(services, tmp_path)
    made = folder.create(config, HERE / "circle-tasks.toml", folder.new_id(), resume=False)
    before = {p.pid for p in living_below(os.getpid())}
    shown = io.StringIO()
    asyncio.run(session_of(made, Console(file=shown, width=160)).run())
    found = json.loads((made.path / "report.json").read_text())
    assert found["lost"] == 0
    assert found["open"] == 0
    assert found["versions_served"] >= 6, shown.getvalue()
    assert found["staleness"]["max"] <= config.curation.max_staleness
    assert found["failed_loads"] == 0
    assert found["evaluation"]["before"]["episodes"] == found["evaluation"]["after"]["episodes"] == 24
    assert found["trajectories"]["by_outcome"]["success"] > 0
    assert found["trajectories"]["trained"] > 0
    assert found["requests"]["timed_out"] == 0
    assert 0.2 < found["env_utilisation"] <= 1
    assert "<svg" in (made.path / "report.html").read_text()
    assert {p.pid for p in living_below(os.getpid())} <= before
    assert leftovers.read(made.path / "processes.json") is None


RUN = """
import asyncio, sys
from pathlib import Path
from rich.console import Console
sys.path.insert(0, sys.argv[1])
from test_circle import folder, session_of
made = folder.RunFolder(Path(sys.argv[2]))
asyncio.run(session_of(made, Console(width=160)).run())
"""


@pytest.fixture
def running(services, tmp_path):
    """A circle in a process of its own, with training under way."""
    config = circle_config(services, tmp_path, evaluate=False, train_steps=1000)
    made = folder.create(config, HERE / "circle-tasks.toml", folder.new_id(), resume=False)
    process = subprocess.Popen([sys.executable, "-c", RUN, str(HERE), str(made.path)])
    try:
        deadline = time.monotonic() + 60
        while made.journal().phase("circle") is None:
            assert time.monotonic() < deadline, "training has not begun"
            assert process.poll() is None
            time.sleep(0.1)
        yield made, process, living_below(process.pid)
    finally:
        process.kill()
        process.wait()


def test_an_interrupt_drains_within_ten_seconds_and_leaves_no_orphan(running):
    made, process, children = running
    assert len(children) >= 10, "six processes, and a leash each"
    begin = time.monotonic()
    process.send_signal(signal.SIGINT)
    process.wait(timeout=20)
    assert time.monotonic() - begin <= 10
    assert not [child for child in children if child.is_running()]
    assert made.journal().outcome == "interrupted"
    assert InterruptedRun.exit_code


def test_kill_9_leaves_no_orphan_and_the_run_can_be_resumed(running):
    made, process, children = running
    process.kill()
    process.wait()
    _, alive = psutil.wait_procs(children, timeout=10)
    assert not alive
    assert leftovers.end_leftovers(made.path.parent) == ([], False)
    until_trained = msgspec.structs.replace(made.config().run, train_steps=4)
    short = msgspec.structs.replace(made.config(), run=until_trained)
    again = folder.create(short, HERE / "circle-tasks.toml", made.id, resume=True)
    asyncio.run(session_of(again, Console(file=io.StringIO(), width=160)).run())
    found = json.loads((again.path / "report.json").read_text())
    assert (found["lost"], found["open"]) == (0, 0)
    assert found["trajectories"]["trained"] > 0
