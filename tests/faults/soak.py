"""Hours of a circle under a random schedule of faults; its processes must stay within bounds.

Usage: ``python -m tests.faults.soak [--hours H] [--seed N] [--schedule FILE] [--slots N] [--folder FOLDER]``. The seed
is printed, and the schedule written to FOLDER/schedule.json; ``--schedule`` replays one. What was measured is in
FOLDER/soak.json. The exit code is 1 if the circle did not go on after a fault, a rule does not hold, or a bound is
passed.
"""

import argparse
import asyncio
import contextlib
import random
import secrets
import sys
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec
import psutil
from rich.console import Console

from dart_streams.deadline import Deadline
from tests.faults import scene
from tests.faults.circle import KINDS, Circle, circle, config_of
from tests.faults.invariants import read_lags
from tests.faults.orderly_end import unwind_at_sigterm
from tests.faults.scene import Fault, Site

LASTS_S = 30.0
GAP_S = (5.0, 40.0)
"""The quiet time before each fault, least and most."""
SETTLED_S = 120.0
"""How long after a fault its effects may last until the processes are measured."""
GROWTH_MB, GROWTH_HANDLES, GROWTH_THREADS = 192.0, 64, 24
"""By how much a kind of process may use more than at its first measurement."""
LAG = 5_000
"""How many records a consumer group may be behind once it has settled, for each 100 slots."""
RUN_DISK_MB, RUN_DISK_MB_AN_HOUR = 64.0, 256.0
END_S_AN_HOUR = 900.0
"""How much longer the end of a run may take for each hour that it lasted: its report reads all of its topics again."""
CONSOLE = Console(width=160, highlight=False)


class Planned(msgspec.Struct, frozen=True):
    """A fault of the schedule, and the quiet seconds before it."""

    quiet_s: float
    fault: str


class Usage(msgspec.Struct, frozen=True):
    """What the processes of a kind use together."""

    memory_mb: float
    handles: int
    threads: int


class Sample(msgspec.Struct, frozen=True):
    """The circle at a time: what each kind of process uses, lag by consumer group, megabytes of the run's disk."""

    at_s: float
    usage: dict[str, Usage]
    lag: dict[str, int]
    disk_mb: float


class Past(NamedTuple):
    """A bound that was passed."""

    what: str
    was: float
    bound: float


def schedule(seed: int, seconds: float, names: Sequence[str], lasts_s: float = LASTS_S) -> list[Planned]:
    """Return a random schedule that fills the time; the same seed gives the same. Each fault comes before any twice."""
    rng, left_s = random.Random(seed), seconds
    planned: list[Planned] = []
    bag: list[str] = []
    while left_s > 0:
        if not bag:
            bag = list(names)
            rng.shuffle(bag)
        quiet_s = round(rng.uniform(*GAP_S), 1)
        planned.append(Planned(quiet_s, bag.pop()))
        left_s -= quiet_s + lasts_s
    return planned


def passed(samples: Sequence[Sample], slots: int) -> list[Past]:
    """Return the bounds that were passed: of growth since the first sample, of lag, of the disk.

    What could not be measured has passed its bound.
    """
    first = samples[0]
    return [past for sample in samples[1:] for past in (*grown(first, sample), *behind(sample, slots))]


def grown(first: Sample, sample: Sample) -> Iterator[Past]:
    """Yield what grew too much since the first sample."""
    for kind, before in first.usage.items():
        now = sample.usage.get(kind)
        if now is None:
            yield Past(f"{kind} is missing at {sample.at_s:.0f} s", 0, 1)
            continue
        for name, growth in (("memory_mb", GROWTH_MB), ("handles", GROWTH_HANDLES), ("threads", GROWTH_THREADS)):
            was, bound = getattr(now, name), getattr(before, name) + growth
            if was > bound:
                yield Past(f"{kind} {name} at {sample.at_s:.0f} s", was, bound)
    bound = first.disk_mb + RUN_DISK_MB + RUN_DISK_MB_AN_HOUR * (sample.at_s - first.at_s) / 3600
    if sample.disk_mb > bound:
        yield Past(f"the run's folder at {sample.at_s:.0f} s, MB", sample.disk_mb, bound)


def behind(sample: Sample, slots: int) -> Iterator[Past]:
    """Yield the consumer groups that are too far behind."""
    if not sample.lag:
        yield Past(f"lag is not known at {sample.at_s:.0f} s", 0, 1)
    for group, was in sample.lag.items():
        if was > lag_bound(slots):
            yield Past(f"lag of {group} at {sample.at_s:.0f} s", was, lag_bound(slots))


def lag_bound(slots: int) -> float:
    """Return how many records a group may be behind."""
    return LAG * max(1.0, slots / 100)


def usage_of(processes: Iterable[psutil.Process]) -> Usage:
    """Return what processes use."""
    memory, handles, threads = 0, 0, 0
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            memory += process.memory_info().rss
            handles += process.num_fds()
            threads += process.num_threads()
    return Usage(round(memory / 2**20, 1), handles, threads)


