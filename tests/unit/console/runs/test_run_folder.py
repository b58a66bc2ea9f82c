"""A run's folder: what it holds, which ids it takes, and what is said of a wrong one."""

import msgspec
import pytest

from console.launch import run_start
from console.launch.training_run import last_train_step, required_steps
from console.runs import run_folder as folder
from console.runs.run_folder import PhaseLog, RunFolder, RunPhase, without_nulls
from dart_streams.config import Bus, Config, Run, Trainer, parse
from dart_streams.config.deployment import RUN_ID
from dart_streams.errors import ConfigError, UserError
from dart_streams.policy import recipe
from tests.task_files import page_table

TASKS = page_table("click-test", "miniwob", 2, train=(0, 2), heldout=(10, 12))


@pytest.fixture
def config(tmp_path):
    (tmp_path / "tasks.toml").write_text(TASKS)
    return Config(run=Run(state_dir=str(tmp_path / "state"), train_steps=None, minutes=3.0))


def create(config, tmp_path, name, resume=False) -> RunFolder:
    return folder.create(config, tmp_path / "tasks.toml", name, resume=resume)


@pytest.fixture
def made(config, tmp_path) -> RunFolder:
    return create(config, tmp_path, "one")


def test_a_run_has_its_own_prefix_tasks_and_configuration(made):
    resolved = made.config()
    assert (resolved.run.id, resolved.bus.prefix, resolved.bus.run) == ("one", "dart.one.", "dart.one")
    assert (resolved.run.minutes, resolved.run.train_steps) == (3.0, None)
    assert resolved.run.folder == made.path
    assert len(made.tasks().train) == 2
    assert (made.path.parent / "latest").resolve() == made.path
    assert without_nulls({"a": None, "b": {"c": None, "d": 0}}) == {"b": {"d": 0}}


def test_a_run_is_found_by_its_id_and_as_rows_of_the_store_name_it(made, config):
    """An error about a row names the run so, and a command that is to be run with it."""
    for name in ("one", "latest", made.config().bus.run):
        assert folder.find(config.run.state_dir, name).id == "one"
    with pytest.raises(UserError, match=r"no run 'dart\.two' in "):
        folder.find(config.run.state_dir, "dart.two")


def test_a_changed_task_file_does_not_change_a_resumed_run(config, tmp_path):
    create(config, tmp_path, "one")
    (tmp_path / "tasks.toml").write_text(TASKS.replace("[0, 2]", "[0, 5]"))
    longer = msgspec.structs.replace(config, run=msgspec.structs.replace(config.run, minutes=9.0))
    resumed = create(longer, tmp_path, "one", resume=True)
    assert len(resumed.tasks().train) == 2
    assert resumed.config().run.minutes == 9.0


def test_a_resumed_run_refuses_changes_of_kept_keys(made, config, tmp_path):
    before = made.config_file.read_bytes()
    other = msgspec.structs.replace(config, env=msgspec.structs.replace(config.env, backend="simulated"))
    with pytest.raises(ConfigError, match=r"env\.backend"):
        create(other, tmp_path, "one", resume=True)
    assert made.config_file.read_bytes() == before


