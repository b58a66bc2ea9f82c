"""Java, and the jars of the local services and the page's plots, which Maven fetches once for each version of a pom."""

import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from dart_streams.console.launch.services.lock import one_at_a_time
from dart_streams.errors import ServiceUnavailable, UserError

RECIPES = Path(__file__).parents[4] / "deploy" / "local"
"""Poms and configuration templates of the repository, which an installed package lacks."""
PLUGIN = "org.apache.maven.plugins:maven-dependency-plugin:3.8.1:copy-dependencies"
FETCH_S = 600
SERVICES = ("kafka", "cassandra")
FETCHED = (*SERVICES, "page")
"""Poms of the two services and of the web page's plots."""
SHARED_JARS = RECIPES.parents[1] / ".dart" / "jars"
"""Default folder of jars, shared by all state folders."""
PLOTS = Path(__file__).parents[2] / "views" / "page" / "vendor"
"""Folder of the page's plots in a container image."""
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


def plots_folder() -> Path | None:
    """Return the folder of the web page's plot library, None if it was not fetched."""
    fetched = [jar_folder("page", SHARED_JARS)] if (RECIPES / "page").is_dir() else []
    return next((folder for folder in [*fetched, PLOTS] if folder.is_dir()), None)


def fetch_jars(service: str, cache: Path) -> Path:
    """Return the folder of a service's jars; fetch them with Maven if it is missing."""
    folder = jar_folder(service, cache)
    if folder.is_dir():
        return folder
    maven = shutil.which("mvn")
    if maven is None:
        raise ServiceUnavailable(
            f"no Maven, which fetches the jars of the local {service}: apt-get install maven (as root)"
        )
    # Two Mavens at once may damage the repository that they share.
    with one_at_a_time(cache, FETCH_S), tempfile.TemporaryDirectory(dir=cache, prefix=f"{service}-") as partial:
        if folder.is_dir():
            return folder
        # Renamed into place when complete, so that an interrupted fetch is never taken for jars.
        jars = Path(partial) / "jars"
        command = [maven, "-q", "-B", "-f", str(RECIPES / service / "pom.xml"), PLUGIN, f"-DoutputDirectory={jars}"]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=FETCH_S, check=False)
        except subprocess.TimeoutExpired:
            raise ServiceUnavailable(f"Maven did not fetch the jars of {service} within {FETCH_S} s") from None
        if done.returncode != 0:
            last = "\n".join((done.stdout + done.stderr).strip().splitlines()[-5:])
            raise ServiceUnavailable(f"Maven could not fetch the jars of {service}:\n{last}")
        jars.rename(folder)
    return folder


def find_java() -> Path:
    """Return a ``java`` that runs both services; raise :class:`ServiceUnavailable` if there is none."""
    found = {}
    for command in java_candidates():
        version = found[command] = version_of(command)
        if version in VERSIONS:
            return command
    if not found:
        raise ServiceUnavailable(f"no Java: the local Kafka and Cassandra need {WANTED}. {INSTALL}")
    seen = ", ".join(f"{command} is {f'Java {version}' if version else 'broken'}" for command, version in found.items())
    raise ServiceUnavailable(f"no {WANTED}, which the local Kafka and Cassandra need ({seen}). {INSTALL}")


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


def main() -> int:
    """Fetch all jars; print ``fetched`` if any were missing."""
    try:
        complete = all(jar_folder(service, SHARED_JARS).is_dir() for service in FETCHED)
        for service in FETCHED:
            fetch_jars(service, SHARED_JARS)
    except UserError as error:
        sys.stderr.write(f"\nerror: {error}\n")
        return error.exit_code
    sys.stdout.write("" if complete else "fetched")
    return 0


if __name__ == "__main__":
    sys.exit(main())
