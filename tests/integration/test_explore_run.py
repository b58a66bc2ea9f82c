"""A run with recipes that choose what is played: explorations beside training, and a model of outcomes."""

import asyncio
import io
import json

import msgspec
from rich.console import Console

from dart_streams.console.bundles.bundle_inputs import bundle_events
from dart_streams.console.runs import run_folder as folder
from dart_streams.console.runs.bundle import Bundle
from tests.command_line import invoke
from tests.integration.test_circle import HERE, circle_config, session_of
from topics import curated, rollout_orders, trajectories

EPISODES = 6


def test_a_run_explores_beside_training_and_replays(services, tmp_path):
    recipes = {"recipe": ("gui-bee", "outcome-model"), "recipes": {"gui-bee": {"episodes": EPISODES, "steps": 4}}}
    config = msgspec.structs.replace(circle_config(services, tmp_path), **recipes)
    made = folder.create(config, HERE / "circle-tasks.toml", folder.new_id(), resume=False)
    asyncio.run(session_of(made, Console(file=io.StringIO(), width=160)).run())
    found = json.loads((made.path / "report.json").read_text())
    assert (found["lost"], found["open"]) == (0, 0)
    path = tmp_path / "run.dart"
    assert invoke("capture", made.id, "--state", config.run.state_dir, "-o", str(path)).exit_code == 0
    bundle = Bundle(path)
    plans = {order.order_id: order.plan for order in bundle_events(bundle, rollout_orders.TOPIC) if order.plan}
    explored = [event for event in bundle_events(bundle, trajectories.TOPIC) if event.purpose == "explore"]
    assert {event.order_id for event in explored} <= plans.keys()
    assert len(plans) == EPISODES * len({event.task_id.partition("#")[0] for event in explored})
    for event in explored:
        assert 1 <= event.steps <= len(plans[event.order_id]) and len(event.screens) == event.steps
        assert event.last_screen, "the screen after the last action"
    members = {member.trajectory_id for group in bundle_events(bundle, curated.TOPIC) for member in group.members}
    assert members and not members & {event.trajectory_id for event in explored}
    again = json.loads(invoke("replay", str(path), "--json").stdout)
    assert again["equal"] is True
