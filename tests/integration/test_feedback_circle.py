"""A circle of processes that is given feedback from the command line, with each kind of process killed meanwhile."""

import asyncio
import io
from collections.abc import Collection
from pathlib import Path

import msgspec
import psutil
import pytest
from rich.console import Console

import topics
from dart_streams.config import Config, FeedbackRules
from dart_streams.console.launch.session import Session
from dart_streams.console.launch.training_run import trained_steps
from dart_streams.console.runs import run_folder as folder
from dart_streams.console.runs.run_log import read_events, read_log
from dart_streams.console.runs.run_state import RunState
from tests.command_line import invoke, invoke_json
from tests.integration.test_circle import HERE, STAND_IN, circle_config, session_of, turning, until
from tests.processes import marked
from tests.waiting import wait_until
from topics import trajectories

GIVEN = 4
"""Corrections, and as many judgements."""
KINDS = ("curator-0", "trainer", "recorder-0", "env-0", "rollout-0", "monitor-0")

pytestmark = pytest.mark.timeout(600)


def feedback_config(services, tmp_path: Path) -> Config:
    """Return a circle that trains on feedback."""
    base = circle_config(services, tmp_path, episodes=0, train_steps=40)
    return msgspec.structs.replace(base, feedback=FeedbackRules(enabled=True))


def is_learned(state: RunState) -> bool:
    """Return whether optimizer steps took each correction."""
    corrected = [name for name, (group, _) in state.groups.items() if group.feedback and group.members[0].corrections]
    return sum(name in state.trained_with for name in corrected) >= GIVEN


def worker_of(made_run: folder.RunFolder, name: str) -> psutil.Process | None:
    """Return a process of a run, without the one that keeps it; None while it restarts."""
    mark = STAND_IN if name == "trainer" else f"--id {name}"
    ours = marked(psutil.Process().children(recursive=True), str(made_run.config_file))
    return next(iter(marked(ours, mark)), None)


def kill(made_run: folder.RunFolder, names: Collection[str]) -> None:
    """Kill processes of a run, and wait until each is gone."""
    for name in names:
        process = wait_until(lambda name=name: worker_of(made_run, name), name)
        process.kill()
        process.wait(30)


def give(made_run: folder.RunFolder, config: Config) -> None:
    """Correct and judge the first rollouts: the curator is killed before, and each kind of process after."""
    found: list[str] = []

    def have_ended() -> bool:
        ended = [event for event in read_events(config.bus, [trajectories.TOPIC]) if event.purpose == "train"]
        found[:] = [event.trajectory_id for event in ended if event.steps and event.reward is not None]
        return len(found) >= GIVEN

    wait_until(have_ended, "rollouts to judge")
    options = ("--run", made_run.id, "--state", config.run.state_dir, "--author", "ann")
    kill(made_run, ["curator-0"])
    for name in found[:GIVEN]:
        for said in (("correct", name, 0, "click(start_box='(3,4)')"), ("judge", name, "good")):
            done = invoke("feedback", *said, *options)
            assert done.exit_code == 0, done.output
    kill(made_run, KINDS)


async def play(made_run: folder.RunFolder, config: Config) -> None:
    """Run the circle, and give feedback once it has rollouts."""
    session: Session = until(session_of(made_run, Console(file=io.StringIO(), width=160)), is_learned)
    async with turning(session, made_run):
        await asyncio.to_thread(give, made_run, config)


def test_feedback_is_trained_on_though_each_process_is_killed(services, tmp_path):
    config = feedback_config(services, tmp_path)
    made_run = folder.create(config, HERE / "circle-tasks.toml", folder.new_id(), resume=False)
    config = made_run.config()
    asyncio.run(play(made_run, config))

    killed = {death.process for death in made_run.journal().deaths if death.reason == "killed by SIGKILL"}
    assert killed == set(KINDS)
    state = RunState().fold(read_log(config.bus, topics.ALL))
    assert trained_steps(state) >= 1
    groups = {group_id: group for group_id, (group, _) in state.groups.items() if group.feedback}
    corrected = [group for group in groups.values() if group.members[0].corrections]
    assert len(corrected) == GIVEN, "none is lost, and none comes twice"
    rows = invoke_json("feedback", "list", "--run", made_run.id, "--state", tmp_path)
    corrections = [row for row in rows if row["kind"] == "correction"]
    assert (len(rows), {row["state"] for row in corrections}) == (2 * GIVEN, {"trained"})
    for row in corrections:
        step = state.trained[row["train_step"]]
        assert f"feedback-{row['id']}" in step.feedback and step.version == row["version"]
    assert not {group_id for step in state.trained.values() for group_id in step.group_ids} & groups.keys()

    path = tmp_path / "run.dart"
    assert invoke("capture", made_run.id, "--state", tmp_path, "-o", path).exit_code == 0
    again = invoke_json("replay", path)
    assert again["equal"] is True
    assert {count["agent"]: count["bytes_compared"] > 0 for count in again["agents"]}["feedback"]
    trace = invoke_json("trace", corrections[0]["trajectory"], "--run", made_run.id, "--state", tmp_path)
    assert corrections[0]["id"] in str(trace)
