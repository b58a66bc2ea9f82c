"""CPU and memory by kind of process."""

import re
from collections import defaultdict


def by_kind(by_process: dict[str, float]) -> dict[str, float]:
    """Sum values by kind of process: ``env-0`` and ``env-1`` are ``env``."""
    found: defaultdict[str, float] = defaultdict(float)
    for name, value in by_process.items():
        found[re.sub(r"-\d+$", "", name)] += value
    return {name: round(value, 1) for name, value in sorted(found.items())}
