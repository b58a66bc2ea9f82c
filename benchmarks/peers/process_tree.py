"""CPU time of a process tree by kind: Python, Playwright's driver, Chromium."""

import psutil

DRIVER = "node"


def cpu_s(root: psutil.Process) -> dict[str, float]:
    """Return CPU seconds of ``python`` (the root), ``node`` and ``chromium`` (the rest, and all ended children)."""
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
