"""docker-compose.yml on a Docker engine, from `up` to `down`: a short circle that is disturbed in each of its parts.

The tests are the acts of one play, in order; each needs those before it.
"""

import contextlib
import json
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from dart_streams.errors import UserError
from tests.compose import observed
from tests.compose.conftest import HOME, Figures
from tests.compose.stack import CONFIG, PROJECT, ROOT, Stack, Witness, wait_until, witness

STREAMS_SIDE = ("env", "recorder", "monitor", "ui")
EMPTY_HERE = {
    "Requests without an answer",
    "Weight versions served",
    "Staleness at training",
    "Trainer",
    "Optimizer step",
    "Put aside or lost",
}
"""Panels of what this run may not have: the stand-in for the trainer measures nothing, and nothing has failed yet."""
PREFIX = "dart.compose-test."
UP_S = 600
MOVES_AGAIN_S = 600
ENDS_S = 3600
STEPS = 180


class Demo:
    """`docker compose up`, as its users start it, and the container of it that ends with the demonstration."""

    def __init__(self, stack: Stack) -> None:
        self.stack = stack
        self.up = stack.start("up", "--detach", log=HOME / "up.log")

    def poll(self) -> int | None:
        """Return the exit code of the demonstration, or of `up` if it failed, or None before."""
        states = [container["State"] for container in self.stack.containers("demo")]
        return next((state["ExitCode"] for state in states if state["Status"] == "exited"), self.up.poll() or None)

    def log(self) -> str:
        return self.stack.compose("logs", "--no-color", "before", "demo")


@pytest.fixture(scope="module")
def demo(stack: Stack):
    started = Demo(stack)
    yield started
    started.up.kill()
    started.up.wait()


@pytest.fixture(scope="module")
def seen(stack: Stack, demo: Demo):
    """The witness, once training has begun."""
    wait_until(lambda: demo.poll() is not None or stack.states("trainer") == ["running"], "the trainer", UP_S)
    with witness(stack) as found:
        wait_until(lambda: demo.poll() is not None or found.version() >= 2, "training to begin", UP_S)
        assert demo.poll() is None, "the demonstration has ended before training began: see stack.log"
        yield found


def test_the_stack_without_the_model_side_comes_up_in_order(stack: Stack, figures: Figures):
    began = time.monotonic()
    stack.compose("up", "--detach", *STREAMS_SIDE)
    figures["up_s"] = round(time.monotonic() - began, 1)
    for service in ("kafka", "cassandra"):
        assert [container["State"]["Health"]["Status"] for container in stack.containers(service)] == ["healthy"]
    for service in ("topics-apply", "schema-apply"):
        assert [container["State"]["ExitCode"] for container in stack.containers(service)] == [0]
    for service in STREAMS_SIDE:
        assert stack.states(service) == ["running"]
    applied = max(stack.containers(name)[0]["State"]["FinishedAt"] for name in ("topics-apply", "schema-apply"))
    assert all(stack.containers(name)[0]["State"]["StartedAt"] > applied for name in STREAMS_SIDE)


def test_workers_find_what_they_need_and_the_idle_stack_is_measured(stack: Stack, figures: Figures):
    ready = {"env": '"event": "playing"', "recorder": '"event": "recording"'}
    figures["ready_s"] = figures["up_s"] + wait_until(
        lambda: all(word in stack.compose("logs", "--no-color", name) for name, word in ready.items()), "workers", UP_S
    )
    memory = stack.memory_mb()
    figures["idle_mb"] = memory | {"all": round(sum(memory.values()), 1)}
    assert all(not container["RestartCount"] for name in STREAMS_SIDE for container in stack.containers(name))


def test_every_verb_starts_in_the_image(stack: Stack):
    assert json.loads(stack.inside("-P", "tests/verbs.py")) == {}


def test_an_environment_that_an_entry_point_brings_is_played_in_the_image(stack: Stack):
    assert "TapTheBox: ok" in stack.inside("-m", "tests.compose.played_phone")


def test_nothing_runs_as_root_or_is_published_beyond_loopback(stack: Stack):
    for service in ("kafka", *STREAMS_SIDE):
        for container in stack.containers(service):
            user = stack.engine.docker("exec", container["Id"], "id", "-u").strip()
            assert user != "0", service
    for service in ("kafka", "cassandra", *STREAMS_SIDE):
        for container in stack.containers(service):
            published = [place for ports in container["HostConfig"]["PortBindings"].values() for place in ports]
            assert all(place["HostIp"] == "127.0.0.1" for place in published), service
    processes = stack.engine.docker("top", stack.containers("cassandra")[0]["Id"], "-o", "pid,uid,comm").splitlines()
    assert [line.split()[1] for line in processes if "java" in line] == ["999"], processes


