"""Keys that do not go together are refused by the command that people run, with a text that names each of them."""

import tomllib
from pathlib import Path

import pytest
import tomli_w

from console.cli.run import run
from console.launch.run_start import refuse_unfit_model
from console.sizing import model_fit
from dart_streams.config import Config, load, parse
from dart_streams.config.openai import Openai
from dart_streams.errors import ConfigError, UserError
from tests.command_line import invoke
from tests.unit.console.sizing.model_directories import ui_tars

TASKS = Path(__file__).parents[3] / "deploy/config/tasks.toml"
ENDPOINT = 'rollout.engine = "openai"\nrollout.openai.base_url = "http://127.0.0.1:9/v1"\nrollout.openai.model = "m"\n'
WRONG = {
    "deltas in float32": ("trainer.publish.full_every = 10", ["trainer.publish", "full_every", 'dtype = "bfloat16"']),
    "deltas and adapters": (
        'trainer.publish.dtype = "bfloat16"\ntrainer.publish.full_every = 10\ntrainer.lora.rank = 8',
        ["lora.rank", "publish.full_every"],
    ),
    "deltas that no engine loads": (
        f"{ENDPOINT}rollout.openai.trainable = true\n"
        'trainer.publish.dtype = "bfloat16"\ntrainer.publish.full_every = 10',
        ["trainer.publish.full_every", "rollout.engine"],
    ),
    "feedback that expires untrained": (
        "feedback.enabled = true\nbus.topics.retention_hours.curated = 48",
        ["bus.topics.retention_hours.curated", "feedback.enabled"],
    ),
    "several nodes without a rendezvous": ("trainer.nodes = 2", ["nodes = 2", 'rendezvous = "HOST:PORT"']),
    "a rendezvous of one node": ('trainer.rendezvous = "node-0:29400"', ["'node-0:29400'", "nodes = 1"]),
    "a rendezvous without a port": (
        'trainer.nodes = 2\ntrainer.rendezvous = "node-0:0"',
        ["'node-0:0'", "port from 1 to 65535"],
    ),
    "8-bit state in main memory": (
        'trainer.offload = "all"\ntrainer.optimizer = "adamw_8bit"',
        ["trainer", 'offload = "all"', 'optimizer = "adamw_8bit"'],
    ),
    "an adapter's targets without a rank": ('trainer.lora.targets = ["q_proj"]', ["trainer.lora", "targets", "rank"]),
    "an adapter's alpha without a rank": ("trainer.lora.alpha = 32", ["trainer.lora", "alpha", "rank"]),
    "training on an endpoint's text": (ENDPOINT, ["engine openai", "rollout.openai.trainable", "run.minutes = 0"]),
    "an endpoint without an address": (
        'run.minutes = 0\nrollout.engine = "openai"',
        ["openai.base_url", "openai.model"],
    ),
    "an endpoint's keys with another engine": (
        "rollout.openai.demonstrate = true",
        ["openai.demonstrate", 'engine = "vllm"'],
    ),
    "instructions that the trainer's prompt lacks": (
        f'{ENDPOINT}rollout.openai.trainable = true\nrollout.openai.instructions = "x"',
        ["rollout.openai", "instructions", "trainable"],
    ),
    "a second set of an endpoint": (
        f'run.minutes = 0\n{ENDPOINT}rollout.vllm.second_set = "host"',
        ["vllm.second_set", 'engine = "openai"'],
    ),
    "a second set of a script": (
        'rollout.engine = "scripted"\nrollout.vllm.second_set = "device"',
        ["vllm.second_set", 'engine = "scripted"'],
    ),
    "ranks of an endpoint": (
        f"run.minutes = 0\n{ENDPOINT}rollout.vllm.tensor_parallel = 2",
        ["vllm.tensor_parallel", 'engine = "openai"'],
    ),
    "ranks of a script": (
        'rollout.engine = "scripted"\nrollout.vllm.tensor_parallel = 2',
        ["vllm.tensor_parallel", 'engine = "scripted"'],
    ),
    "no ranks": ("rollout.vllm.tensor_parallel = 0", ["rollout.vllm.tensor_parallel", ">= 1"]),
    "a dialect's key for another dialect": (
        'policy.max_tokens = 64\npolicy.dialect.name = "computer_13"\npolicy.dialect.prompt = "box"',
        ["policy.dialect", 'prompt = "box"', 'name = "computer_13"', 'for "ui-tars"'],
    ),
    "lenience in the native grammar": (
        'policy.dialect.strictness = "lenient"',
        ["policy.dialect", 'strictness = "lenient"', 'name = "native"'],
    ),
    "answers too short for a dialect": (
        'policy.dialect.name = "ui-tars"\npolicy.max_tokens = 24',
        ["policy: max_tokens = 24", "dialect.name"],
    ),
    "a tracker's target without a tool": ('tracker.target = "/tmp/x"', ["tracker", "target", "tool"]),
    "an address for a tracker that writes files": (
        'tracker.tool = "tensorboard"\ntracker.target = "http://127.0.0.1:5000"',
        ["tracker", "target", "tool"],
    ),
    "online with a tracker that has no offline": (
        'tracker.tool = "mlflow"\ntracker.offline = false',
        ["tracker", "offline", "tool"],
    ),
    "a tracker that is none": ('tracker.tool = "comet"', ["tracker.tool", "'tensorboard'", "'wandb'"]),
    "a place that is none": ('rollout.vllm.second_set = "gpu"', ["rollout.vllm.second_set", "'device'", "'host'"]),
    "a dialect that is none": ('policy.dialect.name = "uitars"', ["policy.dialect.name", "'ui-tars'"]),
}


