"""The whole circle as real processes under the real supervisor, with scripted answers and simulated screens."""

import asyncio
import contextlib
import io
import json
import os
import subprocess
import sys
import uuid
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import msgspec
import psutil
import pytest
from rich.console import Console

import topics
from benchmarks.private_services import private_folder
from console.bundles.bundle_inputs import bundle_events
from console.launch import process_registry as leftovers
from console.launch import processes
from console.launch.run_start import write_report
from console.launch.services import local
from console.launch.services.daemon import free_port
from console.launch.session import Session
from console.launch.supervisor import ProcessSpec, Supervisor
from console.launch.training_run import TrainingRun
from console.lineage.traces import Timeline, lines_in
from console.repair.projection import COLUMNS
from console.runs import run_folder as folder
from console.runs import run_log
from console.runs.bundle import Bundle, Writer
from console.runs.metrics_reader import MetricsReader
from console.runs.run_log import read_log
from console.runs.run_state import RunState
from dart_data.sft_set import AnswerLimits, prepare
from dart_streams import config as configuration
from dart_streams.bus import admin
from dart_streams.config import Bus, Config, Run, Services
from dart_streams.config.hardware import read_machine
from dart_streams.errors import UserError
from dart_streams.telemetry import names, spans
from dart_streams.telemetry.names import BY_NAME
from dart_streams.version import VERSION
from tests.command_line import invoke
from tests.integration import page_answers
from tests.integration.exported_page import answers, screens
from tests.processes import command_of
from tests.stored_rows import cluster_of
from tests.waiting import wait_until
from topics import ALL, action_requests, curated, rollout_orders, trajectories

HERE = Path(__file__).parent
STAND_IN = "benchmarks.stand_in_trainer"
BOUND_S = 120.0
MINUTES = 6.0
DRAIN_S = 60.0
EXPLORED = 6
"""Explorations of each page."""

pytestmark = pytest.mark.timeout(600)
"""A run is one test's fixture."""


def circle_config(services, tmp_path: Path, episodes: int = 12, **run) -> Config:
    """Return the configuration of the circle on the session's services.

    Its bounds are those of a machine that does other things at the same time: what ends a run is its steps.
    """
    base, replace = services.serve(configuration.load(HERE / "circle.toml"), tmp_path), msgspec.structs.replace
    return replace(
        base,
        run=replace(base.run, **{"minutes": MINUTES, "drain_s": DRAIN_S, **run}),
        env=replace(base.env, request_timeout_s=BOUND_S),
        evaluation=replace(base.evaluation, episodes=episodes, timeout_s=BOUND_S),
    )


def session_of(made: folder.RunFolder, console: Console) -> Session:
    program = Path(sys.executable).parent / "dart-streams"
    cast = processes.processes_of(made.config(), made.config_file, processes.Programs(program, program))
    stand_in = ProcessSpec("trainer", (sys.executable, "-m", STAND_IN, str(made.config_file)))
    return Session(made, msgspec.structs.replace(cast, trainer=(stand_in,)), write_report, console)


def until(session: Session, enough: Callable[[RunState], bool]) -> Session:
    """Return a session whose training ends when there is enough, however long that takes on this machine."""
    make_run = session.make_run

    def made(supervisor: Supervisor) -> TrainingRun:
        run = make_run(supervisor)
        run.enough = enough
        return run

    session.make_run = made
    return session


@contextlib.asynccontextmanager
async def turning(session: Session, made: folder.RunFolder) -> AsyncIterator[None]:
    """Run a session beside what is done from its topics on, and wait for its end; a failure cancels it."""
    running = asyncio.create_task(session.run())
    try:
        await asyncio.to_thread(wait_until, lambda: made.topics_file.exists() or running.done(), "the topics")
        yield
    except BaseException:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        raise
    await running


def living_below(pid: int) -> list[psutil.Process]:
    return [process for process in psutil.Process(pid).children(recursive=True) if command_of(process)]


class Finished(NamedTuple):
    """A run that is over."""

    made: folder.RunFolder
    shown: str
    left: set[int]

    @property
    def config(self) -> Config:
        return self.made.config()


