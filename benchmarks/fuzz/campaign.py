"""A campaign against one surface: a process plays mutated samples, and another watches it."""

import asyncio
import hashlib
import os
import random
import re
import resource
import subprocess
import sys
import time
import traceback
from pathlib import Path
from typing import Any

import msgspec

from benchmarks.fuzz.mutation import mutate_sample
from benchmarks.fuzz.surfaces import SURFACES, Play, Surface
from dart_streams.errors import UserError

CPU_S = 1.0
"""CPU time of a sample from which on it is a finding."""
GROWTH_BYTES = 200 << 20
"""Memory that a sample may take beyond the process's own."""
HANGS_S = 60.0
POLL_S = 0.5
OWN = re.compile(r"sample|log|played\.json|finding-")
"""Files of a process's folder that the campaign writes."""
WARM_UP = 50
"""Samples before the process's own memory is read."""


class Finding(msgspec.Struct, frozen=True):
    """What a sample did; the sample is a file of the findings."""

    what: str
    sample: str


class Played(msgspec.Struct):
    """The samples that were played, how many of them were read, and the findings."""

    samples: int = 0
    read: int = 0
    findings: list[Finding] = []


def measure(name: str, seconds: float, seed: int, folder: Path) -> dict[str, Any]:
    """Play a surface for some time; return the samples, those that were read without an error, and the findings.

    A process that hangs or dies is a finding, and the next one goes on with the next seed.
    """
    if name not in SURFACES:
        raise UserError(f"no surface {name!r}: use one of {', '.join(SURFACES)}")
    total, end = Played(), time.monotonic() + seconds
    while (left := end - time.monotonic()) > 0:
        work = folder / name / str(seed)
        work.mkdir(parents=True, exist_ok=True)
        command = [sys.executable, "-m", "benchmarks.fuzz.campaign", name, str(seed), f"{left:.1f}", str(work)]
        (work / "tmp").mkdir(exist_ok=True)
        own = {**os.environ, "TMPDIR": str(work / "tmp"), "HOME": str(work / "tmp")}
        with (work / "log").open("wb") as log:
            died = watch(subprocess.Popen(command, env=own, stdout=log, stderr=log), work)
        played = msgspec.json.decode((work / "played.json").read_bytes(), type=Played)
        found = [*played.findings, *([Finding(died, str(work / "sample"))] if died else [])]
        total = Played(total.samples + played.samples, total.read + played.read, [*total.findings, *found])
        seed += 1
    return msgspec.to_builtins(total) | {"next_seed": seed}


def watch(process: "subprocess.Popen[bytes]", work: Path) -> str:
    """Wait for a process; return why it ended before its time, empty if it did not."""
    newest, since = -1.0, time.monotonic()
    while process.poll() is None:
        time.sleep(POLL_S)
        sample = work / "sample"
        if (changed := sample.stat().st_mtime_ns if sample.exists() else 0) != newest:
            newest, since = changed, time.monotonic()
        if time.monotonic() - since > HANGS_S:
            process.kill()
            process.wait()
            return f"it takes more than {HANGS_S:g} s"
    return f"the process ended with {process.returncode}" if process.returncode else ""


async def play_samples(surface: Surface, seed: int, seconds: float, work: Path) -> None:
    """Play mutated samples; what they do is in ``played.json`` of the folder."""
    rng, samples, played, end = random.Random(seed), surface.samples(), Played(findings=[]), time.monotonic() + seconds
    own = work / "a" / "b" / "c"
    own.mkdir(parents=True, exist_ok=True)
    async with surface.opened(own) as play:
        for sample in samples:  # The samples as they are.
            await play_sample(surface, play, sample, played, work)
        memory = peak_bytes()
        while time.monotonic() < end and peak_bytes() < memory + GROWTH_BYTES:
            await play_sample(surface, play, mutate_sample(rng, samples, surface.longest), played, work)
            memory = peak_bytes() if played.samples == WARM_UP else memory
            if played.samples % 100 == 0:
                write(played, work)
        if peak_bytes() >= memory + GROWTH_BYTES:
            played.findings.append(keep(f"memory grew by {(peak_bytes() - memory) >> 20} MiB", work))
    write(played, work)


async def play_sample(surface: Surface, play: Play, sample: bytes, played: Played, work: Path) -> None:
    """Play a sample, and note what it does."""
    (work / "sample").write_bytes(sample)
    played.samples += 1
    before, memory = paths_of(work), peak_bytes()
    began = time.process_time()
    try:
        await play(sample)
        played.read += 1
    except surface.allowed:
        pass
    except Exception:  # noqa: BLE001 - any other error is what is looked for
        played.findings.append(keep(traceback.format_exc(limit=-4), work))
    if (took := time.process_time() - began) > CPU_S:
        played.findings.append(keep(f"{took:.1f} s of CPU", work))
    if (grown := peak_bytes() - memory) > GROWTH_BYTES:
        played.findings.append(keep(f"it takes {grown >> 20} MiB", work))
    if changed := sorted(before ^ paths_of(work)):
        played.findings.append(keep(f"it wrote or removed {changed}", work))


def paths_of(work: Path) -> set[tuple[str, float]]:
    """Return paths and times of the files around the folder of the samples' own, of temporary ones, and folders."""
    found = {(str(path), 0.0) for path in work.parent.iterdir()}
    for folder, folders, files in os.walk(work):
        folders[:] = [name for name in folders if Path(folder, name) != work / "a" / "b" / "c"]
        found |= {(f"{folder}/{name}", 0.0) for name in folders}
        others = [Path(folder, name) for name in files if Path(folder) != work or not OWN.match(name)]
        found |= {(str(path), path.lstat().st_mtime) for path in others}
    return found


def keep(what: str, work: Path) -> Finding:
    """Keep the present sample as a finding."""
    content = (work / "sample").read_bytes()
    path = work / f"finding-{hashlib.sha256(content).hexdigest()[:16]}"
    path.write_bytes(content)
    return Finding(what, str(path))


def peak_bytes() -> int:
    """Return the most memory that this process has had."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def write(played: Played, work: Path) -> None:
    """Write what was played."""
    (work / "played.json").write_bytes(msgspec.json.encode(played))


if __name__ == "__main__":
    name, own_seed, limit, place = sys.argv[1:]
    write(Played(), Path(place))
    asyncio.run(play_samples(SURFACES[name], int(own_seed), float(limit), Path(place)))
