"""The harness of the fault tests: a whole circle as real processes under the real supervisor.

Scripted answers, simulated screens, a stand-in for the trainer; broker, database and everything else are real. A circle
with a policy has the real trainer, and vLLM if that is its engine.
"""

import contextlib
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import psutil
import pytest

from console.runs import run_folder
from console.runs.run_folder import RunFolder
from console.runs.run_log import read_events
from dart_streams import config as configuration
from dart_streams.config import Config
from dart_streams.deadline import Deadline
from tests.faults import invariants
from tests.processes import marked
from tests.sources import ROOT
from topics import trained

CIRCLE = ROOT / "tests" / "integration" / "circle.toml"
TASKS = CIRCLE.with_name("circle-tasks.toml")
KEPT = ROOT / ".dart" / "faults"
RESULTS = "DART_FAULTS_RESULTS"
"""The environment's name of the file to which a case appends what it measured, one JSON object a line."""
WHOLE = "DART_SLOW_TESTS" in os.environ
"""Whether the cases run in their whole form, as ``make test-faults`` has them; ``make test`` has a short one."""
PREFIXES = "DART_FAULTS_PREFIXES"
"""The environment's name of what precedes the command line of each kind of process, as JSON."""
BOUND_S, MODEL_BOUND_S = 600.0, 900.0
"""How long a circle may take for what it must do; vLLM and torch alone take a minute to start."""
MINUTES = 60.0
"""How long a circle may last: a case ends it before, unless it hangs."""
SETTLE_S = 30.0
"""How long the end of a run waits for open orders: one that is lost is reported within :attr:`Circle.bound_s`."""
SLOW_S = 60.0
"""The logs of a case are kept as those of one that fails if it took longer to recover."""
POLL_S = 0.2
ENDLESS = 1_000_000
KINDS = ("env", "recorder", "trainer", "rollout", "curator", "monitor")


def config_of(services: Any, folder: Path, **tables: dict[str, Any]) -> Config:
    """Return the configuration of a circle on the services of the session; ``tables`` replace keys of its tables."""
    base, running = configuration.load(CIRCLE), services.running
    changed = {
        "bus": {"servers": running.bus.servers},
        "store": {"hosts": running.store.hosts, "port": running.store.port, "keyspace": services.keyspace},
        "run": {
            "state_dir": str(folder),
            "train_steps": ENDLESS,
            "minutes": MINUTES,
            "demonstrate": False,
            "settle_s": SETTLE_S,
        },
        "evaluation": {"episodes": 0},
        "rollout": {"workers": 1},
        "trainer": {"groups_per_step": 4 if WHOLE else 2},
        "ui": {"enabled": False},
    }
    for name, table in tables.items():
        changed[name] = {**changed.get(name, {}), **table}
    parts = {name: msgspec.structs.replace(getattr(base, name), **table) for name, table in changed.items()}
    return msgspec.structs.replace(base, **parts)


