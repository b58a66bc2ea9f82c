"""A person takes over a rollout of an OSWorld task on a leased machine, which OSWorld evaluates."""

from pathlib import Path
from typing import Any

import pytest

from plugins.desktops.tests import osworld_needs
from plugins.desktops.tests.osworld import click_tasks
from plugins.desktops.tests.served_desktops import served
from plugins.desktops.tests.test_demonstrate import act
from plugins.desktops.tests.test_take_over_desktops import check_parts, ordered, policy_click, taking
from plugins.desktops.tests.two_workers import LEASE_S
from tests.integration.page_browser import browser_tab
from tests.integration.test_take_over_page import give_back, press, rollout
from tests.page.test_page import SHOTS

pytestmark = [pytest.mark.timeout(1200), osworld_needs.EVALUATORS]
SIZE = (1920, 1080)
"""The screen of OSWorld's machines, larger than the person's window and the policy's image."""
BESIDE = (1200, 900)
"""A place without a button."""


async def test_an_osworld_task_is_taken_over_and_evaluated(
    services: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """The policy clicks beside; the person presses one button, gives back, then the other one, and says Done."""
    async with served(tmp_path, SIZE, slots=1, lease_s=LEASE_S) as desktops:
        file = click_tasks.write(tmp_path, "press-both", max_steps=12)
        env = click_tasks.leased(desktops, tmp_path, slots=1)
        made = {"drain_s": 20.0, "state_dir": str(tmp_path)}
        config = taking(services.config(run=made, tasks={"file": str(file)}, env=env))
        text = policy_click(config, SIZE, *BESIDE)
        async with (
            rollout(config, ordered("osworld/os/press-both#0", 12), monkeypatch) as run,
            browser_tab(SHOTS) as tab,
        ):
            person = await press(tab, run, text)
            await act(person, lambda: person.click(*click_tasks.GO))
            await give_back(person, run, 2, text)
            await act(person, lambda: person.click(*click_tasks.ALSO))
            await tab.shot("take-over-osworld")
            await tab.click("#done:not([disabled])")
            said = await person.end()
            assert tab.errors == []
    assert said.startswith("success, reward 1"), said
    [steps] = run.harness.observed.values()
    check_parts(steps, run.noted, config)
    assert {(one.screenshot.width, one.screenshot.height) for one in steps if one.screenshot} == {SIZE}
