"""What a run does at its end about services of others, and what it keeps and waits for of its own processes."""

import io
from pathlib import Path
from types import SimpleNamespace

import msgspec
import pytest
from rich.console import Console

from console.launch import process_registry
from console.launch.process_registry import ProcessIdentity, ProcessRegistry
from console.launch.processes import ProcessSet
from console.launch.session import Session
from console.launch.supervisor import ProcessSpec, Supervisor
from console.launch.training_run import TrainingRun, is_evaluated
from console.runs import run_folder
from console.runs.run_folder import PhaseLog, RunFolder
from console.runs.run_log import RecordMetadata
from console.runs.run_state import RunState
from dart_streams.config import Config, Run, parse
from tests import events

TASKS = Path(__file__).parents[4] / "deploy/config/tasks.toml"
GONE = ProcessIdentity("supervisor", 2**22 - 1, 0.0, ())


async def nothing(_: object) -> None:
    pass


def folder_in(place: Path) -> RunFolder:
    config = Config(run=Run(state_dir=str(place / "state")))
    return run_folder.create(config, TASKS, "ours", resume=False)


BOTH = ("kafka", "cassandra")


@pytest.mark.parametrize(
    ("other", "started", "ending"),
    [
        (process_registry.this_process(), BOTH, "Kafka and Cassandra stay up for other"),
        (process_registry.this_process(), ("cassandra",), "Cassandra stays up for other"),
        (GONE, BOTH, "the services were down already"),
        (None, BOTH, "the services were down already"),
    ],
)
async def test_a_run_leaves_the_services_that_it_started_to_a_living_one(tmp_path: Path, other, started, ending):
    made = folder_in(tmp_path)
    if other is not None:
        (made.path.parent / "other").mkdir()
        run_folder.write_json(made.path.parent / "other" / "processes.json", ProcessRegistry(other))
    shown = io.StringIO()
    session = Session(made, None, nothing, Console(file=shown, width=200), owns_services=started)
    await session.end(session.make_run(Supervisor(made.path, drain_s=1)), "complete")
    assert ending in shown.getvalue()


def run_of(folder: Path, *workers: str) -> TrainingRun:
    """Return a run with these rollout workers; none of its processes is started."""
    made = folder_in(folder)
    processes = ProcessSet(rollout=tuple(ProcessSpec(name, ("true",)) for name in workers))
    return Session(made, processes, nothing, Console(file=io.StringIO())).make_run(Supervisor(made.path, drain_s=1))


async def test_a_death_is_in_the_journal_and_a_run_that_goes_on_unfinished(tmp_path: Path):
    run = run_of(tmp_path)
    for restarts in (True, False):
        run.supervisor.on_death("env-0", "exit code 1", "no more room", restarts)
    [death] = run.folder.journal().deaths
    assert (death.process, death.reason, death.times, death.last_line) == ("env-0", "exit code 1", 2, "no more room")
    assert death.restarts == 1
    run.folder.write_journal(msgspec.structs.replace(run.journal, outcome="failed"))
    processes = ProcessSet(rollout=())
    again = Session(run.folder, processes, nothing, Console(file=io.StringIO())).make_run(run.supervisor)
    assert again.journal.outcome == "unfinished"


async def test_a_run_waits_for_the_rollout_workers_that_it_has(tmp_path: Path):
    run, state = run_of(tmp_path, "rollout-0"), RunState()
    for offset, (name, version) in enumerate((("rollout-0", 7), ("rollout-1", 3))):
        record = RecordMetadata("weights-serving", 0, offset, 0)
        state.apply(record, events.weights_serving(version, worker_id=name))
    assert state.served_version == 3
    assert run.served(SimpleNamespace(progress=state)) == 7


async def test_demonstrations_have_their_time_each_after_the_one_before(tmp_path: Path):
    run = run_of(tmp_path)
    orders = {"demonstration-a", "demonstration-b"}
    asked: list[str] = []

    class Follower:
        """Lets one demonstration end for each wait."""

        progress = RunState()

        async def until(self, condition, what: str, timeout_s: float, advice: str) -> None:
            assert not condition(self.progress) and timeout_s == run.config.evaluation.timeout_s
            asked.append(what)
            name = sorted(orders)[len(asked) - 1]
            self.progress.finished[name] = SimpleNamespace(outcome="success")
            assert condition(self.progress) and "evaluation.timeout_s" in advice

    await run.finish_demonstrations(Follower(), orders)
    assert [what.partition("(")[2] for what in asked] == ["0 of 2 have ended)", "1 of 2 have ended)"]


def test_a_resumed_run_is_evaluated_again_if_another_policy_answers():
    asking = {"engine": "openai", "openai": {"base_url": "http://127.0.0.1:1", "model": "expert"}}
    endpoint = parse({"run": {"minutes": 0}, "rollout": asking})
    before = PhaseLog(before_version=0, before_model="expert")
    assert is_evaluated(endpoint, before)
    assert not is_evaluated(Config(), before)
    assert is_evaluated(Config(), PhaseLog(before_version=0))
    assert not is_evaluated(endpoint, PhaseLog())
