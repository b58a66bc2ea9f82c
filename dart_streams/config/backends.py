"""Environment backends: those of the core, and those of installed packages by entry point."""

from importlib.metadata import EntryPoint, entry_points

from dart_streams.config.entry_points import known_names, missing_advice
from dart_streams.errors import ConfigError

BUILT_IN = ("miniwob", "simulated")
ENTRY_POINTS = "dart_streams.environments"
"""The group of entry points of other backends."""


def find_backend(name: str) -> EntryPoint:
    """Return the entry point of backend ``name``; raise ConfigError unless exactly one package has it."""
    entries = {entry_point_text(entry): entry for entry in entry_points(group=ENTRY_POINTS, name=name)}
    if not entries:
        known = ", ".join(sorted({*BUILT_IN, *known_names(ENTRY_POINTS)}))
        others = f"Another one comes with a package that has an entry point of the group {ENTRY_POINTS!r}: install it"
        raise ConfigError(f"env.backend: no environment {name!r}; known are {known}. {missing_advice(name) or others}")
    if len(entries) > 1:
        raise ConfigError(f"env.backend: {name!r} is brought by {' and by '.join(sorted(entries))}: uninstall one")
    [entry] = entries.values()
    return entry


def entry_point_text(entry: EntryPoint) -> str:
    """Return an entry point's target and package."""
    return f"{entry.value} ({entry.dist.name} {entry.dist.version})" if entry.dist else entry.value
