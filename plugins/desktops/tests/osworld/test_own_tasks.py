"""OSWorld's own task files, if there is a checkout, give the same rewards on any machine."""

import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from dart_desktops.osworld import oracles, sidecar, tasks
from dart_desktops.osworld.mirror import Mirror
from dart_desktops.osworld.osworld_session import OsworldTaskSession, TaskResources
from dart_streams.config.tasks import OsworldTasks
from dart_streams.deadline import Deadline
from plugins.desktops.tests import osworld_needs
from plugins.desktops.tests.served_desktops import Served, served

pytestmark = [
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.timeout(900),
    osworld_needs.EVALUATORS,
    osworld_needs.CHECKOUT,
]
SHELL = [
    "os/bedcedc4-4d72-425e-ad62-21960b11fe0d",
    "os/ec4e3f68-9ea4-4c18-a5c9-69f89d1178b3",
    "os/f9be0997-4b7c-45c5-b05c-4612b44a6118",
    "os/e0df059f-28a6-4169-924f-b9623e7184cc",
    "os/3ce045a0-877b-42aa-8d2c-b4a863336ab8",
    "os/a4d98375-215b-4a4d-aee9-3d4370fccc41",
]
"""Tasks that need no file, and whose oracle is a command."""
LIMIT_S = 240.0


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def desktops(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Served]:
    async with served(tmp_path_factory.mktemp("served"), (1920, 1080), slots=1, lease_s=900.0) as running:
        yield running


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def evaluators() -> AsyncIterator[sidecar.EvaluatorSidecar]:
    started = sidecar.EvaluatorSidecar()
    yield started
    await started.stop()


@pytest.mark.parametrize("page", SHELL)
async def test_the_start_is_worth_0_and_the_oracle_s_end_1_on_both(desktops, evaluators, tmp_path: Path, page):
    task = tasks.load(OsworldTasks().examples(Path()), page)
    oracle = oracles.oracle_of(task, made=False)
    assert oracle is not None
    for ours in (True, False):
        for wanted in (0.0, 1.0):
            assignment = OsworldTaskSession(task, TaskResources(Mirror(tmp_path), evaluators, ours))
            async with contextlib.AsyncExitStack() as stack:
                stack.push_async_callback(assignment.close)
                machine = await stack.enter_async_context(desktops.machine(ttl_s=900.0))
                await assignment.set_up(machine, Deadline(LIMIT_S))
                if wanted:
                    await oracle.solve(machine)
                assert await assignment.evaluate(machine, Deadline(LIMIT_S)) == wanted, f"ours: {ours}"
