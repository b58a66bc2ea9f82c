"""A desktop's call beside a busy process of usual priority on the same processor."""

import asyncio
import os
import shlex
import sys
from pathlib import Path

import pytest

from dart_desktops.desktop import call_priority
from dart_desktops.desktop.backend import DesktopBackend
from plugins.desktops.tests.test_desktop import config, run, task
from tests.waiting import wait_until

PINNED = f"import os, time; os.sched_setaffinity(0, {{{min(os.sched_getaffinity(0))}}})\n"
CALL_CPU_S = 1.5
CALL = f"{PINNED}print(time.monotonic())\nwhile time.process_time() < {CALL_CPU_S}: pass\nprint(time.monotonic())"
SAYS = "print(f'{time.monotonic()} {time.process_time()}')"
BUSY = f"{PINNED}while True: [time.process_time() for _ in range(9999)], {SAYS}"
"""Says at which times it has taken how much of the processor, a line in one write."""


async def test_a_call_has_its_part_of_a_processor_beside_a_busy_process(monkeypatch, tmp_path: Path):
    monkeypatch.setattr(call_priority, "LATE_S", 600.0)  # The growing weight would help it too.
    own = DesktopBackend(config())
    desktop = await own.open(task("answer"))
    try:
        if not desktop.sandbox.group.folders:
            pytest.skip("no control group may be made here: priorities are those of the processes")
        await desktop.reset(task("answer"))
        # A session of its own is a scheduling group of its own, as another terminal's.
        with (tmp_path / "busy").open("wb") as said:
            loop = [sys.executable, "-u", "-c", BUSY]
            busy = await asyncio.create_subprocess_exec(*loop, stdout=said, start_new_session=True)
        try:
            await asyncio.to_thread(wait_until, lambda: (tmp_path / "busy").stat().st_size)
            begun, ended = map(float, (await run(desktop, f"python3 -c {shlex.quote(CALL)}", 400.0)).split())
        finally:
            busy.kill()
            await busy.wait()
        rows = (map(float, line.split()) for line in (tmp_path / "busy").read_text().splitlines())
        taken = [cpu_s for at_s, cpu_s in rows if begun < at_s < ended]
        taken_s = taken[-1] - taken[0]
        assert CALL_CPU_S / (CALL_CPU_S + taken_s) > 0.25, f"the busy process took {taken_s:.1f} s"
    finally:
        await desktop.close()
        await own.stop()
