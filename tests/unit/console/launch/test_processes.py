"""Which processes a run has: a tracker only where one is configured, beside the circle and not within it."""

import os
from pathlib import Path

import pytest

from console.launch import keeper, processes, subreaper
from console.launch.processes import Programs, processes_of
from dart_streams.config import parse
from dart_streams.errors import UserError

FILE = Path("/state/runs/one/config.toml")


def configured(tool: str = ""):
    return parse({"rollout": {"engine": "scripted"}, "tracker": {"tool": tool}}, "the test")


@pytest.fixture
def program(tmp_path: Path) -> Path:
    path = tmp_path / "dart-streams"
    path.touch()
    return path


def test_a_tracker_ends_last_and_the_run_goes_on_without_it(program):
    found = Programs(program, program, program)
    [spec] = processes_of(configured("tensorboard"), FILE, found).tracker
    assert spec.last
    assert spec.optional
    assert spec.command[:3] == (str(program), "worker", "tracker")


def test_only_a_tracker_needs_the_data_environment(program):
    run = processes_of(configured(), FILE, Programs(program, program, Path("missing")))
    assert run.tracker == ()
    with pytest.raises(UserError, match=r"tracker\.tool 'wandb' needs: run `make data`"):
        processes_of(configured("wandb"), FILE, Programs(program, program, Path("missing")))


@pytest.mark.parametrize(("has_model", "model"), [(True, "/opt/venv"), (False, "/opt/model")])
def test_an_environment_without_siblings_serves_what_it_has(has_model, model, monkeypatch):
    """An image has one: of streams, or with vLLM of all."""
    monkeypatch.setattr(processes, "find_spec", lambda name: object() if has_model and name == "vllm" else None)
    found = processes.find_programs(Path("/opt/venv"))
    assert (found.streams, found.model) == (Path("/opt/venv/bin/dart-streams"), Path(model, "bin/dart-streams"))
    beside = processes.find_programs(Path("/checkout/.venv/model"))
    assert beside.streams == Path("/checkout/.venv/streams/bin/dart-streams")


def test_a_script_that_has_ended_is_not_signalled(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "getppid", iter([4711, 1]).__next__)
    monkeypatch.setattr(os, "kill", None)
    monkeypatch.setattr(os, "dup2", lambda *_: None)
    monkeypatch.setattr(subreaper, "catch_signals", lambda: 0)
    monkeypatch.setattr(subreaper, "run_command", lambda *_: (UserError.exit_code, False))
    assert keeper.main(["name", str(tmp_path / "log"), "1"]) == UserError.exit_code