def test_cassandra_acknowledges_what_survives_a_kill(stack: Stack):
    asked = (
        "from dart_streams.store import connect; from dart_streams.config import Store; "
        "print(connect(Store(hosts=('cassandra',))).execute("
        "\"SELECT value FROM system_views.settings WHERE name = 'commitlog_sync'\").one()[0])"
    )
    assert stack.inside("-c", asked).strip() == "batch"


def test_workers_are_scaled_and_share_the_work(stack: Stack, seen: Witness, figures: Figures):
    stack.compose("up", "--detach", "--no-recreate", "--scale", "env=4", "--scale", "rollout=2", "env", "rollout")
    assert stack.states("env") == ["running"] * 4
    wait_until(lambda: seen.newest["rollout_workers"] == 2, "both rollout workers", UP_S)
    wait_until(lambda: len(players(stack)) == 4, "all environment workers to play", UP_S)
    figures["running_mb"] = stack.memory_mb()


def test_every_few_lines_of_up_have_the_address_of_the_page(stack: Stack, seen: Witness, demo: Demo):
    [address] = set(re.findall(r"http://[^\s\"]+token=[^\s\"]+", stack.compose("logs", "--no-color", "ui")))
    line = re.compile(rf"\| {re.escape(address)}\s*$", re.MULTILINE)
    wait_until(lambda: bool(line.search(demo.log())), "a line of the run with the address", UP_S)
    assert f"watch it at {address}" in demo.log()
    assert "recipe dart: " in demo.log(), "how its settings differ from the paper's"
    searched = ("sh", "-c", f"grep -rl {address.rpartition('=')[2]} /app /tmp || true")
    found = {name: stack.engine.docker("exec", stack.containers(name)[0]["Id"], *searched) for name in ("ui", "env")}
    assert found == {"ui": "/app/.dart/page/ui.json\n", "env": ""}, "who plays foreign pages has no token"
    own, read = ("sh", "-c", "ls .dart/runs/*"), ("sh", "-c", "ls .dart/env/runs/*/traces")
    files = [
        stack.engine.docker("exec", stack.containers(name)[0]["Id"], *ls) for name, ls in (("env", own), ("ui", read))
    ]
    assert (set(files[0].split()), "env-" in files[1]) == ({"metrics", "traces"}, True), "nor anything else of the run"


def test_the_profile_observe_is_started_and_its_dashboard_shows_the_run(stack: Stack, seen: Witness, figures: Figures):
    scaled = ("--scale", "env=4", "--scale", "rollout=2")
    stack.compose("--profile", "observe", "up", "--detach", "--no-recreate", *scaled)
    for service in ("collector", "jaeger", "prometheus"):
        assert stack.states(service) == ["running"]
    panels: dict[str, list[int]] = {}
    figures["dashboard"] = panels

    def shown() -> bool:
        with contextlib.suppress(UserError):  # Prometheus may not answer yet.
            panels.update(observed.panels(stack))
        return set(panels) >= EMPTY_HERE and all(all(panels[title]) for title in set(panels) - EMPTY_HERE)

    figures["dashboard_s"] = wait_until(shown, "every panel of the dashboard to show something (figures.json)", UP_S)
    assert "Prometheus" in stack.ask(f"{observed.source('prometheus')}/graph")[0]


def test_prometheus_evaluates_every_alert_rule(stack: Stack):
    wanted = len(re.findall(r"- alert:", (observed.ROOT / "deploy/prometheus/alerts.yaml").read_text()))
    healthy = ["ok"] * wanted
    wait_until(lambda: list(observed.rules(stack).values()) == healthy, "all rules to be evaluated", UP_S)


def players(stack: Stack) -> set[str]:
    """Return the containers whose slots have begun to play."""
    lines = stack.compose("logs", "--no-color", "env").splitlines()
    return {line.split("|")[0].strip() for line in lines if '"event": "playing"' in line}


@pytest.mark.parametrize("service", ["kafka", "cassandra"])
def test_a_service_is_killed_and_started_and_the_run_goes_on(
    stack: Stack, seen: Witness, demo: Demo, figures: Figures, service: str
):
    stack.compose("kill", service)
    stack.compose("start", service)
    goes_on(seen, demo, figures, service)


