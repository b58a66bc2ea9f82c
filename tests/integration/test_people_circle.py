"""One circle of processes whose page people watch, who judge, correct and take over; each kind of process is killed."""

import asyncio
import contextlib
import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import psutil
import pytest
from rich.console import Console

import topics
from console.launch.training_run import trained_steps
from console.runs import run_folder as folder
from console.runs.run_log import read_events, read_log
from console.runs.run_state import RunState
from dart_streams.config import Config, FeedbackRules, Ui
from dart_streams.episodes.trajectory_summary import is_whole, summarize
from tests.command_line import invoke, invoke_json
from tests.integration.exported_page import answers
from tests.integration.live_run import GROUPS, RUN_S, committing, feedback_page, kill, page_process, watch
from tests.integration.page_browser import tab
from tests.integration.people import judge_and_correct, read_steps, take_over_three
from tests.integration.test_circle import circle_config, session_of, turning, until
from tests.page.test_page import SHOTS
from tests.task_files import write_tasks
from tests.waiting import wait_until
from topics import feedback, trajectories

GIVEN = 2
"""Corrections from the command line, and as many judgements."""
ON_THE_PAGE = 2
KINDS = ("curator-0", "trainer", "recorder-0", "env-0", "rollout-0", "monitor-0")

pytestmark = pytest.mark.timeout(900)


def slow_config(services, tmp_path: Path) -> Config:
    """Return a circle of simulated pages whose policy thinks long enough for people, and often clicks beside.

    At its end it waits for no rollout.
    """
    rest = {"demonstrate": False, "minutes": 12.0, "settle_s": 0.5, "drain_s": 4.0}
    base = circle_config(services, tmp_path, episodes=0, **rest)
    replace = msgspec.structs.replace
    scripted = replace(base.rollout.scripted, latency_ms=2000.0, success_rate=0.9)
    return replace(
        base,
        rollout=replace(base.rollout, scripted=scripted),
        env=replace(base.env, episode_timeout_s=300.0),
        curation=replace(base.curation, budget=replace(base.curation.budget, base=4)),
        trainer=replace(base.trainer, groups_per_step=1),
        feedback=FeedbackRules(enabled=True),
        ui=Ui(port=0),
    )


class Played(NamedTuple):
    """The run that is over, and what people did in it: rollouts by what became of them."""

    made: folder.RunFolder
    shown: str
    groups: set[str]
    on_the_page: list[str]
    solved: str
    left: str
    lost: str
    at_the_terminal: list[str]
    state: RunState
    report: dict[str, Any]

    @property
    def run(self) -> tuple[str, ...]:
        return "--run", self.made.id, "--state", self.made.config().run.state_dir


def give(made: folder.RunFolder, but: list[str]) -> list[str]:
    """Correct and judge rollouts of the policy: the curator is killed before, and each kind of process after."""
    found: list[str] = []

    def have_ended() -> bool:
        ended = [event for event in read_events(made.config().bus, [trajectories.TOPIC]) if event.purpose == "train"]
        own = [event for event in ended if event.steps and event.reward is not None and not event.person_steps]
        found[:] = [event.trajectory_id for event in own if event.trajectory_id not in but]
        return len(found) >= GIVEN

    wait_until(have_ended, "rollouts to judge")
    options = ("--run", made.id, "--state", made.config().run.state_dir, "--author", "ann")
    kill(made, ["curator-0"])
    for name in found[:GIVEN]:
        for said in (("correct", name, 0, "click(start_box='(3,4)')"), ("judge", name, "good")):
            done = invoke("feedback", *said, *options)
            assert done.exit_code == 0, done.output
    kill(made, KINDS)
    return found[:GIVEN]


def is_learned(state: RunState) -> bool:
    """Return whether optimizer steps took each correction, and what a person solved."""
    corrected = [name for name, (group, _) in state.groups.items() if group.feedback and group.members[0].corrections]
    shown = [name for name in state.groups if name.startswith("take-over-")]
    taken = sum(name in state.trained_with for name in corrected)
    return taken >= GIVEN + ON_THE_PAGE and any(state.trained_with.get(name) for name in shown)


def listeners() -> Iterator[tuple[str, str]]:
    """Yield the command and the address of each listener among the processes that this one started."""
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):
            found = process.net_connections("tcp")
            yield from ((" ".join(process.cmdline()), one.laddr.ip) for one in found if one.status == "LISTEN")


async def play(made: folder.RunFolder, place: Path) -> tuple[Any, ...]:
    """Let people watch the run, then give feedback on it, take its rollouts over, and kill its processes."""
    shown, done = io.StringIO(), asyncio.Event()
    session = until(session_of(made, Console(file=shown, width=160)), lambda state: done.is_set() and is_learned(state))
    async with turning(session, made):
        async with tab(SHOTS) as page:
            await watch(made, page)
            assert page.errors == []
        places = {name: place for name, place in listeners() if place != "127.0.0.1"}
        assert places == {}, "each kind of process listens on loopback only"
        groups = await committing(made)
        page_process(made).kill()
        await asyncio.to_thread(wait_until, lambda: "ui died" in shown.getvalue(), "the end of the page", RUN_S)
        with feedback_page(made, place / "ui.json") as address:
            judged = await judge_and_correct(made, address)
            taken = await take_over_three(made, address["feedback_url"])
        given = await asyncio.to_thread(give, made, [*judged, *taken])
        done.set()
    return made, shown.getvalue(), groups, judged, *taken, given


@pytest.fixture(scope="module")
def played(services, tmp_path_factory) -> Played:
    place = tmp_path_factory.mktemp("people")
    tasks = Path(write_tasks(place, "steps-8", max_steps=12, train=(3, 4))["file"])
    made = folder.create(slow_config(services, place), tasks, folder.new_id(), resume=False)
    done = asyncio.run(play(made, place))
    state = RunState().fold(read_log(made.config().bus, topics.ALL))
    return Played(*done, state, json.loads((made.path / "report.json").read_text()))


