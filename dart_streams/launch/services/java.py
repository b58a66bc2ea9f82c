"""Find a Java that can run both services."""

import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

from dart_streams.errors import ServiceUnavailable

VERSIONS = range(17, 24)
"""Kafka 4 needs 17 or newer; Cassandra 5.0 installs a security manager, which Java 24 no longer has."""
WANTED = f"Java {VERSIONS[0]} to {VERSIONS[-1]}"
INSTALL = (
    "apt-get install openjdk-17-jre-headless (as root; Debian 13: openjdk-21-jre-headless), "
    f"or set JAVA_HOME to a {WANTED}"
)
HOMES = {
    "/usr/lib/jvm": "*",
    "/opt/homebrew/opt": "openjdk*",
    "/Library/Java/JavaVirtualMachines": "*/Contents/Home",
}
"""Where Linux distributions, Homebrew and macOS keep installed Javas. deploy/local/setup.sh looks there too."""


def find_java() -> Path:
    """Return the ``java`` command of a Java that runs both services, from JAVA_HOME, PATH or the usual folders.

    Raises
    ------
    ServiceUnavailable
        If there is none; the text says what was found and how to install one.
    """
    found = {}
    for command in candidates():
        version = found[command] = version_of(command)
        if version in VERSIONS:
            return command
    if not found:
        raise ServiceUnavailable(f"no Java: the local Kafka and Cassandra need {WANTED}. {INSTALL}")
    seen = ", ".join(f"{command} is {f'Java {version}' if version else 'broken'}" for command, version in found.items())
    raise ServiceUnavailable(f"no {WANTED}, which the local Kafka and Cassandra need ({seen}). {INSTALL}")


def candidates() -> Iterator[Path]:
    """Yield the ``java`` commands of this machine, the preferred ones first."""
    if home := os.environ.get("JAVA_HOME"):
        yield Path(home) / "bin" / "java"
    if on_path := shutil.which("java"):
        yield Path(on_path)
    for folder, pattern in HOMES.items():
        yield from sorted(Path(folder).glob(f"{pattern}/bin/java"))


def version_of(command: Path) -> int | None:
    """Return the major version of a ``java`` command, or None if it does not run."""
    try:
        done = subprocess.run([command, "-version"], capture_output=True, text=True, timeout=20, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    match = re.search(r'version "(?:1\.)?(\d+)', done.stderr + done.stdout)
    return int(match[1]) if match else None