@pytest.mark.parametrize("service", ["env", "rollout", "recorder", "curator", "trainer"])
def test_a_worker_crashes_and_is_started_again_by_itself(
    stack: Stack, seen: Witness, demo: Demo, figures: Figures, service: str
):
    stack.kill_process(service)
    goes_on(seen, demo, figures, service)

    def started_again() -> bool:
        found = stack.containers(service)
        return all(one["RestartCount"] >= 1 and one["State"]["Status"] == "running" for one in found)

    wait_until(started_again, f"each {service} to be started again", UP_S)


def goes_on(seen: Witness, demo: Demo, figures: Figures, service: str) -> None:
    """Wait for three more weight versions: they take episodes, groups and a trainer that came after the fault."""
    before = seen.version()
    took = wait_until(
        lambda: demo.poll() is not None or seen.version() >= before + 3,
        f"the run to go on without {service}; last seen: {seen.newest}",
        MOVES_AGAIN_S,
    )
    assert demo.poll() is None, "the demonstration has ended: see stack.log"
    figures.setdefault("three_versions_after_a_kill_s", {})[service] = took


SPANS = {
    *(("dart_streams.env", name) for name in ("trajectory", "step", "request", "execute")),
    *(("dart_streams.rollout", name) for name in ("generate", "engine")),
    ("dart_streams.recorder", "record"),
    ("dart_streams.curator", "decide"),
    ("dart_streams.trainer", "train"),
}


def test_jaeger_shows_one_trace_from_the_environment_to_the_trainer(stack: Stack, seen: Witness):
    """A screen's request over the broker, its answer by the engine, its row, the agents, the trainer's step."""

    def whole() -> bool:
        return any(observed.spans(trace) >= SPANS for trace in observed.traces(stack, "dart_streams.trainer", "train"))

    wait_until(whole, "a trace of the trainer with every hop before it", UP_S)
    assert "Jaeger" in on_the_machine(stack, "-m", "tests.compose.ask", "http://127.0.0.1:16686/search")


def test_a_browser_shows_the_run_on_the_page(stack: Stack, seen: Witness):
    address = re.findall(r"http://[^\s\"]+token=[^\s\"]+", stack.compose("logs", "--no-color", "ui"))[-1]
    opened = [*stack.engine.entering("--net"), sys.executable, "-m", "tests.compose.look", address, str(HOME / "page")]
    looked = subprocess.run(opened, capture_output=True, text=True, cwd=ROOT)
    assert looked.returncode == 0, looked.stderr[-3000:]
    page = json.loads(looked.stdout)
    assert (page["run"], page["errors"]) == ("compose-test", [])
    assert "tokens" in page["trajectories"]
    assert "trained on" in page["steps"]


def test_the_demonstration_ends_well_and_loses_nothing(stack: Stack, demo: Demo, figures: Figures):
    wait_until(lambda: demo.poll() is not None, "the demonstration's end", ENDS_S)
    assert demo.poll() == 0, demo.log()[-3000:]
    copied = HOME / "report.json"
    stack.compose("cp", "monitor:/app/.dart/runs/compose-test/report.json", str(copied))
    report = json.loads(copied.read_text())
    figures["report"] = {name: report[name] for name in ("lost", "open", "train_steps", "episodes", "requests")}
    assert (report["lost"], report["open"], report["outcome"]) == (0, 0, "complete")
    assert report["train_steps"] == STEPS
    assert report["evaluation"]["before"]["episodes"] == report["evaluation"]["after"]["episodes"] == 24
    assert report["evaluation"]["before"]["version"] == 0
    assert report["staleness"]["max"] <= 2


def test_the_topics_keep_their_invariants(stack: Stack):
    assert json.loads(stack.inside("-m", "tests.faults.invariants", ".dart/runs/compose-test", "--live")) == {}


def test_the_store_is_what_the_log_makes_of_it(stack: Stack):
    command = ("store", "diff", "--run", "compose-test", "--json")
    tables = json.loads(stack.cli(*command))
    assert all(table["equal"] for table in tables), tables
    assert {table["table"] for table in tables if table["rows"]} >= {"steps", "trajectories", "trained"}


def test_programs_of_the_machine_reach_kafka_and_cassandra(stack: Stack):
    printed = on_the_machine(stack, "-m", "examples.read_topics", "localhost:29092", PREFIX)
    assert "simulated/box#" in printed
    rows = "from dart_streams.store import connect; from dart_streams.config import Store; print(connect(Store("
    rows += "hosts=('127.0.0.1',), port=29042)).execute('SELECT count(*) FROM dart.steps').one()[0])"
    assert int(on_the_machine(stack, "-c", rows)) > 0


