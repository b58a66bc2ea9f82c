"""The page on UI-TARS-1.5-7B is followed, with a small random model by the same id on a hub of this machine.

Commands and tables are those of the page. Substituted are the hub's address and the sizes of the model. ``make`` only
says what it would do, since packages for GPUs are not installed. The command that trains is planned here, and those
that serve are compared with their configuration: tests/path/test_ui_tars.py runs them.
"""

import itertools
import json
import os
import re
import shlex
import subprocess
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import tomli_w

from tests.local_hub import LocalHub, local_hub
from tests.path.ui_tars_page import (
    CONFIGS,
    MODEL,
    MODEL_ID,
    PAGE,
    READ,
    ROOT,
    SERVED,
    SETUP,
    TRAINED,
    file_of,
    write_small_model,
)

PLANNED = " --dry-run --json --gpus 8 --gpu-memory 80"
LIMIT_S = 600.0
"""Of a command, on a machine that does other things at the same time."""

pytestmark = [
    pytest.mark.timeout(1800),
    pytest.mark.skipif(not MODEL.is_dir(), reason="no environment .venv/model (make setup)"),
]
Shell = Callable[[str], str]


@pytest.fixture(scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalHub]:
    """A hub that has the small model by the id of the page."""
    folder = tmp_path_factory.mktemp("ui-tars") / "model"
    write_small_model(folder)
    with local_hub() as running:
        running.add(MODEL_ID, folder)
        yield running


@pytest.fixture(scope="module")
def shell(hub: LocalHub, tmp_path_factory: pytest.TempPathFactory) -> Shell:
    """Return a function that runs a command after the page's exports; it must succeed, and its output is returned."""
    environment = {**os.environ, **hub.environment(tmp_path_factory.mktemp("home"))}
    exports = [line for line in SETUP if line.startswith("export ")]

    def run(command: str) -> str:
        words = ["bash", "-ec", "\n".join([*exports, command])]
        done = subprocess.run(
            words, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=LIMIT_S, check=False
        )
        assert done.returncode == 0, f"{command}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
        return done.stdout

    return run


@pytest.fixture(scope="module")
def said(shell: Shell) -> dict[str, str]:
    """The output of each command that neither trains nor serves, in the order of the page."""
    return {command: shell(command) for command in READ}


def configured(command: str) -> dict[str, Any]:
    """Return the tables of a command's configuration."""
    return tomllib.loads((ROOT / file_of(command)).read_text())


def test_each_command_of_the_page_has_a_test_here():
    assert [len(kind) for kind in (SETUP, READ, TRAINED, SERVED)] == [2, 3, 1, 2]
    assert all(MODEL_ID in command or CONFIGS in command for command in [*READ, *TRAINED, *SERVED])


def test_the_packages_are_made_by_the_target_of_the_page(shell: Shell):
    [making] = [command for command in SETUP if command.startswith("make ")]
    assert "deploy/local/setup.sh" in shell(making.replace("make ", "make --dry-run "))


def test_the_model_is_fetched_and_placed(said: dict[str, str], hub: LocalHub):
    fetched, fits, placed = said.values()
    commit = hub.repositories[MODEL_ID].refs["main"]
    assert tomllib.loads(fetched)["policy"]["path"] == f"{MODEL_ID}@{commit}"
    assert "It fits" in fits
    assert "CUDA_VISIBLE_DEVICES=4,5,6,7" in placed


def test_two_gpus_take_the_adapters_of_the_page(said: dict[str, str], shell: Shell, tmp_path: Path):
    [text] = re.findall(r"^```toml\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    tables = tomllib.loads((ROOT / CONFIGS / "two-gpus.toml").read_text())
    tables["trainer"] |= tomllib.loads(text)["trainer"]
    file = tmp_path / "adapters.toml"
    file.write_text(tomli_w.dumps(tables))
    assert "It fits" in shell(f"dart-streams doctor --config {file} --model {MODEL_ID} --gpus 2 --gpu-memory 80")


def test_the_run_of_the_page_places_its_processes(said: dict[str, str], shell: Shell):
    [command] = TRAINED
    rows = json.loads(shell(command + PLANNED))["processes"]
    counts = {kind: sum(row["process"].startswith(kind) for row in rows) for kind in ("env", "rollout", "trainer")}
    assert counts == {"env": 4, "rollout": 4, "trainer": 1}


def test_the_server_of_the_page_is_that_of_its_configuration():
    serve, run = SERVED
    words = shlex.split(serve)
    options = dict(itertools.pairwise(words))
    tables = configured(run)
    assert options["serve"] == MODEL_ID
    assert options["--served-model-name"] == tables["rollout"]["openai"]["model"]
    assert json.loads(options["--limit-mm-per-prompt"])["image"] == tables["policy"]["max_images"]
    assert json.loads(options["--mm-processor-kwargs"])["max_pixels"] == tables["policy"]["max_pixels"]
    assert f"env:{words[0].partition('=')[0]}" == tables["rollout"]["openai"]["api_key"]
