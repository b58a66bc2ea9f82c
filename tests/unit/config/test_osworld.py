"""The deployments on OSWorld, for two cores and for GPUs: DART's settings in each, and no difference but of sizes."""

import csv
from pathlib import Path
from typing import Any

import msgspec
import pytest

from dart_streams.config import Config, load, parse, tasks
from dart_streams.config.tables import key_values, read_tables
from tests.sources import ROOT

SMALL = ROOT / "deploy/config/osworld.toml"
GPUS = [ROOT / f"deploy/config/ui-tars/{name}.toml" for name in ("one-gpu", "two-gpus", "three-gpus", "eight-gpus")]
CHECKED = ROOT / "docs/data/osworld.csv"
NAMES = {"run.id", "bus.prefix", "policy.model_id", "policy.path"}
PLACES = {"env.osworld.lease_token", "env.osworld.mirror_folder"}
COUNTS = {
    *("env.workers", "env.slots", "desktops.slots", "rollout.workers", "rollout.max_in_flight", "rollout.roll_width"),
    *("warmup.demonstrations", "warmup.steps", "warmup.batch", "trainer.processes", "trainer.groups_per_step"),
    *("trainer.max_train_steps", "trainer.checkpoint_every", "evaluation.episodes"),
}
LENGTHS = {"policy.max_pixels", "policy.max_tokens", "trainer.micro_batch", "trainer.micro_batch_tokens"}
MEMORY = {"trainer.dtype", "trainer.recompute", "trainer.offload", "trainer.head_tokens"}
RATES = {"trainer.learning_rate", "warmup.learning_rate", "rollout.vllm.parity_nats"}
TIMES = {
    *("run.minutes", "env.request_timeout_s", "env.episode_timeout_s", "evaluation.timeout_s"),
    "rollout.vllm.start_s",
}
SERVED = {"rollout.engine", *(f"rollout.openai.{key}" for key in ("base_url", "model", "api_key", "demonstrate"))}
"""The file for one GPU trains nothing: a server of the same model is evaluated there, and demonstrates."""
SIZES = NAMES | PLACES | COUNTS | LENGTHS | MEMORY | RATES | TIMES | SERVED


def keys_of(file: Path) -> dict[str, Any]:
    """Return each key of a file with the values of its recipe and of the defaults."""
    config: Config = parse(read_tables(file, str(file)), str(file))
    return dict(key_values(msgspec.to_builtins(config)))


def differing(file: Path) -> set[str]:
    """Return the keys that differ from the file for two cores, but for the trainer's of a file that trains nothing."""
    small, large = keys_of(SMALL), keys_of(file)
    found = {key for key in small.keys() | large.keys() if small.get(key) != large.get(key)}
    return found if large["run.minutes"] else {key for key in found if not key.startswith("trainer.")}


def checked(**wanted: str) -> set[str]:
    """Return the tasks of the check's results that are runnable and have these values."""
    with CHECKED.open(newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["verdict"] == "runnable"]
    return {f"{row['task']}" for row in rows if all(row[key] == value for key, value in wanted.items())}


@pytest.mark.parametrize("file", GPUS, ids=lambda file: file.stem)
def test_the_files_for_gpus_differ_from_that_for_two_cores_in_sizes_alone(file: Path):
    assert differing(file) - SIZES == set()


def test_every_size_differs_in_a_file():
    assert SIZES - set().union(*map(differing, GPUS)) == set()


@pytest.mark.parametrize("file", [SMALL, *GPUS], ids=lambda file: file.stem)
def test_each_file_has_the_settings_of_the_paper_and_a_desktop_a_slot(file: Path):
    config = load(file)
    assert config.recipe == ("dart",)
    assert (config.env.backend, config.policy.max_images, config.policy.max_texts) == ("osworld", 5, 35)
    assert (config.policy.dialect.name, config.policy.dialect.prompt) == ("ui-tars", "box")
    task_set = tasks.load(file.parent / config.tasks.file)
    assert {(page.environment, page.max_steps) for page in task_set.pages} == {("osworld", 30)}
    assert task_set.train
    assert task_set.heldout
    assert config.desktops.slots == config.env.workers * config.env.slots
    assert config.env.osworld.lease_url == f"http://127.0.0.1:{config.desktops.port}"
    folder, name = Path(config.env.osworld.lease_token.removeprefix("file:")).resolve().parts[-2:]
    assert (folder, name) == ("desktops", "desktops-0.token")


def test_the_dozen_needs_no_page_and_gpus_have_all_tasks_without_one():
    pages = [page.page for page in tasks.load(SMALL.parent / "osworld-tasks.toml").pages]
    assert len(pages) == 12
    assert set(pages) <= checked(untouched="0", oracle="1", files="none", pages="")
    pages = [page.page for page in tasks.load(GPUS[0].parent / "osworld-tasks.toml").pages]
    assert sorted(pages) == sorted(checked(untouched="0", pages=""))


def test_the_page_starts_the_file_by_the_commands_of_its_head():
    page = (ROOT / "docs/how-to/osworld.md").read_text()
    head = [line.removeprefix("#   ") for line in SMALL.read_text().splitlines() if line.startswith("#   ")]
    commands = [command.strip() for line in head for command in line.partition("  #")[0].split(" && ")]
    assert len(commands) == 5
    assert [command for command in commands if command.removeprefix("export ") not in page] == []