class Circle:
    """A run with a process for each part; made by :func:`circle`."""

    def __init__(self, config: Config, case: str, prefixes: Mapping[str, Sequence[str]] = {}) -> None:
        self.prefixes = json.dumps(prefixes)
        self.made: RunFolder = run_folder.create(config, TASKS, run_folder.new_id(), resume=False)
        self.console = Path(config.run.state_dir).parent / f"{self.made.id}.console.log"
        """Beside the state folder: that one's disk may be full."""
        self.case = case
        self.has_trainer = bool(config.policy.path)
        self.bound_s = MODEL_BOUND_S if self.has_trainer else BOUND_S
        self.process: subprocess.Popen[bytes] | None = None
        self.measured: dict[str, Any] = {"case": case}
        self.loses_orders = False
        """Whether the case itself makes orders end nowhere: no other may need the curator's audit."""
        self.excused: frozenset[str] = frozenset()
        """Rules that can't hold, as the case removes records that they need."""

    @property
    def config(self) -> Config:
        """The run's resolved configuration."""
        return self.made.config()

    def start(self, stdout: int | None = None) -> None:
        """Start the supervisor, which starts all others; its output goes to a file, or to ``stdout``."""
        with self.console.open("a") as log:
            command = [sys.executable, "-m", "tests.faults.supervised", str(self.made.path)]
            environment = {**os.environ, PREFIXES: self.prefixes}
            self.process = subprocess.Popen(command, cwd=ROOT, stdout=stdout or log, stderr=log, env=environment)

    def resume(self, train_steps: int = ENDLESS, stdout: int | None = None) -> None:
        """Start the run again, until it has made ``train_steps`` steps in all."""
        config = self.config
        run = msgspec.structs.replace(config.run, train_steps=train_steps)
        self.made = run_folder.create(msgspec.structs.replace(config, run=run), TASKS, self.made.id, resume=True)
        self.start(stdout)

    def processes(self) -> list[psutil.Process]:
        """Return the supervisor and all below it."""
        assert self.process is not None
        supervisor = psutil.Process(self.process.pid)
        return [supervisor, *supervisor.children(recursive=True)]

    def mark(self, kind: str) -> str:
        """Return the words that the command line of a kind of process contains."""
        trainer = "dart-streams train" if self.has_trainer else "stand_in_trainer"
        return trainer if kind == "trainer" else f"--id {kind}-"

    def of_kind(self, kind: str) -> list[psutil.Process]:
        """Return the processes of a kind and all below them, but not those that start them again."""
        found = []
        for one in marked(self.processes(), self.mark(kind)):
            found.append(one)
            with contextlib.suppress(psutil.NoSuchProcess):
                found += one.children(recursive=True)
        return found

    def kill_everything(self) -> None:
        """Kill every process of the circle with SIGKILL, the supervisor first: nothing is restarted or drained."""
        self.until(lambda: all(map(self.of_kind, KINDS)), "each kind of process, which may be starting again")
        victims = self.processes()
        for victim in victims:
            with contextlib.suppress(psutil.NoSuchProcess):
                victim.kill()
        assert self.process is not None
        self.process.wait()
        _, alive = psutil.wait_procs(victims[1:], timeout=BOUND_S)
        assert not alive

    @property
    def ended(self) -> bool:
        """Whether the run has ended."""
        assert self.process is not None
        return self.process.poll() is not None

    def steps(self) -> int:
        """Return how many optimizer steps the log has."""
        return max((event.train_step for event in read_events(self.config.bus, [trained.TOPIC])), default=0)

    def goes_on(self, steps: int = 2) -> float:
        """Wait for ``steps`` further steps; return the seconds it took."""
        begin, wanted = time.monotonic(), self.steps() + steps
        self.until(lambda: self.steps() >= wanted, f"step {wanted}")
        return time.monotonic() - begin

    def begins(self) -> None:
        """Wait for the first steps."""
        self.until(lambda: self.made.journal().phase("circle") is not None, "the circle")
        self.goes_on()

    def until(self, condition: Callable[[], bool], what: str) -> None:
        """Return when a condition holds; fail if the run ends before, or after :attr:`bound_s`."""
        deadline = Deadline(self.bound_s)
        while True:
            ended = self.ended  # Before the condition: what a run did before it ended counts.
            if condition():
                return
            if ended or deadline.expired:
                assert self.process is not None
                pytest.fail(f"not reached: {what}; exit code {self.process.poll()}\n{self.evidence()}")
            time.sleep(POLL_S)

    def said(self) -> str:
        """Return the end of the run's output."""
        return self.console.read_text()[-3000:]

    def logs(self) -> str:
        """Return all that the run's processes have logged."""
        return "\n".join(log.read_text(errors="replace") for log in self.made.path.glob("logs/*.log"))

    def evidence(self) -> str:
        """Return the ends of the run's output and of its processes' logs."""
        logs = sorted((self.made.path / "logs").glob("*.log"))
        ends = [f"--- {log.name}\n{log.read_text(errors='replace')[-1500:]}" for log in logs]
        return "\n".join([self.said(), *ends])

    def keep_evidence(self) -> None:
        """Keep the whole logs in :data:`KEPT`: the run's folder is removed with the test's."""
        kept = KEPT / self.made.id
        kept.mkdir(parents=True, exist_ok=True)
        for file in (self.console, *self.made.path.glob("logs/*")):
            with contextlib.suppress(FileNotFoundError):
                shutil.copy(file, kept)
        sys.stderr.write(f"logs are kept in {kept}\n")

    def exit_code(self) -> int:
        """Wait for the end of the run; fail if it has not ended after :attr:`bound_s`."""
        assert self.process is not None
        try:
            return self.process.wait(self.bound_s)
        except subprocess.TimeoutExpired:
            pytest.fail(f"the run has not ended after {self.bound_s:g} s\n{self.evidence()}")

    def ends_complete(self) -> None:
        """Wait for the end of the run; then it is complete, and has lost nothing but to outsiders."""
        assert self.exit_code() == 0, self.evidence()
        report = json.loads((self.made.path / "report.json").read_text())
        if (report["outcome"], report["lost"]) != ("complete", 0):
            pytest.fail(f"{report['outcome']}, {report['lost']} lost\n{self.evidence()}")
        healed = report["trajectories"]["by_outcome"].get("lost", 0)
        if healed and not self.loses_orders:
            pytest.fail(f"{healed} orders could never end, and were ordered again\n{self.evidence()}")

    def ends_well(self) -> None:
        """Wait for the end of the run; then it is complete, and every invariant holds."""
        self.ends_complete()
        broken = invariants.of_run(self.config)
        if broken := {rule: examples for rule, examples in broken.items() if rule not in self.excused}:
            pytest.fail(f"broken: {json.dumps(broken, indent=1)}")

    def ends_with_an_error(self) -> None:
        """Wait for the end of a run that cannot go on, and says so in one line."""
        assert self.exit_code() != 0, self.said()
        assert "\nerror: " in self.said(), self.said()

    def is_killed_once_more_and_ends_well(self, steps: int = 2) -> None:
        """Kill and restart every process, go on, end in order, and check the invariants; every case ends with this."""
        self.kill_everything()
        before = self.steps()  # Not before the kill: a step in between would pass for one after.
        begin = time.monotonic()
        self.resume(before + steps)
        self.until(lambda: self.steps() > before, "a step after the restart")
        self.measured["restart_s"] = round(time.monotonic() - begin, 1)
        self.ends_well()

    def note(self) -> None:
        """Append the measurements to the file of results, if there is one."""
        if file := os.environ.get(RESULTS):
            with Path(file).open("a") as results:
                results.write(json.dumps(self.measured) + "\n")


@contextlib.contextmanager
def circle(config: Config, case: str, prefixes: Mapping[str, Sequence[str]] = {}) -> Iterator[Circle]:
    """Yield a circle with training under way; at the end none of its processes is left.

    ``prefixes`` precede the command lines of a kind of process, to start it in a network of its own, say.
    """
    made = Circle(config, case, prefixes)
    made.start()
    try:
        made.begins()
        yield made
        made.note()
        if made.measured.get("recovery_s", 0.0) > SLOW_S:
            made.keep_evidence()
    except BaseException:
        made.keep_evidence()
        raise
    finally:
        for left in made.processes() if made.process is not None and made.process.poll() is None else ():
            with contextlib.suppress(psutil.NoSuchProcess):
                left.kill()
        if made.process is not None:
            made.process.wait()
