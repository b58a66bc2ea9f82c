"""The first lines of a failed test of a circle: what ended, what waits and where, the last record, how to repeat it.

A circle is a run whose processes have logged during the test; the newest counts. Whatever can't be asked any more is
named so: this may not hide the failure itself.
"""

import asyncio
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from benchmarks.private_services import HOMES
from console.runs.run_folder import RunFolder
from dart_streams.bus import sync_clients
from dart_streams.bus.lag import lag_reader
from dart_streams.config import Bus
from topics import ALL

ASK_S = 5.0
"""How long a broker that may be away is asked for each of lags and records."""
SHOWN, CHARACTERS = 3, 160


def lines_of(made: RunFolder, test: str) -> list[str]:
    """Return at most ten lines about a run and the test that failed with it."""
    bus = msgspec.structs.replace(made.config().bus, wait_s=ASK_S)
    said = [
        *either(lambda: ended(made), "ended"),
        *either(lambda: asyncio.run(waiting(bus)), "waits"),
        *either(lambda: last_record(bus), "last record"),
        f"logs: {made.path / 'logs'}",
        f"again: .venv/streams/bin/python -m pytest -q '{test}'",
    ]
    return [f"circle {made.id}", *(line[:CHARACTERS] for line in said)]


def either(ask: Callable[[], Iterator[str] | list[str]], what: str) -> list[str]:
    """Return an answer, or that there is none."""
    try:
        return list(ask()) or [f"{what}: nothing"]
    except Exception as error:  # noqa: BLE001 - the failure that is reported is another
        return [f"{what}: not known, {type(error).__name__}: {error}"]


def ended(made: RunFolder) -> Iterator[str]:
    """Yield the newest deaths of processes."""
    for death in sorted(made.journal().deaths, key=lambda one: -one.at_ms)[:SHOWN]:
        yield f"ended: {death.process}, {death.reason}, times {death.times}, last said: {death.last_line}"


async def waiting(bus: Bus) -> list[str]:
    """Return the partitions that are furthest ahead of their group."""
    async with asyncio.timeout(ASK_S), lag_reader(bus) as reader:
        lags = await reader.read()
    assert lags is not None, "the broker does not say"
    behind = sorted((lag for lag in lags if lag.records), key=lambda lag: -lag.records)[:SHOWN]
    return [f"waits: {lag.group} at {lag.topic}-{lag.partition}, offset {lag.committed} of {lag.end}" for lag in behind]


def last_record(bus: Bus) -> Iterator[str]:
    """Yield the newest record of all topics."""
    client = sync_clients.create_consumer(bus, "evidence")
    try:
        names = client.topics() & {bus.prefix + topic.name for topic in ALL}
        places = [
            sync_clients.TopicPartition(name, number)
            for name in sorted(names)
            for number in client.partitions_for_topic(name) or ()
        ]
        ends = client.end_offsets(places)
        begins = client.beginning_offsets(places)
        wanted = [place for place in places if ends[place] > begins[place]]
        client.assign(wanted)
        for place in wanted:
            client.seek(place, ends[place] - 1)
        found: dict[Any, Any] = {}
        deadline = time.monotonic() + ASK_S
        while len(found) < len(wanted) and time.monotonic() < deadline:
            for place, batch in client.poll(timeout_ms=500).items():
                found[place] = batch[-1]
    finally:
        client.close()
    for record in sorted(found.values(), key=lambda one: -one.timestamp)[:1]:
        place = f"{record.topic.removeprefix(bus.prefix)}-{record.partition}, offset {record.offset}"
        yield f"last record: {place}, {time.time() - record.timestamp / 1000:.0f} s old: {record.value!r}"


def newest_run(folders: list[Path], since_s: float) -> RunFolder | None:
    """Return the run below some folders that has logged last, if it has since then."""
    logs = [log for folder in folders for log in folder.rglob("runs/*/logs/*.log")]
    logs = [log for log in logs if (log.parents[1] / "config.toml").exists()]
    newest = max(logs, key=lambda log: log.stat().st_mtime, default=None)
    return RunFolder(newest.parents[1]) if newest and newest.stat().st_mtime >= since_s else None


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: "pytest.CallInfo[Any]") -> Any:
    """Put the evidence of a circle before the report of a failure."""
    report = yield
    temporary = getattr(item.config, "_tmp_path_factory", None)
    if report.failed and temporary is not None:
        ours = HOMES.glob(f"{os.getpid()}*")
        made = newest_run([temporary.getbasetemp(), *ours], call.start)
        entries = getattr(getattr(report.longrepr, "reprtraceback", None), "reprentries", ())
        if made and entries:
            entries = report.longrepr.chain[0][0].reprentries if hasattr(report.longrepr, "chain") else entries
            entries[0].lines[:0] = [*lines_of(made, item.nodeid), ""]
    return report
