"""``deploy/config/osworld.toml`` runs: DART's settings and the real model side, on fewer and shorter episodes.

Task files of our own have the names of two of its tasks, which are infeasible: a checkout of OSWorld is not needed.
"""

import asyncio
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest
import pytest_asyncio

from console.runs import run_folder
from console.runs.run_log import read_events
from dart_streams.config import Config, load
from plugins.desktops.tests import osworld_needs
from plugins.desktops.tests.served_desktops import served
from tests.sources import ROOT
from topics import curated, observations, trained

SHIPPED = ROOT / "deploy/config/osworld.toml"
MODEL = ROOT / ".venv/model/bin/python"
TRAINED, HELD_OUT = "os/fe41f596-a71b-4c2f-9b2f-9dcd40b568c3", "chrome/ae78f875-5b98-4907-bbb5-9c737fc68c03"

pytestmark = [
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.timeout(1800),
    osworld_needs.EVALUATORS,
    pytest.mark.skipif(not MODEL.is_file(), reason="no environment .venv/model (make setup)"),
]


def write_tasks(folder: Path) -> Path:
    """Write a checkout with both tasks, and the task set of them; return its file."""
    examples = folder / "checkout/evaluation_examples"
    for name in (TRAINED, HELD_OUT):
        file = examples / f"examples/{name}.json"
        file.parent.mkdir(parents=True)
        content = {"id": file.stem, "instruction": "Turn the screen inside out.", "config": []}
        file.write_text(json.dumps({**content, "evaluator": {"func": "infeasible"}}))
    names = dict(name.split("/") for name in (TRAINED, HELD_OUT))
    (examples / "test_all.json").write_text(json.dumps({app: [name] for app, name in names.items()}))
    file = folder / "tasks.toml"
    table = f'folder = "checkout"\ntasks = {[TRAINED, HELD_OUT]}\nheldout = ["{names["chrome"]}"]\n'
    file.write_text(f"[osworld]\n{table}max_steps = 3\ndemonstrations = 1\n")
    return file


def shortened(config: Config, **tables: dict[str, Any]) -> Config:
    replace = msgspec.structs.replace
    return replace(config, **{name: replace(getattr(config, name), **keys) for name, keys in tables.items()})


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def finished(services: Any, tmp_path_factory: pytest.TempPathFactory) -> tuple[Config, str]:
    """The configuration of the run that has ended, and what its program printed."""
    folder = tmp_path_factory.mktemp("dart")
    config = services.serve(load(SHIPPED), folder)
    async with served(folder, (1920, 1080), slots=config.env.slots, lease_s=900.0) as desktops:
        places = {"lease_url": desktops.leases, "lease_token": f"file:{desktops.token_file}"}
        places |= {"mirror_folder": str(folder / "mirror")}
        config = shortened(
            config,
            run={"minutes": 20.0, "train_steps": 1},
            tasks={"file": str(write_tasks(folder))},
            env={"osworld": msgspec.structs.replace(config.env.osworld, **places)},
            warmup={"demonstrations": 1, "steps": 4},
            evaluation={"episodes": 1},
            ui={"enabled": False},
        )
        run_folder.write_toml(folder / "osworld.toml", config)
        command = [Path(sys.executable).with_name("dart-streams"), "run", folder / "osworld.toml"]
        done = await asyncio.to_thread(
            subprocess.run, command, cwd=ROOT, capture_output=True, text=True, timeout=1500, check=False
        )
    shown = done.stdout + done.stderr
    assert done.returncode == 0, shown[-8000:]
    return load(folder / "runs/latest/config.toml"), shown


async def test_the_run_has_the_settings_of_the_paper_and_of_the_file(finished: tuple[Config, str]):
    config, shown = finished
    assert "recipe dart: 1 setting differs from the paper's: trainer.learning_rate" in " ".join(shown.split())
    shipped = load(SHIPPED)
    policy = msgspec.structs.replace(config.policy, path=shipped.policy.path)
    assert (config.recipe, policy, config.rollout) == (shipped.recipe, shipped.policy, shipped.rollout)
    assert (config.curation, config.trainer) == (shipped.curation, shipped.trainer)


async def test_it_trains_on_desktops_with_nothing_lost(finished: tuple[Config, str]):
    config, shown = finished
    played = [event.end for event in read_events(config.bus, [observations.TOPIC]) if event.end is not None]
    assert {end.reason for end in played if end.reward is None and end.kind != "cancelled"} == set(), shown
    groups = list(read_events(config.bus, [curated.TOPIC]))
    assert {len(group.members) for group in groups} == {config.curation.budget.base}
    assert {member.source for group in groups for member in group.members} >= {"pool"}
    assert list(read_events(config.bus, [trained.TOPIC])), shown
    report = json.loads((Path(config.run.state_dir) / "runs/latest/report.json").read_text())
    assert (report["lost"], report["open"], report["failed_loads"]) == (0, 0, 0)
    assert report["evaluation"]["after"]["version"] >= 1