@pytest.fixture(scope="module")
def finished(services, tmp_path_factory) -> Finished:
    config = circle_config(services, tmp_path_factory.mktemp("circle"))
    evaluation = msgspec.structs.replace(config.evaluation, temperatures=(1.0, 0.0))
    explored = {"gui-bee": {"episodes": EXPLORED, "steps": 4}}
    config = msgspec.structs.replace(
        config, evaluation=evaluation, recipe=("gui-bee", "outcome-model"), recipes=explored
    )
    made = folder.create(config, HERE / "circle-tasks.toml", folder.new_id(), resume=False)
    before = {p.pid for p in living_below(os.getpid())}
    shown = io.StringIO()
    asyncio.run(session_of(made, Console(file=shown, width=160)).run())
    return Finished(made, shown.getvalue(), {p.pid for p in living_below(os.getpid())} - before)


@pytest.fixture(scope="module")
def bundle(finished: Finished) -> Path:
    """The run in one file, with its screenshots and spans."""
    path = finished.made.path / "run.dart"
    done = invoke("capture", finished.made.id, "--state", finished.config.run.state_dir, "-o", str(path), "--blobs")
    assert done.exit_code == 0, done.output
    return path


def answer(*arguments: str, expect: int = 0):
    done = invoke(*arguments, "--json")
    assert done.exit_code == expect, (done.output, done.exception)
    return json.loads(done.stdout)


def test_the_circle_turns_and_loses_nothing(finished: Finished):
    made, config, shown = finished.made, finished.config, finished.shown
    found = json.loads((made.path / "report.json").read_text())
    assert found["lost"] == 0
    assert found["open"] == 0
    assert found["evaluation"]["after"]["version"] >= config.run.train_steps, shown
    # A worker that comes late to a version goes on to the newest one.
    assert found["versions_served"] >= 3, shown
    assert found["staleness"]["max"] <= config.curation.max_staleness
    assert found["failed_loads"] == 0
    assert found["evaluation"]["before"]["episodes"] == found["evaluation"]["after"]["episodes"] == 12
    assert found["trajectories"]["by_outcome"]["success"] > 0
    assert found["trajectories"]["trained"] > 0
    assert found["requests"]["timed_out"] == 0
    assert 0 < found["env_utilisation"] <= 1
    shown_page = answers(made.path / "report.html")
    assert shown_page["report?"]["report"] == found, "the page's file shows the figures of report.json"
    assert found["fault_totals"] == {"env": 0, "policy": 0}
    [start] = found["starts"]
    assert (start["version"], start["machine"]["cores"]) == (VERSION, read_machine().cores)
    assert start["libraries"]["aiokafka"] and start["command"] and start["machine"]["cpu"]
    assert screens(made.path / "report.html"), "of the sample episodes"
    assert not finished.left
    assert leftovers.read(made.path / "processes.json") is None


def test_a_captured_run_decides_again_as_it_decided(finished: Finished, bundle: Path):
    sections = {row["name"]: row for row in answer("capture", str(bundle), "--verify")}
    assert sections["blobs"]["items"] > 0
    assert sections["traces"]["items"] > 0
    again = answer("replay", str(bundle))
    assert again["equal"] is True
    assert all(agent["decisions"] == agent["bytes_compared"] > 0 for agent in again["agents"])


def test_a_worker_answers_a_finished_runs_requests_as_they_were_answered(finished: Finished, bundle: Path):
    run = ("--run", finished.made.id, "--state", finished.config.run.state_dir)
    live = answer("replay", "--requests", *run)
    assert live["equal"] is True, live
    assert sum(version["answers"] for version in live["versions"]) >= live["requests"] > 100
    assert sum(version["generated"] for version in live["versions"]) >= 10, "of the greedy evaluations"
    assert len(live["versions"]) > 3
    assert live["left_out"] == {}
    with admin.connect(finished.config.bus) as client:
        assert not [name for name in client.list_topics() if name.startswith(f"{finished.config.bus.prefix}replay-")]


