"""Pinned packages that are installed into one environment."""

import re
from pathlib import Path

FOLDER = Path(__file__).parents[3] / "requirements"


def pinned(name: str) -> dict[str, str]:
    return dict(re.findall(r"^([a-z0-9.-]+)==(\S+)", (FOLDER / f"{name}.txt").read_text(), re.MULTILINE))


def test_the_client_of_mcp_servers_leaves_the_streams_packages_as_they_are():
    streams, client = pinned("streams"), pinned("mcp")
    shared = streams.keys() & client.keys()
    assert {"jsonschema", "click", "typing-extensions"} <= shared
    assert {name: client[name] for name in shared} == {name: streams[name] for name in shared}
