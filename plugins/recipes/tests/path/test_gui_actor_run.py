"""The attention head of GUI-Actor plays episodes of real pages, through the rollout worker of an evaluating run."""

import asyncio
import contextlib
import io
import json
import signal
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from rich.console import Console

from benchmarks.recipes import gui_actor_screens as screens
from console.launch.services.daemon import free_port
from console.runs import run_folder as folder
from console.runs.run_log import read_events
from dart_recipes.gui_actor.patches import contains
from dart_streams.actions import Click, parse
from dart_streams.config import Config, load, tasks
from tests.integration.test_circle import circle_config, session_of
from tests.sources import ROOT
from tests.task_files import page_table
from tests.waiting import wait_until
from topics import observations, trajectories

MODEL = ROOT / ".venv/model/bin/python"
EPISODES = 6
START_S = 600.0
TASKS = "\n".join(
    page_table(page, "miniwob", steps, train=train, heldout=heldout, demonstration_seeds=demonstrated)
    for page, steps, train, heldout, demonstrated in (
        ("click-test", 1, (0, 2), (1000, 1003), [2000, 2040]),
        ("enter-text", 2, (0, 2), (1000, 1003), [2000, 2010]),
        ("find-midpoint", 2, (0, 1), (1000, 1001), [2000, 2002]),
    )
)
SETTINGS = """
recipe = "gui-actor"
[tasks]
file = "tasks.toml"
[env]
backend = "miniwob"
slots = 2
miniwob.call_timeout_s = 120.0
[warmup]
steps = 20
width = 64
"""

pytestmark = [
    pytest.mark.timeout(1800),
    pytest.mark.skipif(not MODEL.is_file(), reason="no environment .venv/model (make setup)"),
]


@pytest.fixture(scope="module")
def deployment(tmp_path_factory) -> Path:
    """A deployment's file, with its tasks beside it."""
    place = tmp_path_factory.mktemp("deployment")
    (place / "tasks.toml").write_text(TASKS)
    file = place / "actor.toml"
    file.write_text(SETTINGS)
    return file


@pytest.fixture(scope="module")
def examples(deployment: Path) -> list[screens.TargetScreen]:
    """The screens of the deployment's pages in Chromium."""
    known = tasks.load(deployment.with_name("tasks.toml"))
    return asyncio.run(screens.collect(load(deployment), [*known.demonstration, *known.heldout]))


@contextlib.contextmanager
def served(weights: Path) -> Iterator[str]:
    """Serve the head from the model's environment; yield the address."""
    port = free_port()
    command = [MODEL, "-m", "dart_recipes.gui_actor.serve", weights, "--port", str(port)]
    process = subprocess.Popen([str(part) for part in command], cwd=ROOT)
    try:
        wait_until(lambda: is_listening(port), "the endpoint", START_S)
        yield f"http://127.0.0.1:{port}/v1"
    finally:
        process.send_signal(signal.SIGINT)
        process.wait(START_S)


def is_listening(port: int) -> bool:
    with socket.socket() as client:
        return client.connect_ex(("127.0.0.1", port)) == 0


def test_the_box_is_that_of_the_element_that_the_oracle_clicks(examples):
    assert {example.page for example in examples} == {"miniwob/click-test", "miniwob/enter-text"}, "no drawing"
    assert all(contains(example.box, example.click) for example in examples)
    fields = [example.box for example in examples if example.page == "miniwob/enter-text"]
    assert all(bottom - top < 30 < right - left for left, top, right, bottom in fields), "a text field, not the page"


def test_a_run_is_evaluated_with_the_head(services, deployment, examples, tmp_path):
    file, weights = tmp_path / "screens.msgpack", tmp_path / "head"
    file.write_bytes(msgspec.msgpack.encode(examples))
    measure = [MODEL, "-m", "benchmarks.recipes.gui_actor", deployment, file, "--seeds", "0"]
    command = [str(part) for part in (*measure, "--save", weights)]
    measured = json.loads(subprocess.run(command, cwd=ROOT, capture_output=True, check=True).stdout)
    assert (measured["demonstrations"], measured["heldout"]) == (50, 6)
    with served(weights) as url:
        config = evaluating(services, tmp_path, deployment, url)
        made = folder.create(config, deployment.with_name("tasks.toml"), folder.new_id(), resume=False)
        session = session_of(made, Console(file=io.StringIO(), width=160))
        session.processes = msgspec.structs.replace(session.processes, trainer=())
        asyncio.run(session.run())
    report = json.loads((made.path / "report.json").read_text())
    assert report["evaluation"]["before"]["episodes"] == EPISODES and report["lost"] == 0
    bus = made.config().bus
    played = [event for event in read_events(bus, [trajectories.TOPIC]) if event.purpose == "eval"]
    assert {event.outcome for event in played} <= {"success", "failure", "truncated"}
    seen = [event for event in read_events(bus, [observations.TOPIC]) if event.order.purpose == "eval"]
    taken = [event.taken for event in seen if event.taken is not None]
    assert len(taken) >= len(played) == EPISODES
    assert all(isinstance(parse(action.text), Click) and not action.tokens for action in taken)


def evaluating(services, tmp_path: Path, deployment: Path, url: str) -> Config:
    """Return the recipe's configuration on the session's services."""
    base = circle_config(services, tmp_path, episodes=EPISODES, minutes=0.0)
    own, replace = load(deployment), msgspec.structs.replace
    openai = replace(own.rollout.openai, base_url=url)
    return replace(
        own,
        bus=base.bus,
        store=base.store,
        run=base.run,
        env=replace(own.env, request_timeout_s=START_S, episode_timeout_s=START_S),
        evaluation=replace(base.evaluation, timeout_s=START_S),
        rollout=replace(own.rollout, openai=openai),
    )