def test_the_first_answer_that_a_worker_does_not_give_again_is_named(finished: Finished, bundle: Path, tmp_path: Path):
    source, doctored = Bundle(bundle), tmp_path / "doctored.dart"
    asked = {one.event.request_id: one for one in read_log(source, [action_requests.TOPIC])}
    records = list(source.records("actions"))
    answers = [run_log.full_event("actions", record) for record in records]
    places = {
        temperature: next(
            place
            for place, one in enumerate(answers)
            if asked[one.request_id].event.sampling.temperature == temperature
        )
        for temperature in (1.0, 0.0)
    }
    for place in places.values():
        tokens = [answers[place].tokens[0] ^ 1, *answers[place].tokens[1:]]
        value = msgspec.json.encode(msgspec.structs.replace(answers[place], tokens=tokens))
        records[place] = msgspec.structs.replace(records[place], value=value)
    with Writer(doctored, source.manifest) as writer:
        for name in ("config.toml", "tasks.toml"):
            writer.text(name, source.text(name))
        for name in ("action-requests", "weights"):
            writer.records(name, source.records(name))
        writer.records("actions", records)
    config = ("--config", str(finished.made.config_file))
    found = answer("replay", str(doctored), "--requests", *config, expect=1)
    assert sum(version["different"] for version in found["versions"]) == 2
    first = min(places, key=lambda temperature: asked[answers[places[temperature]].request_id].metadata.at_ms)
    wanted = {"request_id": answers[places[first]].request_id, "token": 0}
    wanted |= {"what": "log-probability" if first else "tokens", "version": answers[places[first]].versions[0].version}
    assert wanted.items() <= found["difference"].items()


def test_the_bundle_replays_to_the_same_decisions_without_services(bundle: Path, tmp_path: Path):
    """The bundle's file is all that a replay needs."""
    alone = tmp_path / "run.dart"
    alone.write_bytes(bundle.read_bytes())
    program = [str(Path(sys.executable).parent / "dart-streams"), "replay", alone.name, "--json"]
    bare = {name: value for name, value in os.environ.items() if not name.startswith("DART_")}
    outcomes = [
        json.loads(subprocess.run(program, cwd=tmp_path, env=bare, capture_output=True, check=True, timeout=120).stdout)
        for _ in range(2)
    ]
    assert outcomes[0]["equal"] is True
    assert outcomes[0]["digest"]
    assert outcomes[0] == outcomes[1]
    assert [path.name for path in tmp_path.iterdir()] == [alone.name]


@pytest.mark.parametrize(
    ("name", "labels"),
    [
        (names.MONITOR_LAG, {"group", "topic"}),
        (names.MONITOR_SILENT_S, {"topic"}),
        (names.ENV_SLOTS_BUSY, set()),
        (names.ENV_SLOT_MS, {"state"}),
        (names.ENV_EPISODES, {"outcome", "purpose", "page"}),
        (names.ROLLOUT_QUEUE_MS, set()),
        (names.ROLLOUT_GENERATE_MS, set()),
        (names.ROLLOUT_REQUESTS, {"result"}),
        (names.ROLLOUT_SWITCH_PAUSE_MS, set()),
    ],
)
def test_what_the_dashboard_shows_is_measured(finished: Finished, name: str, labels: set[str]):
    series = MetricsReader(finished.made.path / "metrics").points[name]
    points = [point for one in series.values() for point in one]
    assert points
    assert all(set(point.attributes) == labels for point in points)


def test_a_metric_has_the_attributes_of_its_table(finished: Finished):
    points = MetricsReader(finished.made.path / "metrics").points
    found = {
        name: {key for one in series.values() for point in one for key in point.attributes}
        for name, series in points.items()
    }
    assert len(found) > 30
    assert found == {name: set(BY_NAME[name].attributes) for name in found}


@pytest.mark.parametrize(
    ("span", "wanted"),
    [
        (names.SPAN_REQUEST, {"messaging.operation.type": "send"}),
        (names.SPAN_GENERATE, {"messaging.operation.type": "process", "gen_ai.request.model": "tiny"}),
        (names.SPAN_RECORD, {"messaging.operation.type": "process", "db.collection.name": "steps"}),
    ],
)
def test_a_span_has_the_attributes_of_the_conventions(finished: Finished, span: str, wanted: dict[str, str]):
    topic = {names.SPAN_RECORD: "observations"}.get(span, "action-requests")
    wanted |= {"messaging.system": "kafka", "messaging.destination.name": f"{finished.config.bus.prefix}{topic}"}
    timeline = Timeline(lines_in(finished.made.path / "traces"))
    found = [one.attributes for one in timeline.by_id.values() if one.name == span]
    assert found
    for attributes in found:
        assert wanted.items() <= attributes.items()
    if span == names.SPAN_GENERATE:
        answered = [one for one in found if "gen_ai.usage.output_tokens" in one]
        assert all(one["gen_ai.usage.output_tokens"] == one[names.ATTR_TOKENS] for one in answered)
        assert any(one["gen_ai.usage.input_tokens"] > 0 for one in answered)


