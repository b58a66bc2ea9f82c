"""What a local service is: the shape that Kafka and Cassandra share."""

from pathlib import Path
from string import Template
from typing import Protocol

from dart_streams.config import Services
from dart_streams.launch.services.daemon import Home
from dart_streams.launch.services.jars import RECIPES


class Service(Protocol):
    """One JVM service.

    ``port`` is where clients reach it, on ``host``; ``setting`` the configuration key of that. ``heap_mb`` is what the
    configuration gives it, ``overhead_mb`` what it takes beyond that, ``slack_us`` its timer slack.
    """

    name: str
    title: str
    setting: str
    host: str
    port: int
    heap_mb: int
    overhead_mb: int
    slack_us: int

    def prepare(self, home: Home, java: Path, jars: Path) -> list[str]:
        """Write the configuration, make the data folder ready, and return the command that runs the service."""

    def answers(self, timeout_s: float = 2.0) -> bool:
        """Return whether the service takes requests."""


def compilers(services: Services) -> list[str]:
    """Return the JVM's argument for both of its compilers, where the configuration wants them."""
    return ["-XX:TieredStopAtLevel=4"] if services.optimise else []


def write_configuration(service: str, template: str, home: Home, **values: object) -> Path:
    """Fill in a template of deploy/local for ``home`` and return where it was written."""
    home.folder.mkdir(parents=True, exist_ok=True)
    text = Template((RECIPES / service / template).read_text()).substitute({k: str(v) for k, v in values.items()})
    path = home.folder / template
    path.write_text(text)
    return path
