"""One circle that plays pages in a real browser: it trains on what is proposed to it, and on what a person shows."""

import asyncio
import io
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import pytest
from rich.console import Console

import topics
from console.runs import run_folder as folder
from console.runs.run_log import read_events, read_log
from console.runs.run_state import RunState
from dart_streams.bus import dead_letters
from dart_streams.bus.codec import find_header
from dart_streams.config import Config
from dart_streams.store import SyncStore, connect
from tests.command_line import invoke, invoke_json
from tests.integration.sitting import LEASE_S, SHOWN, Sitting, solutions
from tests.integration.test_circle import circle_config, session_of, turning, until
from tests.integration.test_proposed_pages import broken, made
from tests.task_files import write_tasks
from tests.topic_reader import read_dead_letters
from topics import action_requests, observations, task_verdicts, tasks
from topics.observations import Observation

GOOD = 5
FAULTY = ("nan", "loops")
FAILING = ("always-1", "half", "never-1")
CHECKS = GOOD + len(FAILING) + 3 * len(FAULTY)
PROPOSALS = GOOD + len(FAILING) + len(FAULTY) + 1
"""With one whose verdict needs no check."""
ACCEPTED = {task.task_id for task in made(GOOD)}
REFUSED = {f"miniwob/{name}#0" for name in (*FAILING, *FAULTY)} | {"miniwob/long#0"}
TRAINED = 2
"""Groups of proposed tasks that the run trains on at least."""

pytestmark = pytest.mark.timeout(1500)


def browser_config(services, tmp_path: Path) -> Config:
    """Return a circle that plays pages in a browser, answered at random, without demonstrations of its own."""
    base = circle_config(services, tmp_path, episodes=0, demonstrate=False, minutes=20.0)
    replace = msgspec.structs.replace
    return replace(
        base,
        tasks=replace(base.tasks, proposals=True),
        env=replace(base.env, backend="miniwob", slots=4, miniwob=replace(base.env.miniwob, call_timeout_s=30.0)),
        rollout=replace(base.rollout, scripted=replace(base.rollout.scripted, behaviour="random")),
        curation=replace(base.curation, budget=replace(base.curation.budget, base=4)),
        trainer=replace(base.trainer, groups_per_step=1),
    )


def proposal_file(tmp_path: Path) -> Path:
    """Write good and broken proposals, and a second one of an id."""
    proposed = [*made(GOOD), *map(broken, (*FAILING, *FAULTY))]
    proposed += [msgspec.structs.replace(proposed[0], max_steps=2)]
    proposed += [msgspec.structs.replace(proposed[1], task_id="miniwob/long#0", max_steps=99)]
    path = tmp_path / "made.jsonl"
    path.write_bytes(b"\n".join(map(msgspec.json.encode, proposed)))
    return path


def trained_groups(state: RunState) -> list[Any]:
    return [group for name, (group, _) in state.groups.items() if state.trained_with.get(name)]


class Played(NamedTuple):
    """The run that is over: what the page said of each end, its folded log, its report, and people's episodes."""

    run: folder.RunFolder
    said: list[str]
    state: RunState
    report: dict[str, Any]
    people: Mapping[str, list[Observation]]
    bundle: Path

    @property
    def options(self) -> tuple[str, ...]:
        return "--run", self.run.id, "--state", self.run.config().run.state_dir


async def play(sitting: Sitting, proposed: Path) -> list[str]:
    """Run the circle until it has trained on what was proposed and shown; return what the page said of the ends."""
    bus, done = sitting.made.config().bus, asyncio.Event()

    def is_learned(state: RunState) -> bool:
        """Return whether all is trained on, and checks have verdicts, which a session does not follow."""
        trained = trained_groups(state)
        taken = [one.trajectory_id for group in trained for one in group.members if one.source == "pool"]
        if not (done.is_set() and {state.trajectories[one].task_id for one in taken} >= set(SHOWN)):
            return False
        checks = [one for one in state.finished.values() if one.purpose == "check"]
        if len(checks) < CHECKS or sum(group.task_id in ACCEPTED for group in trained) < TRAINED:
            return False
        return len(list(read_log(bus, [task_verdicts.TOPIC]))) >= PROPOSALS

    session = until(session_of(sitting.made, Console(file=io.StringIO(), width=160)), is_learned)
    async with turning(session, sitting.made):
        state = sitting.made.config().run.state_dir
        given = await asyncio.to_thread(invoke, "propose", proposed, "--run", sitting.made.id, "--state", state)
        assert given.exit_code == 0, given.output
        said = [await sitting.show(name, solution) for name, solution in (await solutions()).items()]
        said.append(await sitting.try_gestures())
        await sitting.leave_and_die()
        done.set()
    return said


def people_of(config: Config) -> dict[str, list[Observation]]:
    """Return the observations of people's episodes, by trajectory."""
    found: dict[str, list[Observation]] = {}
    for one in read_events(config.bus, [observations.TOPIC]):
        if one.order.lease is not None:
            found.setdefault(one.trajectory_id, []).append(one)
    return found


