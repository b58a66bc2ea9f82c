"""The tab Runs while its real broker freezes and is killed: it says so, keeps the folders' runs, and recovers."""

import asyncio
import json
import os
import signal
import uuid
from collections.abc import Iterator
from pathlib import Path

import msgspec
import psutil
import pytest

from benchmarks.private_services import private_folder
from console.bundles.restore import restore
from console.launch.services.daemon import free_port
from console.runs.bundle import Bundle
from dart_streams.config import Config, Run, Services
from tests.integration.recorded_run import record, settings
from tests.launch.test_services_survive import READY_S, await_death, bring_kafka_up, stop
from tests.page.test_page_runs import ROLLOUTS, Runs, ServedPage, link, listed, open_run, served

pytestmark = pytest.mark.timeout(1800)
AWAY = "does not answer"


class Broker:
    """A Kafka of this test alone."""

    def __init__(self, config: Config) -> None:
        self.config = config
        self.pid = bring_kafka_up(config).pid

    def freeze(self) -> None:
        stop(self.pid)

    def kill(self) -> None:
        process = psutil.Process(self.pid)
        os.kill(self.pid, signal.SIGKILL)
        await_death(process)

    def start(self) -> None:
        self.pid = bring_kafka_up(self.config).pid


@pytest.fixture(scope="module")
def broker(services) -> Iterator[Broker]:
    with private_folder(suffix="-away") as folder:
        base = services.config()
        bus = msgspec.structs.replace(base.bus, servers=f"127.0.0.1:{free_port()}", wait_s=READY_S)
        own = {"bus": bus, "run": Run(state_dir=str(folder)), "services": Services(ready_s=READY_S)}
        yield Broker(msgspec.structs.replace(base, **own))


@pytest.fixture(scope="module")
def runs(broker: Broker, tmp_path_factory) -> Runs:
    """Two runs with a folder, and one that only the broker has."""
    state = tmp_path_factory.mktemp("state")
    names = [f"{place}-{uuid.uuid4().hex[:6]}" for place in ("one", "two", "three")]
    for name in names:
        bundle = record(state / f"{name}.dart", ROLLOUTS, settings(step_ms=1, run=name))
        restore(Bundle(bundle), broker.config, state, lambda _: None)
        bundle.unlink()
    (state / "runs" / names[2]).rename(state / "moved")
    return Runs(state, names, broker.config)


def note_of(name: str) -> str:
    """Return an expression of the note in a run's row of the list."""
    row = f"[...document.querySelectorAll('tbody tr')].find((row) => row.innerText.includes({json.dumps(name)}))"
    return f"({row}?.querySelector('.missing')?.innerText ?? '')"


async def export(page: ServedPage, name: str) -> None:
    """Ask for a bundle of a run of the list."""
    await page.tab.go("runs")
    await page.tab.click(f'a[title="export {name}"]')
    await page.tab.click('.export button[data-kind="bundle"]:not([disabled])')


async def test_runs_are_kept_while_the_broker_is_away_and_recover(runs: Runs, broker: Broker, tmp_path: Path):
    one, two, three = runs.names
    said = "(document.querySelector('.export [role=status]')?.innerText ?? '')"
    async with served(runs, one, tmp_path) as page:
        shown = page.tab
        await shown.devtools.call("Browser.setDownloadBehavior", behavior="deny")
        await shown.go("runs")
        await listed(shown, *runs.names)
        await open_run(page, three)
        await shown.go("runs")
        await asyncio.to_thread(broker.freeze)
        await export(page, two)
        await shown.until(f"{note_of(two)}.includes({json.dumps(AWAY)})", "the list of a frozen broker")
        await asyncio.to_thread(broker.kill)
        await listed(shown, *runs.names)
        for name in (one, two, three):
            await shown.until(f"{note_of(name)}.includes({json.dumps(AWAY)})", f"what is wrong with {name}")
        await shown.until(f"{said}.includes('broker')", "the failed export")
        assert "Traceback" not in await shown.js(said)
        await shown.shot("runs-broker-away")
        await shown.click(link(two))
        await page.is_shown(two)
        status = "(document.getElementById('status')?.innerText ?? '')"
        await shown.until(f"{status}.includes('broker')", "what the opened run waits for")
        await shown.shot("runs-broker-away-open")

        await asyncio.to_thread(broker.start)
        await shown.until("!!document.querySelector('.headline')", "the opened run, of the broker that is back")
        await shown.go("trajectories")
        await shown.until("document.querySelectorAll('tbody tr').length >= 10", "its topics")
        await shown.go("runs")
        for name in runs.names:
            await shown.until(f"!{note_of(name)}.includes({json.dumps(AWAY)})", f"the list with {name}")
        await open_run(page, three)
        await export(page, two)
        await shown.until(f"{said}.startsWith('Ready, ')", "the export")
