"""A desktop's call beside a busy process of usual priority on the same processor."""

import asyncio
import os
import shlex
import sys

import psutil
import pytest

from tests.desktops.test_desktop import config, run, task
from workers.env.backends.desktop import call_priority
from workers.env.backends.desktop.backend import DesktopBackend

PROCESSOR = min(os.sched_getaffinity(0))
PINNED = f"import os, time; os.sched_setaffinity(0, {{{PROCESSOR}}})"
CALL_CPU_S = 1.5


async def test_a_call_has_its_part_of_a_processor_beside_a_busy_process(monkeypatch):
    monkeypatch.setattr(call_priority, "LATE_S", 600.0)  # The growing weight would help it too.
    own = DesktopBackend(config())
    desktop = await own.open(task("answer"))
    try:
        if not desktop.sandbox.group.folders:
            pytest.skip("no control group may be made here: priorities are those of the processes")
        await desktop.reset(task("answer"))
        program = f"{PINNED}\nwhile time.process_time() < {CALL_CPU_S}: pass"
        # A session of its own is a scheduling group of its own, as another terminal's.
        loop = [sys.executable, "-c", f"{PINNED}\nwhile True: pass"]
        busy = await asyncio.create_subprocess_exec(*loop, start_new_session=True)
        try:
            before_s = psutil.Process(busy.pid).cpu_times().user
            await run(desktop, f"python3 -c {shlex.quote(program)}", 60.0)
            taken_s = psutil.Process(busy.pid).cpu_times().user - before_s
        finally:
            busy.kill()
            await busy.wait()
        assert CALL_CPU_S / (CALL_CPU_S + taken_s) > 0.25, f"the busy process took {taken_s:.1f} s"
    finally:
        await desktop.close()
        await own.stop()