def test_a_run_is_watched_while_it_turns_and_outlives_its_page(played: Played):
    assert played.groups == GROUPS, "the page is in no group and commits nothing"
    assert played.report["train_steps"] >= 2
    kept = answers(played.made.path / "report.html")
    steps = len(kept["steps?"]["steps"])
    assert steps == played.report["train_steps"], "the file has each optimizer step, as the page had"
    assert any(task["success_rate"] is not None for task in kept["tasks?"])
    assert kept["run?"]["header"]["phase_ms"] is None, "what has ended counts no more time"
    assert "watch it at http://127.0.0.1:" in played.shown


def test_deaths_of_every_kind_of_process_are_in_the_report(played: Played):
    deaths = {one["process"]: one for one in played.report["deaths"] if one["reason"] == "killed by SIGKILL"}
    assert deaths.keys() >= set(KINDS)
    twice = {"curator-0", "env-0"}
    for name in KINDS:
        assert (deaths[name]["times"], deaths[name]["restarts"]) == (1 + (name in twice),) * 2, name
    assert answers(played.made.path / "report.html")["report?"]["report"] == played.report


def test_a_run_ends_in_order_though_episodes_take_longer_than_it_waits(played: Played):
    assert (played.report["outcome"], played.report["lost"]) == ("complete", 0)
    assert played.report["open"] >= 1
    assert "training orders have not finished" in played.shown


def test_a_person_judges_and_corrects_a_run_with_mouse_and_keys(played: Played):
    first, second = played.on_the_page
    given = read_events(played.made.config().bus, [feedback.TOPIC])
    own = [one for one in given if one.trajectory_id in (first, second)]
    assert [(one.trajectory_id, one.kind, one.judgement or one.action, one.step, one.note) for one in own] == [
        (first, "judgement", "good", None, ""),
        (first, "correction", "click(start_box='(42,112)')", 0, ""),
        (second, "correction", "type(content='3')", 0, "3 is right"),
        (second, "note", "", 0, "the label is cut"),
        (second, "judgement", "partial", None, ""),
    ]


def test_feedback_is_trained_on_though_each_process_is_killed(played: Played):
    state = played.state
    assert trained_steps(state) >= 1
    groups = {group_id: group for group_id, (group, _) in state.groups.items() if group.feedback}
    corrected = [group for group in groups.values() if group.members[0].corrections]
    assert len(corrected) == GIVEN + ON_THE_PAGE, "none is lost, and none comes twice"
    rows = invoke_json("feedback", "list", *played.run)
    assert sum(row["trajectory"] in played.at_the_terminal for row in rows) == 2 * GIVEN
    corrections = [row for row in rows if row["kind"] == "correction"]
    assert [row["state"] for row in corrections] == ["trained"] * (GIVEN + ON_THE_PAGE)
    for row in corrections:
        step = state.trained[row["train_step"]]
        assert f"feedback-{row['id']}" in step.feedback and step.version == row["version"]
    assert not {group_id for step in state.trained.values() for group_id in step.group_ids} & groups.keys()
    trace = invoke_json("trace", corrections[0]["trajectory"], *played.run)
    assert corrections[0]["id"] in str(trace)


def test_what_people_take_over_is_marked_as_theirs(played: Played):
    config = played.made.config()
    steps = read_steps(config, played.solved)
    summary = summarize(steps)
    assert (summary.outcome, len(summary.take_overs), summary.purpose) == ("success", 2, "train")
    assert summary.own_steps and summary.own_steps[0] == 0, "the policy acted before the person"
    assert set(summary.own_steps) & set(range(summary.person_steps[0], summary.person_steps[-1])), "and between"
    assert [step for step, one in enumerate(steps[1:]) if not one.taken.tokens] == summary.person_steps
    given_back = summarize(read_steps(config, played.left))
    assert len(given_back.person_steps) == 1
    assert given_back.person_steps[0] < given_back.steps - 1, "the policy went on"
    assert not is_whole(read_steps(config, played.lost))


def test_what_people_solve_is_trained_on_and_credited_to_nobody_else(played: Played):
    state, solved = played.state, played.solved
    learned = {name.removeprefix("take-over-") for name in state.groups if name.startswith("take-over-")}
    succeeded = {name for name, one in state.trajectories.items() if one.person_steps and one.outcome == "success"}
    assert learned == succeeded and solved in learned and played.lost not in learned
    assert (played.left in learned) == (state.trajectories[played.left].outcome == "success")
    shown, _ = state.groups[f"take-over-{solved}"]
    own = state.trajectories[solved].person_steps
    assert (shown.members[0].trajectory_id, shown.members[0].selected) == (solved, own)
    assert state.trained_with[shown.group_id]
    rows = invoke_json("feedback", "list", *played.run)
    fates = {row["state"] for row in rows if row["trajectory"] == solved and row["kind"] == "take-over"}
    assert fates == {"trained"}
    members = [member for group, _ in state.groups.values() for member in group.members if member.source == "online"]
    for member in members:
        known = state.trajectories.get(member.trajectory_id)
        assert known is None or not set(member.selected) & set(known.person_steps)


def test_a_run_with_people_decides_again_as_it_decided(played: Played, tmp_path: Path):
    path = tmp_path / "run.dart"
    assert invoke("capture", played.made.id, *played.run[2:], "-o", path).exit_code == 0
    again = invoke_json("replay", path)
    assert again["equal"] is True
    assert {count["agent"]: count["bytes_compared"] > 0 for count in again["agents"]}["feedback"]