@pytest.fixture(scope="module")
def played(services, tmp_path_factory) -> Played:
    place = tmp_path_factory.mktemp("browser")
    seeds = {"train": (3, 4), "heldout": (100, 101)}
    shown = write_tasks(place, "enter-text", "drag-box", environment="miniwob", max_steps=8, **seeds)
    run = folder.create(browser_config(services, place), Path(shown["file"]), folder.new_id(), resume=False)
    said = asyncio.run(play(Sitting(run, place), proposal_file(place)))
    state = RunState().fold(read_log(run.config().bus, topics.ALL))
    report = json.loads((run.path / "report.json").read_text())
    assert invoke("capture", run.id, "--state", place, "-o", place / "run.dart").exit_code == 0
    return Played(run, said, state, report, people_of(run.config()), place / "run.dart")


def test_nothing_is_lost_and_the_decisions_are_made_again(played: Played):
    assert (played.report["lost"], played.report["open"], played.report["deaths"]) == (0, 0, [])
    again = invoke_json("replay", played.bundle)
    assert again["equal"] is True
    assert {count["agent"]: count["bytes_compared"] > 0 for count in again["agents"]}["proposals"]
    variants = invoke_json("replay", played.bundle, "--set", "curation.budget.base=3")
    assert all(variant["rollouts_ended"] > 0 for variant in variants)


def test_of_proposed_tasks_a_circle_trains_on_the_accepted_ones_alone(played: Played):
    state = played.state
    assert played.report["proposals"] == {"accepted": GOOD, "refused": len(REFUSED), "waiting": 0}
    assert {name for name, verdict in state.verdicts.items() if verdict.accepted} == ACCEPTED
    ordered = {order.task_id for order, _ in state.orders.values() if order.purpose == "train"}
    curated = {group.task_id for group, _ in state.groups.values()}
    assert ordered <= ACCEPTED | set(SHOWN) and curated <= ordered
    assert sum(group.task_id in ACCEPTED for group in trained_groups(state)) >= TRAINED


def test_refused_proposals_are_dead_letters_with_the_reason(played: Played):
    rows = {row["task"]: row for row in invoke_json("tasks", "--proposed", *played.options)}
    assert {name for name, row in rows.items() if row["state"] == "refused"} == REFUSED
    assert "the start is worth 1, not 0" in rows["miniwob/always-1#0"]["reason"]
    letters = asyncio.run(read_dead_letters(played.run.config(), tasks.TOPIC, len(REFUSED) + 1))
    reasons = {letter.key.decode(): find_header(letter.headers, dead_letters.ERROR).decode() for letter in letters}
    assert {name: reasons[name] for name in REFUSED} == {name: rows[name]["reason"] for name in REFUSED}
    assert "another proposal has this id" in reasons[next(iter(reasons.keys() - REFUSED))]
    originals = {letter.key.decode(): letter.value for letter in letters}
    assert msgspec.json.decode(originals["miniwob/nan#0"], type=tasks.ProposedTask) == broken("nan")


def test_each_end_of_a_persons_episode_is_what_the_page_said(played: Played):
    assert [text.partition(",")[0] for text in played.said] == ["success", "success", "failure"]
    in_order = sorted(played.people.values(), key=lambda one: one[0].at_ms)
    lost = ("policy_error", f"the person was lost: no action and no sign of life for {LEASE_S} s")
    ends = [(one[-1].end.kind, one[-1].end.reason) for one in in_order]
    ends = [end for end in ends if end[0] != "env_error"]  # Of pages that loaded too late; people began again.
    assert ends == [("success", ""), ("success", ""), ("failure", "call_user"), lost, lost]


def test_what_a_person_does_is_stored_as_actions_without_tokens(played: Played):
    config = played.run.config()
    session = connect(config.store)
    stored = SyncStore(session, config.bus.run, 1).steps_many(sorted(played.people))
    session.cluster.shutdown()
    for identity, one in played.people.items():
        assert stored[identity] == one, "all is durable"
        assert one[0].order.purpose == "demonstration"
        acted = [step for step in one[1:] if step.taken is not None]  # not the end of a lost person
        for number, step in enumerate(acted):
            assert step.taken.request_id == f"{identity}/{number}/0"
            assert (step.taken.tokens, step.taken.versions) == ([], [])
            assert step.taken.generate_ms > 0, "the time that the person took"
    shown = {one[0].order.task_id: one for one in played.people.values() if one[-1].end.kind == "success"}
    typed = [step.taken.action for step in shown[SHOWN[0]][1:]]
    assert [text.partition("(")[0] for text in typed] == ["Action: click", "Action: type", "Action: click"]
    assert any("drag(" in step.taken.action for step in shown[SHOWN[1]][1:])
    [tried] = [one for one in played.people.values() if one[-1].end.reason == "call_user"]
    names = [step.taken.action.removeprefix("Action: ").partition("(")[0] for step in tried[1:]]
    assert names == ["left_double", "right_single", "scroll", "hotkey", "hotkey", "wait", "move", "call_user"]
    asked = {one.trajectory_id for one in read_events(config.bus, [action_requests.TOPIC])}
    assert asked and not asked & played.people.keys(), "no rollout worker was asked for a person's action"


def test_what_a_person_shows_is_trained_on(played: Played):
    members = [one for group in trained_groups(played.state) for one in group.members]
    pooled = {one.trajectory_id for one in members if one.source == "pool"}
    shown = {name for name, one in played.people.items() if one[-1].end.kind == "success"}
    assert len(shown) == 2 and shown <= pooled
