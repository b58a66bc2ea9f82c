"""Which environment backends there are: ours, and those that installed packages bring by entry points."""

from importlib.metadata import EntryPoint, entry_points

from dart_streams.errors import ConfigError

BUILT_IN = ("desktop", "miniwob", "osworld", "simulated")
"""The backends that are part of this project."""
ENTRY_POINTS = "dart_streams.environments"
"""The group of entry points by which installed packages bring others."""


def find_backend(name: str) -> EntryPoint:
    """Return the entry point that an installed package has for ``name``; raise ConfigError if none or two have."""
    found = {entry_point_text(entry): entry for entry in entry_points(group=ENTRY_POINTS, name=name)}
    if not found:
        known = sorted({*BUILT_IN, *(entry.name for entry in entry_points(group=ENTRY_POINTS))})
        raise ConfigError(
            f"env.backend: no environment {name!r}; known are {', '.join(known)}. "
            f"Another one comes with a package that has an entry point of the group {ENTRY_POINTS!r}: install it here"
        )
    if len(found) > 1:
        raise ConfigError(f"env.backend: {name!r} is brought by {' and by '.join(sorted(found))}: uninstall one")
    [entry] = found.values()
    return entry


def entry_point_text(entry: EntryPoint) -> str:
    """Return what an entry point means and whose it is."""
    return f"{entry.value} ({entry.dist.name} {entry.dist.version})" if entry.dist else entry.value
