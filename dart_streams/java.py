"""Java, and the folders of jars that Maven fetches for each version of a pom."""

import hashlib
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

from dart_streams.errors import ServiceUnavailable

RECIPES = Path(__file__).parents[1] / "deploy" / "local"
"""Poms and configuration templates of the repository, which an installed package lacks."""
SHARED_JARS = RECIPES.parents[1] / ".dart" / "jars"
"""Default folder of jars, shared by all state folders."""
VERSIONS = range(17, 24)
"""Kafka 4 needs 17 or newer; Cassandra 5.0 installs a security manager, which Java 24 no longer has."""
WANTED = f"Java {VERSIONS[0]} to {VERSIONS[-1]}"
INSTALL = (
    "apt-get install openjdk-17-jre-headless (as root; Debian 13: openjdk-21-jre-headless), "
    f"or set JAVA_HOME to a {WANTED}"
)
HOMES = {"/usr/lib/jvm": "*", "/opt/homebrew/opt": "openjdk*", "/Library/Java/JavaVirtualMachines": "*/Contents/Home"}
"""Java installations of Linux distributions, Homebrew and macOS, as in deploy/local/setup.sh."""


def jar_folder(service: str, cache: Path) -> Path:
    """Return the folder of a service's jars, ``<cache>/<service>-<digest of its pom>``; it need not exist."""
    pom = RECIPES / service / "pom.xml"
    try:
        digest = hashlib.sha256(pom.read_bytes()).hexdigest()[:12]
    except FileNotFoundError:
        raise ServiceUnavailable(
            f"{pom} is missing: the local services run from a checkout of the repository, not from an installed package"
        ) from None
    return cache / f"{service}-{digest}"


def find_java() -> Path:
    """Return a ``java`` that runs the local services and phones; raise :class:`ServiceUnavailable` if there is none."""
    found = {}
    for command in java_candidates():
        version = found[command] = version_of(command)
        if version in VERSIONS:
            return command
    if not found:
        raise ServiceUnavailable(f"no Java: {WANTED} is needed. {INSTALL}")
    seen = ", ".join(f"{command} is {f'Java {version}' if version else 'broken'}" for command, version in found.items())
    raise ServiceUnavailable(f"no {WANTED} ({seen}). {INSTALL}")


def java_candidates() -> Iterator[Path]:
    """Yield the ``java`` commands of this machine by preference: JAVA_HOME, PATH, the usual folders."""
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
