"""Differences between two sets of resources, value by value."""

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

Resource = dict[str, Any]


class Change(NamedTuple):
    """A value that differs: of which resource, where in it, and both values. A missing value is None."""

    kind: str
    name: str
    path: str
    before: Any
    after: Any


def flatten(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Return the leaves of a value with their paths; named items of a list go by their name."""
    if isinstance(value, dict) and value:
        for key, item in value.items():
            yield from flatten(item, f"{path}.{key}" if path else key)
    elif isinstance(value, list) and value:
        for index, item in enumerate(value):
            name = item.get("name", index) if isinstance(item, dict) else index
            yield from flatten(item, f"{path}[{name}]")
    else:
        yield path, value


def keyed(resources: Iterable[Resource]) -> dict[tuple[str, str], Resource]:
    """Return resources by kind and name; a ConfigMap's name loses the digest of its content."""
    found = {}
    for resource in resources:
        kind, name = resource["kind"], resource["metadata"]["name"]
        found[kind, name.rpartition("-")[0] if kind == "ConfigMap" else name] = resource
    return found


def compare_resources(before: Iterable[Resource], after: Iterable[Resource]) -> list[Change]:
    """Return what differs; a resource that only one side has is one change, at the path ``""``."""
    old, new = keyed(before), keyed(after)
    changes = []
    for kind, name in sorted(old.keys() | new.keys()):
        if (kind, name) not in old or (kind, name) not in new:
            changes.append(Change(kind, name, "", old.get((kind, name)), new.get((kind, name))))
            continue
        left, right = dict(flatten(old[kind, name])), dict(flatten(new[kind, name]))
        for path in sorted(left.keys() | right.keys()):
            if left.get(path) != right.get(path):
                changes.append(Change(kind, name, path, left.get(path), right.get(path)))
    return changes
