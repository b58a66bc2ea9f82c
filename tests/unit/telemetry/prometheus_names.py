"""Series and labels that Prometheus has of our instruments, and those that a query names."""

import re

from dart_streams.telemetry.names import BY_NAME

SERIES = {"histogram": ("_bucket", "_sum", "_count"), "counter": ("",), "gauge": ("",)}
"""What Prometheus calls the series of an instrument, after its name, as the collector is set up."""
EVERY_SERIES = frozenset(["job", "instance", "dart_run_id", "host_name", "service_version"])
"""Labels of the resource."""
WORDS = frozenset(
    ["by", "without", "on", "ignoring", "group_left", "group_right", "offset", "bool", "and", "or", "unless"]
)


def series() -> dict[str, set[str]]:
    """Return the labels of every series by its name."""
    return {
        name.replace(".", "_") + suffix: EVERY_SERIES | set(one.attributes) | ({"le"} if suffix == "_bucket" else set())
        for name, one in BY_NAME.items()
        for suffix in SERIES[one.kind]
    }


def series_names() -> set[str]:
    return set(series())


def labels_of(name: str) -> set[str]:
    """Return the labels that a series may have."""
    return series()[name]


def parse_query(expression: str) -> tuple[set[str], set[str]]:
    """Return the series that a PromQL expression names, and the labels that it groups by or picks."""
    labels = set(re.findall(r"(\w+)\s*(?:=~|!~|!=|=)\s*\"", expression))
    for group in re.findall(r"\b(?:by|without|on|ignoring)\s*\(([^)]*)\)", expression):
        labels |= {label.strip() for label in group.split(",")}
    bare = re.sub(r"\{[^}]*\}|\[[^\]]*\]|\b(?:by|without|on|ignoring)\s*\([^)]*\)", " ", expression)
    words = re.findall(r"(?<!\d)\b([a-zA-Z_:][\w:]*)\b(?!\s*\()", bare)
    return {word for word in words if word not in WORDS}, labels
