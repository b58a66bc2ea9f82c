"""Entry points of installed packages, by which recipes and environments are found."""

from importlib.metadata import entry_points


def known_names(group: str) -> list[str]:
    """Return the names of all installed entry points of a group."""
    return sorted({entry.name for entry in entry_points(group=group)})


def missing_advice(group: str) -> str:
    """Return what to do where a group has no entry point at all, as where code runs without being installed; or ''."""
    if known_names(group):
        return ""
    return (
        f"no installed package has an entry point of the group {group!r}, not even dart-streams, whose code runs here "
        "without being installed: `pip install --no-deps` its wheel, or its checkout"
    )
