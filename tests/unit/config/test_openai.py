"""The openai engine's configuration: wrong combinations are refused by the names of their keys, and no key is shown."""

from pathlib import Path

import msgspec
import pytest

from console.launch.processes import Programs, needs_model, processes_of
from dart_streams.config import load, parse
from dart_streams.errors import ConfigError

URL = "https://api.example/v1"


def tables(run: dict | None = None, curation: dict | None = None, **openai) -> dict:
    return {
        "rollout": {"engine": "openai", "openai": {"base_url": URL, "model": "m", **openai}},
        "run": {"minutes": 0} if run is None else run,
        "curation": curation or {},
    }


@pytest.mark.parametrize(
    ("wrong", "keys"),
    [
        (
            tables(run={}, curation={"dispatch": {"mode": "coupled"}}, trainable=True),
            ["curation.dispatch.mode", "rollout.engine"],
        ),
        (tables(base_url="api.example/v1"), ["rollout.openai: ", "base_url", "https://HOST/v1"]),
        (tables(base_url="https://me:pw@api.example/v1"), ["base_url", "api_key"]),
        (tables(base_url="https://api.example/v1?key=x"), ["base_url", "api_key"]),
        (tables(base_url="http://api.example/v1", api_key="env:KEY"), ["api_key", "in the clear", "https://"]),
        (tables(options={"stream": True, "model": "x"}), ["rollout.openai: options", "model, stream"]),
        (
            tables(options={"top_k": 1, "seed": 3}, trainable=True),
            ["rollout.openai: options", "seed, top_k", "trainable"],
        ),
    ],
)
def test_a_wrong_combination_names_its_keys(wrong, keys):
    with pytest.raises(ConfigError) as refused:
        parse(wrong)
    for key in keys:
        assert key in str(refused.value)


def test_a_key_is_never_in_the_file_and_in_the_clear_on_loopback_alone():
    with pytest.raises(ConfigError, match=r"rollout\.openai: api_key must say where the key is") as refused:
        parse(tables(api_key="sk-1234567890"))
    assert "sk-1234" not in str(refused.value)
    assert parse(tables(base_url="http://127.0.0.1:8000/v1", api_key="env:KEY")).rollout.openai.api_key == "env:KEY"


def test_a_key_file_is_relative_to_the_configuration(tmp_path: Path):
    (tmp_path / "key").write_text("sk-1234567890\n")
    (tmp_path / "c.toml").write_text(
        f'[run]\nminutes = 0\n[rollout]\nengine = "openai"\n[rollout.openai]\nbase_url = "{URL}"\nmodel = "m"\n'
        'api_key = "file:key"\n'
    )
    config = load(tmp_path / "c.toml")
    assert config.rollout.openai.api_key == f"file:{tmp_path / 'key'}"
    assert b"sk-1234" not in msgspec.json.encode(config)


@pytest.mark.parametrize(
    ("made", "model", "trainer", "curator"),
    [
        (tables(), False, 0, 0),
        (tables(run={}, trainable=True), True, 1, 1),
        (tables(trainable=True), True, 0, 0),
        ({"run": {"minutes": 0}}, True, 1, 0),
        ({}, True, 1, 1),
    ],
)
def test_a_run_has_the_processes_that_it_needs(made, model, trainer, curator, tmp_path: Path):
    """A run that only evaluates has no curator; a trainer only if nobody else has weights to evaluate."""
    programs = Programs(*(tmp_path / name for name in ("streams", "model")))
    for program in (programs.streams, programs.model):
        program.touch()
    config = parse(made)
    processes = processes_of(config, tmp_path / "runs" / "r" / "config.toml", programs)
    assert needs_model(config) == model
    assert (len(processes.trainer), len(processes.curator)) == (trainer, curator)
    [worker] = processes.rollout
    assert worker.command[0] == str(programs.model if model else programs.streams)
