"""A circle of processes that trains on proposed pages alone, which the command line proposes to the run under way."""

import asyncio
import functools
import io
import json
from pathlib import Path

import msgspec
import pytest
from rich.console import Console

import topics
from dart_streams.bus import dead_letters
from dart_streams.bus.codec import find_header
from dart_streams.config import Bus, Config
from dart_streams.console.launch.training_run import trained_steps
from dart_streams.console.runs import run_folder as folder
from dart_streams.console.runs.run_log import read_log
from dart_streams.console.runs.run_state import RunState
from tests.command_line import invoke, invoke_json
from tests.integration.test_circle import circle_config, session_of, until
from tests.integration.test_proposed_pages import broken, made
from tests.topic_reader import read_dead_letters
from tests.waiting import wait_until
from topics import task_verdicts, tasks

GOOD = 5
FAULTY = ("nan", "loops")
FAILING = ("always-1", "half", "never-1")
CHECKS = GOOD + len(FAILING) + 3 * len(FAULTY)
PROPOSALS = GOOD + len(FAILING) + len(FAULTY) + 1
"""With one whose verdict needs no check."""

pytestmark = pytest.mark.timeout(600)


def browser_config(services, tmp_path: Path) -> Config:
    """Return a circle that plays pages in a browser, answered at random, without training tasks of its own."""
    base = circle_config(services, tmp_path, episodes=0, train_steps=2)
    replace = msgspec.structs.replace
    curation = replace(
        base.curation,
        pool=replace(base.curation.pool, enabled=False),
        budget=replace(base.curation.budget, base=4),
    )
    return replace(
        base,
        tasks=replace(base.tasks, proposals=True),
        env=replace(base.env, backend="miniwob", slots=4, miniwob=replace(base.env.miniwob, call_timeout_s=10.0)),
        rollout=replace(base.rollout, scripted=replace(base.rollout.scripted, behaviour="random")),
        curation=curation,
        trainer=replace(base.trainer, groups_per_step=2),
    )


def task_file(tmp_path: Path) -> Path:
    """Write a task file with held-out tasks only."""
    path = tmp_path / "heldout-tasks.toml"
    path.write_text(
        '[[pages]]\nenvironment = "miniwob"\npage = "click-test"\nmax_steps = 5\n'
        "train_seeds = [0, 0]\nheldout_seeds = [100, 102]\n"
    )
    return path


def proposal_file(tmp_path: Path) -> Path:
    """Write good and broken proposals, and a second one of an id."""
    proposed = [*made(GOOD), *map(broken, (*FAILING, *FAULTY))]
    proposed += [msgspec.structs.replace(proposed[0], max_steps=2)]
    proposed += [msgspec.structs.replace(proposed[1], task_id="miniwob/long#0", max_steps=99)]
    path = tmp_path / "made.jsonl"
    path.write_bytes(b"\n".join(map(msgspec.json.encode, proposed)))
    return path


def have_ended(bus: Bus, state: RunState) -> bool:
    """Return whether all checks have ended with a verdict, which a session does not follow, and the run has trained."""
    checks = [one for one in state.finished.values() if one.purpose == "check"]
    if len(checks) < CHECKS or trained_steps(state) < 2:
        return False
    return len(list(read_log(bus, [task_verdicts.TOPIC]))) >= PROPOSALS


async def play(made_run: folder.RunFolder, config: Config, proposed: Path) -> None:
    """Run the circle, and propose tasks once it has topics."""
    enough = functools.partial(have_ended, made_run.config().bus)
    session = until(session_of(made_run, Console(file=io.StringIO(), width=160)), enough)
    running = asyncio.create_task(session.run())
    await asyncio.to_thread(wait_until, lambda: made_run.topics_file.exists() or running.done(), "the topics")
    state = config.run.state_dir
    done = await asyncio.to_thread(invoke, "propose", proposed, "--run", made_run.id, "--state", state)
    assert done.exit_code == 0, done.output
    await running


def test_a_circle_trains_on_accepted_tasks_alone(services, tmp_path):
    config = browser_config(services, tmp_path)
    made_run = folder.create(config, task_file(tmp_path), folder.new_id(), resume=False)
    asyncio.run(play(made_run, config, proposal_file(tmp_path)))
    config = made_run.config()
    accepted = {task.task_id for task in made(GOOD)}
    refused = {f"miniwob/{name}#0" for name in (*FAILING, *FAULTY)} | {"miniwob/long#0"}

    report = json.loads((made_run.path / "report.json").read_text())
    assert report["proposals"] == {"accepted": GOOD, "refused": len(refused), "waiting": 0}
    assert (report["lost"], report["deaths"]) == (0, [])
    state = RunState().fold(read_log(config.bus, topics.ALL))
    assert {name for name, verdict in state.verdicts.items() if verdict.accepted} == accepted
    assert {order.task_id for order, _ in state.orders.values() if order.purpose == "train"} <= accepted
    curated = [group for group, _ in state.groups.values()]
    assert len(curated) >= 4 and {group.task_id for group in curated} <= accepted
    assert trained_steps(state) >= 2

    rows = {row["task"]: row for row in invoke_json("tasks", "--proposed", "--run", made_run.id, "--state", tmp_path)}
    assert {name for name, row in rows.items() if row["state"] == "refused"} == refused
    assert "the start is worth 1, not 0" in rows["miniwob/always-1#0"]["reason"]
    letters = asyncio.run(read_dead_letters(config, tasks.TOPIC, len(refused) + 1))
    reasons = {letter.key.decode(): find_header(letter.headers, dead_letters.ERROR).decode() for letter in letters}
    assert {name: reasons[name] for name in refused} == {name: rows[name]["reason"] for name in refused}
    assert "another proposal has this id" in reasons[next(iter(reasons.keys() - refused))]
    originals = {letter.key.decode(): letter.value for letter in letters}
    assert msgspec.json.decode(originals["miniwob/nan#0"], type=tasks.ProposedTask) == broken("nan")

    path = tmp_path / "run.dart"
    assert invoke("capture", made_run.id, "--state", tmp_path, "-o", path).exit_code == 0
    again = invoke_json("replay", path)
    assert again["equal"] is True
    assert {count["agent"]: count["bytes_compared"] > 0 for count in again["agents"]}["proposals"]
    variants = invoke_json("replay", path, "--set", "curation.budget.base=3")
    assert all(variant["rollouts_ended"] > 0 for variant in variants)