def test_a_request_is_one_trace_from_the_environment_to_the_trainer(finished: Finished, bundle: Path):
    """No hop over Kafka begins another trace, or leaves a span without its parent; demonstrations have no requests.

    The curator is stopped at the last step, when an agent and those behind it may not have read all of their inputs.
    """
    topic = finished.config.bus.prefix
    timeline = Timeline(lines_in(finished.made.path / "traces"))
    inputs = {"difficulty": "trajectories", "budget": "task-difficulty", "dispatch": "rollout-budgets"}
    log = list(read_log(Bundle(bundle), [topics.BY_NAME[name] for name in inputs.values()]))
    shown = {one.event.trajectory_id for one in log if getattr(one.event, "purpose", "") == "demonstration"}
    unread, every = dict[str, set[str]](), timeline.by_id.values()
    for number, (agent, read) in enumerate(inputs.items()):
        own = {names.ATTR_AGENT: agent, names.ATTR_DESTINATION: f"{topic}{read}"}.items()
        newest = max(one.attributes[names.ATTR_OFFSET] for one in every if own <= one.attributes.items())
        for one in log:
            if isinstance(one.event, topics.BY_NAME[read].event) and one.metadata.offset > newest:
                unread.setdefault(getattr(one.event, "cause", one.event).trajectory_id, set(list(inputs)[number:]))
    trained = [x for x in every if x.name == names.SPAN_TRAIN and x.attributes[names.ATTR_TRAJECTORY] not in shown]
    assert len(trained) - len(unread) > 20
    for last in trained:
        own = timeline.get(spans.trajectory_span(last.attributes[names.ATTR_TRAJECTORY]))
        trace = [one for one in every if one.trace == last.trace]
        assert {id(one) for one in timeline.below(own)} == {id(one) for one in trace}, "each span has its parent"
        hops = {(one.name, one.process.partition("-")[0]) for one in trace}
        assert hops == {
            *(
                (name, "env")
                for name in (names.SPAN_TRAJECTORY, names.SPAN_STEP, names.SPAN_REQUEST, names.SPAN_EXECUTE)
            ),
            *((name, "rollout") for name in (names.SPAN_GENERATE, names.SPAN_ENGINE)),
            (names.SPAN_RECORD, "recorder"),
            (names.SPAN_DECIDE, "curator"),
            (names.SPAN_TRAIN, "trainer"),
        }
        agents = {one.attributes[names.ATTR_AGENT] for one in trace if one.name == names.SPAN_DECIDE}
        late = unread.get(last.attributes[names.ATTR_TRAJECTORY], set())
        assert agents | late == {"difficulty", "budget", "groups", "dispatch"}
        read = {one.attributes.get("messaging.destination.name") for one in trace} - {None}
        assert read >= {topic + name for name in ("action-requests", "observations", "trajectories")}


def test_every_trained_step_can_be_followed_to_its_screenshot(finished: Finished, bundle: Path):
    run = ("--run", finished.made.id, "--state", finished.config.run.state_dir)
    live = answer("trace", "--coverage", *run)
    assert live["trained_steps"] > 50
    assert (live["traced_steps"], live["coverage"], live["broken"]) == (live["trained_steps"], 1.0, {})
    assert answer("trace", "--coverage", "--bundle", str(bundle)) == live


def test_an_optimizer_step_is_walked_down_and_a_screenshot_up(bundle: Path):
    down = answer("trace", "3", "--bundle", str(bundle))
    group = down["made_of"][0]
    request = next(step for member in group["made_of"] for step in member["made_of"])
    assert {"screenshot", "env_host", "tokens", "logprobs", "versions"} <= set(request["fields"])
    assert [segment["id"] for segment in request["made_of"]][:2] == ["to the rollout worker", "queue"]
    assert [node["id"] for node in down["went_into"]] == ["v3"]
    up = answer("trace", request["fields"]["screenshot"][:16], "--bundle", str(bundle))
    steps = {
        step["id"]
        for seen in up["went_into"]
        for trajectory in seen["went_into"]
        for found in trajectory["went_into"]
        for step in found["went_into"]
    }
    assert "3" in steps
    for identity in (request["id"], group["id"], group["made_of"][0]["id"], "v3"):
        assert answer("trace", identity, "--bundle", str(bundle))["id"] == identity
    slow = answer("trace", "--slowest", "--bundle", str(bundle), "--most", "3")
    assert [row["total_ms"] for row in slow] == sorted((row["total_ms"] for row in slow), reverse=True)
    assert all(row["segments"][row["most"]] == row["most_ms"] for row in slow)
    assert all(row["segments"]["prefill"] > 0 and row["segments"]["decode"] > 0 for row in slow)


