"""The model environment checks a model; its answer, or failure, becomes a reason."""

import sys
from pathlib import Path

import pytest

from console.cli import doctor_checks, run
from console.cli.options import read_config
from console.launch import processes
from console.launch.run_start import refuse_unfit_model
from console.sizing.model_fit import Fit, check_model, refuse_unfit
from dart_streams.config import Config, Policy
from dart_streams.errors import ConfigError


def program(folder: Path, *lines: str) -> Path:
    file = folder / "dart-streams"
    file.write_text("\n".join([f"#!{sys.executable}", "import sys", *lines]))
    file.chmod(0o755)
    return file


def test_a_fitting_model_and_a_missing_environment_refuse_nothing(tmp_path: Path) -> None:
    checker = program(tmp_path, "print('a library greets')", 'print(\'{"architecture": "X"}\')')
    assert check_model(tmp_path, checker, Config()) == Fit(architecture="X")
    refuse_unfit(tmp_path, checker, Config())
    refuse_unfit(tmp_path, tmp_path / "nothing", Config())


@pytest.mark.parametrize(
    ("lines", "reason"),
    [
        (['print(\'{"reason": "has no eyes"}\')', "sys.exit(1)"], "has no eyes"),
        (["sys.exit('Traceback\\nImportError: no vllm')"], ".*ImportError: no vllm"),
    ],
)
def test_a_refusal_and_a_failed_check_give_the_reason(tmp_path: Path, lines: list[str], reason: str) -> None:
    with pytest.raises(ConfigError, match=rf"policy\.path: .* cannot be the policy: {reason}"):
        refuse_unfit(tmp_path, program(tmp_path, *lines), Config())


@pytest.fixture
def unfit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A model that the other environment refuses."""
    model = tmp_path / "model"
    model.mkdir()
    for name in ("config.json", "tokenizer_config.json"):
        (model / name).write_text("{}")
    found = processes.Programs(tmp_path / "none", program(tmp_path, 'print(\'{"reason": "has no eyes"}\')'))
    for module in (processes, doctor_checks):
        monkeypatch.setattr(module, "find_programs", lambda: found)
    return model


def test_the_doctor_gives_the_reason(unfit: Path) -> None:
    finding = doctor_checks.check_model(Config(policy=Policy(path=str(unfit))))
    assert (finding.status, finding.found) == ("fail", f"{unfit} cannot be the policy: has no eyes")


def test_a_run_is_refused_before_anything_is_made_or_started(unfit: Path, tmp_path: Path) -> None:
    file = tmp_path / "config.toml"
    file.write_text(f'[policy]\npath = "{unfit}"\n[run]\nstate_dir = "{tmp_path / "state"}"\n')
    with pytest.raises(ConfigError, match="has no eyes"):
        run.run(config=file, resume="", name="", init=None, attached=False)
    assert not (tmp_path / "state").exists()
    scripted = file.read_text() + '[rollout]\nengine = "scripted"\n'
    file.write_text(scripted)
    refuse_unfit_model(read_config(file))


def test_a_run_with_prompts_longer_than_the_context_is_refused(unfit: Path, tmp_path: Path) -> None:
    (unfit / "config.json").write_text('{"max_position_embeddings": 40}')
    with pytest.raises(ConfigError, match=r"policy\.path: .*: the longest prompt .* but the model's context 40"):
        refuse_unfit_model(Config(policy=Policy(path=str(unfit))))
