"""What went wrong during an evaluation, although OSWorld's code may have caught it and scored 0."""

_recorded: list[str] = []


def record(reason: str) -> None:
    """Remember a fault of this process's evaluation."""
    _recorded.append(reason)


def recorded_faults() -> list[str]:
    """Return the faults so far."""
    return list(_recorded)


def clear() -> None:
    """Forget them."""
    _recorded.clear()
