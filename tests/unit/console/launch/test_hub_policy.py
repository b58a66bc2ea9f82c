"""A run fetches its model of the hub, and keeps the commit that it began with."""

import sys
from pathlib import Path

import msgspec
import pytest

from console.cli import config as config_command
from console.cli import doctor_checks
from console.launch import hub_policy, processes, run_start
from console.runs import run_folder
from console.runs.resumption import changed_keys
from dart_streams.config import Config, Policy, Rollout, Run, Tasks
from dart_streams.errors import ConfigError, UserError

REPO = "org/tiny"
FIRST, SECOND = "1" * 40, "2" * 40
TASKS = Path(__file__).parents[4] / "deploy/config/tasks.toml"


def configured(path: str, **changes: object) -> Config:
    return msgspec.structs.replace(Config(policy=Policy(path=path), rollout=Rollout(engine="vllm")), **changes)


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A program of the model environment that says that it fetched FIRST, and writes its arguments down."""
    monkeypatch.setenv("HF_HOME", str(tmp_path / "home"))
    answer(tmp_path, f'{{"folder": "/f", "commit": "{FIRST}", "path": "{REPO}@{FIRST}"}}')
    found = processes.Programs(tmp_path / "none", tmp_path / "dart-streams")
    monkeypatch.setattr(processes, "find_programs", lambda: found)
    return tmp_path / "dart-streams"


def answer(folder: Path, text: str, code: int = 0) -> None:
    """Let the program print a text and exit."""
    file = folder / "dart-streams"
    script = f"import sys\nopen({str(folder / 'arguments')!r}, 'a').write(' '.join(sys.argv[1:]) + '\\n')\n"
    file.write_text(f"#!{sys.executable}\n{script}print({text!r})\nsys.exit({code})\n")
    file.chmod(0o755)


def test_a_model_of_the_hub_is_fetched_and_named_by_its_commit(program):
    for path in (REPO, f"{REPO}@main"):
        assert run_start.with_model(None, configured(path)).policy.path == f"{REPO}@{FIRST}"
    assert run_start.with_model(Path(REPO), configured("")).policy.path == f"{REPO}@{FIRST}"
    assert (program.parent / "arguments").read_text().splitlines() == [f"policy fetch {REPO} --json"] * 3


def test_nothing_is_fetched_for_a_folder_a_dry_run_or_no_process(program, tmp_path):
    (tmp_path / "config.json").touch()
    assert run_start.with_model(None, configured(str(tmp_path))).policy.path == str(tmp_path)
    assert not (tmp_path / "arguments").exists()
    config = configured(REPO, rollout=Rollout(engine="scripted"))
    assert run_start.with_model(None, config) == config
    assert not (tmp_path / "arguments").exists()
    config = configured(REPO, tasks=Tasks(file=str(TASKS)))
    plan = run_start.dry_run(config, "one", resume=False, keys=(), gpus=2, gib=80.0)
    assert f"policy fetch {REPO}" in " ".join(plan.notes)
    assert not (tmp_path / "arguments").exists()


def test_a_failed_fetch_gives_its_reason_and_exit_code(program):
    answer(program.parent, '{"reason": "org/tiny is gated", "exit_code": 5}', 5)
    with pytest.raises(ConfigError, match=r"policy\.path: org/tiny is gated") as refused:
        run_start.with_model(None, configured(REPO))
    assert refused.value.exit_code == 5
    answer(program.parent, "Killed", 137)
    with pytest.raises(ConfigError, match=r"policy fetch org/tiny --json` failed with exit code 137"):
        run_start.with_model(None, configured(REPO))
    program.unlink()
    with pytest.raises(UserError, match="make setup"):
        run_start.with_model(None, configured(REPO))


@pytest.mark.parametrize(
    ("given", "kept", "changes"),
    [
        (REPO, f"{REPO}@{FIRST}", []),
        (f"{REPO}@dev", f"{REPO}@{FIRST}", []),
        (f"{REPO}@{FIRST}", f"{REPO}@{FIRST}", []),
        (f"{REPO}@{SECOND}", f"{REPO}@{SECOND}", ["policy.path"]),
        ("org/other", "org/other", ["policy.path"]),
        ("", f"{REPO}@{FIRST}", []),
    ],
)
def test_a_resumed_run_keeps_its_commit_though_the_branch_moved(program, tmp_path, given, kept, changes):
    run = Run(state_dir=str(tmp_path), minutes=1)
    config = configured(f"{REPO}@{FIRST}", run=run, tasks=Tasks(file=str(TASKS)))
    folder = run_folder.create(config, TASKS, "one", resume=False)
    answer(program.parent, f'{{"commit": "{SECOND}"}}')
    again = run_start.resumed_config("one", None, configured(given, run=run, tasks=config.tasks), print)
    assert again.policy.path == kept
    assert [key.place for key in changed_keys(folder.config(), again)] == changes


def test_an_attached_run_needs_a_commit_by_which_a_model_stays_named():
    config = configured(REPO)
    config = msgspec.structs.replace(config, trainer=msgspec.structs.replace(config.trainer, max_train_steps=1))
    with pytest.raises(ConfigError, match="names no commit"):
        run_start.run_attached(config, print, before_only=False)
    given = hub_policy.with_path(Config(), f"{REPO}@{FIRST}")
    assert hub_policy.keep_commit(Config(), given) == given


def test_a_model_to_be_fetched_is_a_warning_of_the_doctor_alone(program):
    assert config_command.model_errors(configured(REPO), TASKS) == []
    finding = doctor_checks.check_model(configured(REPO))
    assert finding.status == "warn"
    assert f"policy fetch {REPO}" in finding.advice
