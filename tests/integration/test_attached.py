"""A run whose processes are supervised elsewhere, as containers are: it is measured before, and to its end."""

import asyncio
import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import pytest

from dart_streams import config as configuration
from dart_streams.bus import admin
from dart_streams.console.launch.run_start import attached_session
from dart_streams.console.runs import run_folder as folder
from dart_streams.console.runs.run_folder import RunFolder
from workers.curator.changelogs import changelog_topics

HERE = Path(__file__).parent
STEPS = 3
BOUND_S = 120.0
"""Generous, as are the minutes: tests run on machines that do other things at the same time."""
MINUTES = 6.0

pytestmark = pytest.mark.timeout(600)


@pytest.fixture
def made(services, tmp_path) -> RunFolder:
    replace = msgspec.structs.replace
    base, running = configuration.load(HERE / "circle.toml"), services.running
    run = f"attached-{services.keyspace}"
    config = replace(
        base,
        bus=replace(base.bus, servers=running.bus.servers, prefix=f"dart.{run}."),
        store=replace(base.store, hosts=running.store.hosts, port=running.store.port, keyspace=services.keyspace),
        run=replace(base.run, id=run, state_dir=str(tmp_path), minutes=MINUTES),
        env=replace(base.env, request_timeout_s=BOUND_S),
        trainer=replace(base.trainer, max_train_steps=STEPS),
        evaluation=replace(base.evaluation, episodes=8, timeout_s=BOUND_S),
    )
    admin.apply_all(config.bus, changelog_topics(config))
    return folder.attach(config, HERE / "circle-tasks.toml")


@contextmanager
def running(made: RunFolder, *processes: str) -> Iterator[None]:
    """Processes that know nothing of each other, nor of who measures."""
    program = str(Path(sys.executable).parent / "dart-streams")
    file = str(made.config_file)
    trainer = (sys.executable, "-m", "benchmarks.stand_in_trainer", file)
    with (made.path / "workers.log").open("a") as log:
        started = [
            subprocess.Popen(
                trainer
                if kind == "trainer"
                else (program, "worker", kind, "--config", file, "--id", f"{kind}-{{host}}"),
                stdout=log,
                stderr=log,
            )
            for kind in processes
        ]
        try:
            yield
        finally:
            for process in started:
                process.terminate()
            for process in started:
                process.wait(BOUND_S)


def test_an_attached_run_measures_before_and_reports_its_end(made: RunFolder):
    with running(made, "env", "recorder", "rollout", "trainer"):
        asyncio.run(attached_session(made, before_only=True).run())
        assert made.journal().before_version == 0
        assert not (made.path / "report.json").exists()
        with running(made, "curator"):
            asyncio.run(attached_session(made, before_only=False).run())
    report = json.loads((made.path / "report.json").read_text())
    # The curator is not stopped here: what it orders meanwhile may be open.
    assert (report["lost"], report["outcome"]) == (0, "complete")
    assert report["train_steps"] == STEPS
    assert {when: report["evaluation"][when]["version"] for when in ("before", "after")} == {
        "before": 0,
        "after": STEPS,
    }