def test_what_was_not_trained_on_is_explained(bundle: Path):
    known = RunState().fold(read_log(Bundle(bundle), ALL))
    left_out = [name for name, orders in known.orders_of.items() if name not in known.groups and "/" in min(orders)]
    fates = set()
    for group_id in left_out:
        group = answer("trace", group_id, "--bundle", str(bundle))
        fates.add(group["fields"]["fate"].partition(":")[0])
        decided = group["fields"].get("decided_by")
        assert (decided is None) == (group["fields"]["fate"] == "under way")
        assert decided is None or decided["at"].startswith("trajectories[")
        order = answer("trace", min(known.orders_of[group_id]), "--bundle", str(bundle))
        assert order["fields"]["at"].startswith("rollout-orders[")
    assert fates & {"dropped", "under way"}


def test_the_store_is_rebuilt_from_the_log(finished: Finished, bundle: Path):
    config = finished.config
    run = ("--run", finished.made.id, "--state", config.run.state_dir)
    ours, theirs = finished.made.path / "config.toml", bundle.parent / "theirs.toml"
    first = json.loads(invoke("store", "diff", *run, "--json").stdout)
    up_to_date = {table["table"] for table in first if table["rows"] == table["rows_of_log"]}
    assert up_to_date >= {"trained", "epochs"}, "the recorder may have been stopped before the last cancelled episodes"
    assert all(table["equal"] for table in first if table["table"] in up_to_date)
    before = answer("store", "rebuild", *run)
    assert all(table["equal"] and table["rows"] for table in before)
    with cluster_of(config.store) as cluster:
        session = cluster.connect(config.store.keyspace)
        session.default_timeout = 60
        blobs = sorted(session.execute("SELECT sha256, chunk, data FROM blobs"))
        for table in (*COLUMNS, "blobs"):
            session.execute(f"TRUNCATE {table}", timeout=60)
        wiped = answer("store", "diff", *run, expect=1)
        assert [table["rows"] for table in wiped] == [0] * len(COLUMNS)
        assert answer("store", "rebuild", "--bundle", str(bundle), "--config", str(ours)) == before
        restored = sorted(session.execute("SELECT sha256, chunk, data FROM blobs"))
        assert set() < set(restored) <= set(blobs)
    assert answer("store", "rebuild", "--wipe", *run) == before
    theirs.write_text(ours.read_text().replace(config.store.keyspace, "elsewhere"))
    refused = invoke("store", "diff", "--bundle", str(bundle), "--config", str(theirs))
    assert "elsewhere" in str(refused.exception), "the store is that of --config, not the one that a bundle names"


@pytest.fixture
def elsewhere(services, tmp_path) -> Iterator[Path]:
    """The configuration of an empty broker and an empty keyspace."""
    with private_folder(suffix="-restored") as place:
        empty = Config(
            bus=Bus(servers=f"127.0.0.1:{free_port()}"),
            store=msgspec.structs.replace(services.config().store, keyspace=f"restored_{uuid.uuid4().hex[:8]}"),
            run=Run(state_dir=str(place)),
            services=Services(ready_s=240.0),
        )
        local.start_services(empty, names=("kafka",))
        folder.write_toml(tmp_path / "elsewhere.toml", empty)
        yield tmp_path / "elsewhere.toml"


