"""A browser process that grows without end is ended, at the cost of its episodes."""

import asyncio

import structlog

from tests.integration.env_harness import Harness, serving, worker
from tests.integration.test_miniwob_faults import TASKS, fed
from workers.env.backends.miniwob import browser as browser_module
from workers.env.backends.miniwob import watchdogs
from workers.env.backends.miniwob.browser import Browser
from workers.env.backends.miniwob.oracle import NEXT

SLOTS = 4
BOUND_BYTES = 400 << 20
"""Lower than the worker's own, for a machine of a few gigabytes; what is done is the same."""
LEAKS = """(() => {
    window.kept = [];
    for (let number = 0; number < 20; number++) window.kept.push(new Uint8Array(2 ** 25).fill(1));
    while (true) {}
})()"""
"""Takes 640 MB and loops until its process is ended or its call times out."""
CALL_TIMEOUT_S = 60.0
BOUND_S = 120.0


async def test_a_page_that_fills_memory_costs_its_episode_alone(services, tmp_path, monkeypatch):
    monkeypatch.setitem(NEXT, "click-color", LEAKS)
    monkeypatch.setattr(watchdogs, "RENDERER_BYTES", BOUND_BYTES)
    monkeypatch.setattr(browser_module, "lower_priority", lambda pid: None)
    (tmp_path / "tasks.toml").write_text(TASKS)
    own = {"isolation": "problem", "last_screen": False, "call_timeout_s": CALL_TIMEOUT_S}
    config = services.config(
        env={"backend": "miniwob", "slots": SLOTS, "miniwob": own},
        tasks={"file": str(tmp_path / "tasks.toml")},
        run={"drain_s": 20, "state_dir": str(tmp_path)},
    )
    harness = Harness(config, lambda request: None)
    with structlog.testing.capture_logs() as logs:
        async with serving(harness), worker(config), fed(harness) as deployment:
            await deployment.until_more_succeed(SLOTS)
            leaking = await deployment.place("click-color")
            deployment.looping.add(leaking)
            await harness.until(lambda: leaking in harness.ended)
            await deployment.until_more_succeed(2 * SLOTS)
            await deployment.drain()
    [fault] = deployment.faults
    assert (fault.order.order_id, fault.end.kind, fault.end.reward) == (leaking, "env_error", None)
    assert fault.end.reason == "the page crashed"
    # One that takes long to end is met again by the next look.
    [line] = {entry["pid"]: entry for entry in logs if entry["event"] == "browser process ended"}.values()
    assert (line["kind"], "of 400 at most: a page leaks" in line["reason"]) == ("renderer", True)
    assert not [line for line in logs if line["event"] == "browser died; starting another"]


async def test_a_browser_whose_own_process_grows_is_ended(monkeypatch):
    monkeypatch.setattr(watchdogs, "BROWSER_BYTES", 1)
    monkeypatch.setattr(watchdogs, "MEMORY_INTERVAL_S", 0.1)
    browser = await Browser.launch(CALL_TIMEOUT_S)
    try:
        async with asyncio.timeout(BOUND_S):
            await asyncio.gather(*browser._watches)
        assert browser.devtools.closed
        assert await asyncio.to_thread(browser.process.wait, BOUND_S) != 0
    finally:
        await browser.kill()