def measured(running: Circle, site: Site, begin: float) -> Sample:
    assert running.process is not None
    processes = {kind: running.of_kind(kind) for kind in KINDS}
    processes["supervisor"] = [psutil.Process(running.process.pid)]
    usage = {kind: usage_of(found) for kind, found in processes.items() if found}
    lag: defaultdict[str, int] = defaultdict(int)
    for one in asyncio.run(read_lags(running.config)) or ():
        lag[one.group] += one.records
    return Sample(round(time.monotonic() - begin, 1), usage, dict(lag), round(size_of(site.folder) / 2**20, 1))


def size_of(folder: Path) -> int:
    """Return the bytes of a folder's files; those that go meanwhile do not count."""
    size = 0
    for file in folder.rglob("*"):
        with contextlib.suppress(FileNotFoundError):
            size += file.lstat().st_size
    return size


def quiet(seconds: float) -> None:
    """Let the circle run."""
    deadline = Deadline(seconds)
    while not deadline.expired:
        time.sleep(min(1.0, max(0.05, deadline.remaining_s)))


def settled(running: Circle, site: Site, begin: float, slots: int) -> Sample:
    """Measure the circle once each kind of process is there and lag is known and bounded, or at the latest then."""
    deadline = Deadline(SETTLED_S)
    while True:
        sample = measured(running, site, begin)
        if deadline.expired or (len(sample.usage) > len(KINDS) and not any(behind(sample, slots))):
            return sample
        quiet(1.0)


def live(
    running: Circle, site: Site, planned: Sequence[Planned], faults: dict[str, Fault], slots: int, seconds: float
) -> Iterator[list[Sample]]:
    """Cause one fault after the other until the time has passed; yield, after each, what was used after each so far."""
    begin, samples = time.monotonic(), []
    quiet(GAP_S[1])
    samples.append(settled(running, site, begin, slots))
    for number, one in enumerate(planned, start=1):
        quiet(one.quiet_s)
        recovery_s = scene.of(running, site, faults[one.fault])
        samples.append(settled(running, site, begin, slots))
        running.measured.setdefault("recovery", []).append((one.fault, recovery_s))
        CONSOLE.print(f"{number}/{len(planned)} {one.fault}: two more steps {recovery_s:.1f} s after its end")
        yield samples
        if time.monotonic() - begin > seconds:
            return


def keep(folder: Path, running: Circle, samples: Sequence[Sample], past: Sequence[Past]) -> None:
    """Write what was measured."""
    kept = {"measured": running.measured, "samples": samples, "passed": past}
    (folder / "soak.json").write_bytes(msgspec.json.format(msgspec.json.encode(kept)))


def report(samples: Sequence[Sample], past: Sequence[Past]) -> int:
    """Print what passed a bound; return the exit code."""
    last = samples[-1]
    for kind, usage in last.usage.items():
        CONSOLE.print(f"{kind}: {samples[0].usage.get(kind, usage)} at first, {usage} in the end")
    for one in past:
        CONSOLE.print(f"passed: {one.what}: {one.was:.0f}, bound {one.bound:.0f}")
    return int(bool(past))


def main(arguments: list[str]) -> int:
    """Run a soak; return its exit code."""
    parser = argparse.ArgumentParser(prog="soak")
    parser.add_argument("--hours", type=float, default=2.0)
    parser.add_argument("--seed", type=int, default=secrets.randbelow(2**31))
    parser.add_argument("--schedule", type=Path, help="replay this schedule")
    parser.add_argument("--slots", type=int, default=100)
    parser.add_argument("--folder", type=Path, default=Path(".dart/soak"))
    wanted = parser.parse_args(arguments)
    wanted.folder.mkdir(parents=True, exist_ok=True)
    faults = {fault.name: fault for fault in scene.every_fault(LASTS_S) if not fault.reason}
    planned = (
        msgspec.json.decode(wanted.schedule.read_bytes(), type=list[Planned])
        if wanted.schedule
        else schedule(wanted.seed, wanted.hours * 3600, list(faults))
    )
    (wanted.folder / "schedule.json").write_bytes(msgspec.json.format(msgspec.json.encode(planned)))
    CONSOLE.print(f"seed {wanted.seed}; {len(planned)} faults, in {wanted.folder / 'schedule.json'}")
    with scene.site(hours=wanted.hours) as site:
        tables = {"env": {"slots": wanted.slots}, "run": {"minutes": wanted.hours * 60 * 3 + 60}}
        with circle(config_of(site, site.folder, **tables), "soak", site.prefixes) as running:
            running.bound_s += END_S_AN_HOUR * wanted.hours
            samples: list[Sample] = []
            for samples in live(running, site, planned, faults, wanted.slots, wanted.hours * 3600):
                keep(wanted.folder, running, samples, passed(samples, wanted.slots))
            running.is_killed_once_more_and_ends_well()
            past = passed(samples, wanted.slots)
            keep(wanted.folder, running, samples, past)
            return report(samples, past)


if __name__ == "__main__":
    unwind_at_sigterm()
    sys.exit(main(sys.argv[1:]))
