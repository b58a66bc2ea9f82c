"""Entry points of installed packages, by which recipes, environments and verbs are found."""

from importlib.metadata import entry_points
from typing import Any

from dart_streams.errors import UserError

PLUGINS = dict.fromkeys(("androidworld", "gymnasium", "openenv", "mcp", "env.mcp"), "adapters")
PLUGINS |= dict.fromkeys(("worker.tracker", "data", "train.sft", "run.open"), "data")
PLUGINS |= {"desktop": "desktops", "osworld": "desktops", "worker.desktops": "desktops", "phone": "phones"}
"""The plug-in of each entry point of the project, but for recipes."""


def known_names(group: str) -> list[str]:
    """Return the names of all installed entry points of a group."""
    return sorted({entry.name for entry in entry_points(group=group)})


def missing_advice(name: str, default: str = "") -> str:
    """Return how to install the plug-in that has an entry point; '' for an entry point of others."""
    advice = "is not installed here: run `make dev` in a checkout, or `pip install --no-deps` its wheel"
    return f"dart-{plugin} {advice}" if (plugin := PLUGINS.get(name, default)) else ""


def load_part(name: str) -> Any:
    """Import what a plug-in brings under a dotted name; raise UserError, with what installs it, without it."""
    for entry in entry_points(group="dart_streams.commands", name=name):
        return entry.load()
    raise UserError(f"{name}: {missing_advice(name)}")