def on_the_machine(stack: Stack, *arguments: str) -> str:
    """Run Python where the stack's ports are published, and return what it prints."""
    command = [*stack.engine.entering("--net"), sys.executable, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=ENDS_S)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def test_verbs_of_the_service_cli_read_the_stack(stack: Stack):
    assert json.loads(stack.cli("tasks", "--json"))
    assert json.loads(stack.cli("topics", "describe", "--json"))
    assert "weights" in stack.cli("trace", "v1")
    stack.cli("capture", "-o", ".dart/run.dart")
    assert "equal:" in stack.cli("replay", ".dart/run.dart")
    asked = json.loads(stack.compose("run", "--rm", "-T", "rollout", "replay", "--requests", "--json"))
    assert sum(version["answers"] for version in asked["versions"]) > 0


def test_sigterm_drains_every_worker(stack: Stack):
    stack.compose("stop", "--timeout", "300", "env", "rollout", "recorder", "curator", "monitor", "trainer")
    for service in ("env", "rollout", "recorder", "curator", "monitor", "trainer"):
        codes = {container["State"]["ExitCode"] for container in stack.containers(service)}
        assert codes == {0}, service


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A copy of what the stack's files mount, to change it; its configuration trains until it is stopped."""
    for name in ("topics", "dart_streams", "workers", "trainer", "console", "plugins", "tests", "benchmarks", "deploy"):
        shutil.copytree(ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("docker-compose.yml", ".dockerignore"):
        shutil.copy(ROOT / name, tmp_path)
    endless = re.sub(r"max_train_steps = \d+\n", "", (ROOT / CONFIG).read_text())
    unmeasured = endless.replace("episodes = 24", "episodes = 0")
    (tmp_path / CONFIG).write_text(unmeasured.replace("compose-test", "compose-dev"))
    return tmp_path


def test_a_changed_rule_is_in_the_running_stack_and_is_replayed_and_traced(
    stack: Stack, checkout: Path, figures: Figures
):
    """As docs/how-to/containers.md says, in a copy of the checkout; a budget's reason names the rule that made it."""
    files = ("docker-compose.yml", "tests/compose/circle.yml", "deploy/docker/dev.yml")
    command = ["docker", "compose", "-p", PROJECT, *(part for file in files for part in ("-f", file))]
    here: dict[str, Any] = {"cwd": checkout, "env": stack.engine.environment, "text": True}
    cli = [*command, "run", "--rm", "-T", "cli"]
    with (HOME / "watch.log").open("w") as log:
        up = subprocess.Popen([*command, "up", "--watch"], **here, stdout=log, stderr=log)
        try:
            first_budget_ms(stack, " succeeded")
            rule = checkout / "dart_streams/curation/budget.py"
            rule.write_text(rule.read_text().replace(' succeeded"', ' have succeeded"'))
            changed_ms = time.time() * 1000
            figures["changed_rule_s"] = round((first_budget_ms(stack, " have succeeded") - changed_ms) / 1000, 1)
            subprocess.run([*cli, "capture", "-o", ".dart/changed.dart"], **here, check=True, timeout=UP_S)
            read: dict[str, Any] = {**here, "capture_output": True, "timeout": UP_S}
            replayed = subprocess.run([*cli, "replay", ".dart/changed.dart"], **read)
            wait_until(lambda: "group" in subprocess.run([*cli, "trace", "v1"], **read).stdout, "groups of v1", UP_S)
            assert stack.states("demo") == ["running"], "without a last step it trains until it is stopped"
        finally:
            up.terminate()
            up.wait(UP_S)
    assert (replayed.returncode, "have succeeded" in replayed.stdout) == (1, True), replayed


def first_budget_ms(stack: Stack, reason: str) -> int:
    """Return when Kafka got the first budget with a reason, in milliseconds since the epoch."""
    return int(on_the_machine(stack, "-m", "tests.compose.budget", "localhost:29092", "dart.compose-dev.", reason))


def test_down_leaves_nothing(stack: Stack):
    stack.remove()
    label = f"label=com.docker.compose.project={PROJECT}"
    assert stack.engine.docker("ps", "--all", "--quiet", "--filter", label) == ""
    assert stack.engine.docker("volume", "ls", "--quiet", "--filter", label) == ""
