"""Record of faults during an evaluation: OSWorld's code may catch them and score 0."""

_recorded: list[str] = []


def record(reason: str) -> None:
    """Record a fault of this process's evaluation."""
    _recorded.append(reason)


def recorded_faults() -> list[str]:
    """Return the recorded faults."""
    return list(_recorded)


def clear() -> None:
    """Delete the recorded faults."""
    _recorded.clear()
