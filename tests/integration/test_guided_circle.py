"""A whole circle of processes whose orders have recorded actions: demonstrated first, patched, and never trained on."""

import asyncio
import io
import json

import msgspec
import pytest
from rich.console import Console

import topics
from dart_streams.console.runs import run_folder as folder
from dart_streams.console.runs.run_log import read_log
from dart_streams.console.runs.run_state import RunState
from tests.integration.test_circle import HERE, circle_config, session_of

pytestmark = pytest.mark.timeout(600)


def test_a_circle_patches_rollouts_along_its_demonstrations(services, tmp_path):
    base = circle_config(services, tmp_path, episodes=0, train_steps=3)
    pool = msgspec.structs.replace(base.curation.pool, enabled=False)
    config = msgspec.structs.replace(
        base, recipe=("ui-s1",), curation=msgspec.structs.replace(base.curation, pool=pool)
    )
    made = folder.create(config, HERE / "circle-tasks.toml", folder.new_id(), resume=False)
    asyncio.run(session_of(made, Console(file=io.StringIO(), width=160)).run())
    assert json.loads((made.path / "report.json").read_text())["lost"] == 0
    state = RunState().fold(read_log(made.config().bus, topics.ALL))
    finished = {trajectory.trajectory_id: trajectory for trajectory in state.finished.values()}
    shown = {one.trajectory_id for one in finished.values() if one.purpose == "demonstration"}
    orders = [order for order, _ in state.orders.values() if order.purpose == "train"]
    assert len(shown) == 24, "a demonstration of each training task, without a pool"
    assert {order.guide.trajectory_id for order in orders if order.guide is not None} <= shown
    trained = [one for one in finished.values() if one.purpose == "train"]
    early = {one.group_id for one in trained if not one.guided}
    assert early < {f"g{number:06d}" for number in range(10)}, "ordered before dispatch had read of demonstrations"
    assert len({one.group_id for one in trained}) > 10
    assert any(one.recorded_steps and one.outcome == "success" for one in trained), "a patch leads on to the end"
    members = [member for group, _ in state.groups.values() for member in group.members]
    assert members
    assert not any(set(one.selected) & set(finished[one.trajectory_id].recorded_steps) for one in members)
