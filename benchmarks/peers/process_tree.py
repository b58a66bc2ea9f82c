"""CPU time of a process and all that it started, by kind: the benchmark's own Python, Playwright's driver, Chromium."""

import psutil

DRIVER = "node"


def cpu_s(root: psutil.Process) -> dict[str, float]:
    """Return the CPU seconds so far of ``python`` (the root), ``node`` and ``chromium``, its other descendants.

    Those that have ended and were waited for count too: what the root or a driver started was a browser.
    """
    found = {"python": 0.0, "node": 0.0, "chromium": 0.0}
    for process in (root, *root.children(recursive=True)):
        try:
            name, times = process.name(), process.cpu_times()
        except psutil.NoSuchProcess:
            continue
        kind = "python" if process == root else "node" if name == DRIVER else "chromium"
        found[kind] += times.user + times.system
        found["chromium"] += times.children_user + times.children_system
    return found


def cpu_difference(before: dict[str, float], after: dict[str, float]) -> dict[str, float]:
    """Return the CPU seconds between two readings."""
    return {kind: after[kind] - before[kind] for kind in after}