def checked(tmp_path: Path, text: str) -> str:
    """Return what ``config check`` says of a file, which it must refuse."""
    file = tmp_path / "wrong.toml"
    file.write_text(f'tasks.file = "{TASKS}"\n{text}\n')
    done = invoke("config", "check", file)
    assert isinstance(done.exception, UserError), "an error for the user, not a traceback"
    assert str(done.exception) == "1 error", done.output
    return " ".join(done.output.split())


@pytest.mark.parametrize(("text", "keys"), WRONG.values(), ids=WRONG)
def test_what_does_not_go_together_is_refused_and_each_key_is_named(tmp_path: Path, text: str, keys: list[str]):
    said = checked(tmp_path, text)
    assert [key for key in keys if key not in said] == [], said


@pytest.mark.parametrize(
    "text",
    [
        'trainer.publish.dtype = "bfloat16"\ntrainer.publish.full_every = 10\nrollout.vllm.second_set = "host"',
        'trainer.lora.rank = 8\ntrainer.lora.targets = ["q_proj"]\nrollout.vllm.second_set = "device"',
        "trainer.lora.rank = 8\ntrainer.imitate.trajectories = 8",
        "feedback.enabled = true\nbus.topics.retention_hours = {curated = 0, observations = 48}",
        'trainer.lora.rank = 8\nrollout.vllm.tensor_parallel = 2\nrollout.vllm.second_set = "host"',
        f"{ENDPOINT}rollout.openai.trainable = true\ntrainer.lora.rank = 8",
        'tracker.tool = "mlflow"\ntracker.target = "http://127.0.0.1:5000"',
        'tracker.tool = "wandb"\ntracker.offline = false',
        'rollout.engine = "scripted"\ntrainer.lora.rank = 8',
    ],
)
def test_what_goes_together_is_taken(tmp_path: Path, text: str):
    file = tmp_path / "right.toml"
    file.write_text(text)
    assert load(file) == parse(tomllib.loads(text))
    file.write_text(tomli_w.dumps(tomllib.loads(text)))
    assert load(file) == parse(tomllib.loads(text))


@pytest.mark.parametrize("targets", [("query",), ("q_proj", "lm_head")])
def test_targets_that_the_model_lacks_are_refused_at_the_start(tmp_path, monkeypatch, targets):
    monkeypatch.setattr(model_fit, "refuse_unfit", lambda *_: None)
    folder = ui_tars(tmp_path / "model")
    config = parse({"policy": {"path": str(folder)}, "trainer": {"lora": {"rank": 8, "targets": list(targets)}}})
    with pytest.raises(UserError, match=rf"trainer\.lora\.targets: .*'{targets[-1]}'.*q_proj"):
        refuse_unfit_model(config)


def test_a_missing_key_of_an_endpoint_is_refused_at_the_start(tmp_path, monkeypatch):
    monkeypatch.delenv("NOT_SET", raising=False)
    config = tmp_path / "endpoint.toml"
    config.write_text(
        f'{ENDPOINT}rollout.openai.api_key = "env:NOT_SET"\nrun.minutes = 0\nrun.state_dir = "{tmp_path / "state"}"'
    )
    with pytest.raises(ConfigError, match=r"rollout\.openai\.api_key is env:NOT_SET, .* set it"):
        run(config, resume="", name="", init=None, attached=False, before=False)
    assert not (tmp_path / "state").exists()


def test_defaults_change_nothing_and_each_changed_key_is_known():
    assert Config().changed == Config().rollout.changed == frozenset()
    assert Openai(base_url="http://h/v1", options={"a": 1}).changed == {"base_url", "options"}