def test_the_command_that_resumes_a_run_is_whole(config, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    made = create(msgspec.structs.replace(config, run=Run()), tmp_path, "one")
    assert made.resume_command == "dart-streams run --resume one"
    monkeypatch.chdir("/")
    assert made.resume_command == f"dart-streams run --resume one --state {tmp_path}/.dart"


@pytest.mark.parametrize("name", ["", "a.b", "a b", "../up", "-x", "--help", "latest", "a" * 195, "a\n", "é"])
def test_an_id_that_cannot_name_topics_is_refused(config, tmp_path, name):
    with pytest.raises(ConfigError, match="run id"):
        create(config, tmp_path, name)
    with pytest.raises(ConfigError, match=r"run\.id"):
        parse({"run": {"id": name}})


def test_a_taken_or_unknown_id_is_refused_with_advice(config, tmp_path):
    create(config, tmp_path, "one")
    with pytest.raises(UserError, match=r"resume it with `dart-streams run --resume one --state .*state`"):
        create(config, tmp_path, "one")
    with pytest.raises(UserError, match=r"no run 'two' to resume in .*: there are one"):
        create(config, tmp_path, "two", resume=True)
    with pytest.raises(UserError, match="there are one"):
        folder.find(config.run.state_dir, "three")
    assert folder.find(config.run.state_dir, "latest").id == "one"


def test_new_ids_are_unlike_and_can_name_topics():
    ids = {folder.new_id() for _ in range(20)}
    assert len(ids) > 1
    assert all(map(RUN_ID.match, ids))


def test_the_journal_keeps_phases_in_order_or_fails_with_advice(made):
    assert made.journal() == PhaseLog()
    journal = PhaseLog().begin("start", 1).end(5).begin("circle", 6)
    made.write_journal(journal)
    assert made.journal().phases == (RunPhase("start", 1, 5), RunPhase("circle", 6))
    assert made.journal().phase("circle") == RunPhase("circle", 6)
    assert made.journal().phase("after") is None
    made.journal_file.with_suffix(".new").symlink_to("/dev/full")
    with pytest.raises(UserError, match=r"No space left on device.*make room.*`dart-streams run --resume one --state"):
        made.write_journal(PhaseLog())


def test_a_policy_that_is_no_model_directory_is_refused(tmp_path):
    config = Config()
    config = msgspec.structs.replace(config, policy=msgspec.structs.replace(config.policy, path=str(tmp_path)))
    with pytest.raises(ConfigError, match=r"policy\.path: .* has no config\.json"):
        recipe.named_policy(config)


def test_a_missing_task_set_is_named_before_anything_is_written(config, tmp_path):
    (tmp_path / "tasks.toml").unlink()
    with pytest.raises(ConfigError, match=r"no task set .*tasks\.toml: set tasks\.file"):
        create(config, tmp_path, "one")
    assert not (tmp_path / "state" / "runs").exists()


def test_an_attached_run_is_named_by_its_configuration_and_taken_up_again(config, tmp_path):
    named_run = msgspec.structs.replace(
        config, run=msgspec.structs.replace(config.run, id="one"), bus=Bus(prefix="dart.one.")
    )
    (tmp_path / "state" / "runs" / "one" / "metrics").mkdir(parents=True)
    made = folder.attach(named_run, tmp_path / "tasks.toml")
    made.write_journal(PhaseLog(before_version=0))
    again = folder.attach(named_run, tmp_path / "tasks.toml")
    assert (again.path, again.journal().before_version) == (made.path, 0)
    assert (again.config().run.id, again.config().bus.prefix) == ("one", "dart.one.")
    notes: list[str] = []
    tasks = msgspec.structs.replace(named_run.tasks, file=str(tmp_path / "tasks.toml"))
    run_start.run_attached(msgspec.structs.replace(named_run, tasks=tasks), notes.append, before_only=True)
    assert notes[-1] == "it was measured before training already", "no service is asked"
    with pytest.raises(ConfigError, match=r"set it to 'dart\.two\.'"):
        folder.attach(msgspec.structs.replace(named_run, run=Run(id="two")), tmp_path / "tasks.toml")


def test_measured_scripts_need_a_trainer_that_ends(config):
    with pytest.raises(ConfigError, match=r"trainer\.max_train_steps is not set"):
        required_steps(config)
    assert required_steps(msgspec.structs.replace(config, trainer=Trainer(max_train_steps=5))) == 5


@pytest.mark.parametrize(
    ("run_steps", "trainer_steps", "last"),
    [(None, None, None), (5, None, 5), (None, 7, 7), (5, 7, 5), (7, 5, 5), (0, 3, 0)],
)
def test_training_ends_with_the_first_of_two_last_steps(
    run_steps: int | None, trainer_steps: int | None, last: int | None
):
    bounded = Config(run=Run(train_steps=run_steps), trainer=Trainer(max_train_steps=trainer_steps))
    assert last_train_step(bounded) == last


def test_a_run_has_one_supervisor(made):
    with (
        folder.lock_folder(made.path),
        pytest.raises(UserError, match="run 'one' still lives: end it first"),
        folder.lock_folder(made.path.parent / "latest"),
    ):
        pass
    with folder.lock_folder(made.path), folder.lock_folder(made.path.parent / "none-yet"):
        pass


def test_deaths_are_counted_by_reason_with_the_newest_line():
    journal = PhaseLog().with_death("env-0", "exit code 139", "first", 10).with_death("env-1", "exit code 1", "", 11)
    journal = journal.with_death("env-0", "exit code 139", "x" * 999, 12)
    journal = journal.with_death("env-0", "killed by SIGKILL", "", 13, restarts=False)
    read = msgspec.json.decode(msgspec.json.encode(journal), type=PhaseLog)
    assert [(d.process, d.reason, d.times, d.restarts, len(d.last_line), d.at_ms) for d in read.deaths] == [
        ("env-1", "exit code 1", 1, 1, 0, 11),
        ("env-0", "exit code 139", 2, 2, 300, 12),
        ("env-0", "killed by SIGKILL", 1, 0, 0, 13),
    ]
    old = b'{"deaths":[{"process":"env-0","reason":"exit code 1","times":3,"last_line":"","at_ms":1}]}'
    assert msgspec.json.decode(old, type=PhaseLog).deaths[0].restarts is None


@pytest.mark.parametrize(
    ("earlier", "topics", "latest"), [("one", False, "one"), ("one", True, "two"), ("", False, ""), ("gone", False, "")]
)
def test_latest_names_a_run_that_has_failed_only_if_it_had_topics(config, tmp_path, earlier, topics, latest):
    if earlier == "one":
        create(config, tmp_path, "one")
    started = create(config, tmp_path, "two")
    if topics:
        started.topics_file.write_text("{}")
    with pytest.raises(KeyboardInterrupt), folder.undo_latest(started, earlier):
        raise KeyboardInterrupt
    assert folder.read_latest(started.path.parent) == latest
    with folder.undo_latest(started, earlier):
        folder.point_latest(started.path.parent, "two")
    assert folder.read_latest(started.path.parent) == "two", "an end without an error changes nothing"