def test_a_capture_restores_the_run_where_there_was_nothing(finished: Finished, bundle: Path, elsewhere, tmp_path):
    state = tmp_path / "restored"
    where = ("--state", str(state), "--config", str(elsewhere))
    restored = answer("restore", str(bundle), *where)[0]
    assert restored["moved"] == 0, "each record has its offset again"
    assert restored["rows"] and restored["screenshots"]
    known = finished.made.id
    config = folder.find(str(state), known).config()
    assert config.bus.servers == configuration.load(elsewhere).bus.servers != finished.config.bus.servers

    rows = [answer("runs", "list", "--state", place)[0] for place in (str(state), finished.config.run.state_dir)]
    assert [{**row, "mb": 0} for row in rows] == [{**rows[1], "mb": 0}] * 2

    pages = []
    for number, place in enumerate((str(state), finished.config.run.state_dir)):
        page = tmp_path / f"{number}.html"
        assert invoke("ui", known, "--state", place, "--export", str(page)).exit_code == 0
        pages.append(answers(page))
        assert screens(page)
    assert pages[0].keys() == pages[1].keys()
    for page in pages:  # The address of the broker, the folder, and how long ago the last record was.
        del page["run?"], page["report?"]["settings"], page["time?"]["stalls"]
    different = {view: [page.get(view) for page in pages] for view in pages[1] if pages[0].get(view) != pages[1][view]}
    assert not different and pages[0].keys() == pages[1].keys()

    again = tmp_path / "again.dart"
    assert invoke("capture", known, "--state", str(state), "-o", str(again), "--blobs").exit_code == 0
    assert answer("replay", str(again)) == answer("replay", str(bundle))
    assert all(table["equal"] for table in answer("store", "diff", "--run", known, "--state", str(state)))
    assert answer("trace", "3", "--run", known, "--state", str(state)) == answer("trace", "3", "--bundle", str(bundle))

    resumed = ("run", "--resume", known, "--state", str(state))
    for command, said in (
        (("restore", str(bundle), *where), "exists: name another"),
        (resumed, "restored from a bundle"),
    ):
        refused = invoke(*command)
        assert isinstance(refused.exception, UserError) and said in str(refused.exception), refused.output
    occupied = invoke("restore", str(bundle), "--state", str(tmp_path / "third"), "--config", str(elsewhere))
    assert "is a live prefix" in str(occupied.exception)
    assert not (tmp_path / "third").exists()


def test_explorations_are_played_beside_training(bundle: Path):
    source = Bundle(bundle)
    plans = {order.order_id: order.plan for order in bundle_events(source, rollout_orders.TOPIC) if order.plan}
    explored = [event for event in bundle_events(source, trajectories.TOPIC) if event.purpose == "explore"]
    assert {event.order_id for event in explored} <= plans.keys()
    assert len(plans) == EXPLORED * len({event.task_id.partition("#")[0] for event in explored})
    for event in explored:
        assert 1 <= event.steps <= len(plans[event.order_id]) and len(event.screens) == event.steps
        assert event.last_screen, "the screen after the last action"
    members = {member.trajectory_id for group in bundle_events(source, curated.TOPIC) for member in group.members}
    assert members and not members & {event.trajectory_id for event in explored}


def test_the_successes_of_a_run_are_data_to_fine_tune_on(finished: Finished, bundle: Path, tmp_path: Path):
    limits = AnswerLimits(lambda text: 1, lambda width, height: None)
    data = prepare(finished.config, finished.made.tasks(), bundle, tmp_path / "work", limits)
    ended = [one for one in bundle_events(Bundle(bundle), trajectories.TOPIC) if one.outcome == "success"]
    wanted = [one for one in ended if one.purpose in ("train", "demonstration")]
    assert len([one for one in wanted if one.purpose == "demonstration"]) == len(finished.made.tasks().train)
    assert len(wanted) > len(finished.made.tasks().train)
    assert (data.trajectories, data.unusable) == (len(wanted), [])
    assert data.answers == sum(one.steps for one in wanted)


def test_the_pages_of_a_finished_run_and_of_its_bundle_are_the_same(finished: Finished, bundle: Path):
    kept = asyncio.run(page_answers.of_bundle(bundle))
    live = asyncio.run(page_answers.of_run(finished.config, finished.made))
    assert live.keys() == kept.keys()
    found = [where for view in live for where in page_answers.differences(live[view], kept[view], view)[:2]]
    assert found == []


def test_the_report_of_a_deployment_needs_its_file_alone(finished: Finished, tmp_path: Path):
    """As the job of ``deploy/k8s``, which has no folder of the run."""
    run = msgspec.structs.replace(finished.config.run, id=finished.made.id, state_dir=str(tmp_path))
    file = tmp_path / "dart.toml"
    folder.write_toml(file, msgspec.structs.replace(finished.config, run=run))
    shown = answer("report", "--config", str(file))
    made = tmp_path / "runs" / finished.made.id
    assert shown == json.loads((made / "report.json").read_text())
    assert (made / "report.html").stat().st_size > 0
    known = json.loads((finished.made.path / "report.json").read_text())
    for name in ("lost", "open", "train_steps", "episodes", "env_steps", "trajectories"):
        assert shown[name] == known[name]
    refused = invoke("report", finished.made.id, "--config", str(file))
    assert isinstance(refused.exception, UserError) and "give one of them" in str(refused.exception)
