"""The jars of services, of the page's plots and of phones, which Maven fetches once for each version of a pom."""

import hashlib
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from console.launch.services.lock import one_at_a_time
from dart_streams.errors import ServiceUnavailable, UserError
from dart_streams.java import RECIPES, SHARED_JARS, jar_folder

PLUGIN = "org.apache.maven.plugins:maven-dependency-plugin:3.8.1:copy-dependencies"
FETCH_S = 600
SERVICES = ("kafka", "cassandra")
FETCHED = (*SERVICES, "page")
"""Poms of the two services and of the web page's plots."""
PLOTS = Path(sys.prefix) / "share/dart-streams/page"
"""Folder of the page's plots in a container image, wherever the code is."""


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
        raise ServiceUnavailable(f"no Maven, which fetches the jars of {service}: apt-get install maven (as root)")
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
        refuse_others(jars, RECIPES / service / "jars.sha256")
        jars.rename(folder)
    return folder


def refuse_others(folder: Path, sums: Path) -> None:
    """Raise :class:`ServiceUnavailable` unless a folder has the jars that a file names by content, and no others."""
    found = {f"{hashlib.sha256(jar.read_bytes()).hexdigest()}  {jar.name}" for jar in folder.iterdir()}
    if differ := found ^ set(sums.read_text(encoding="utf-8").splitlines()):
        names = ", ".join(sorted({line.partition("  ")[2] for line in differ})[:5])
        raise ServiceUnavailable(
            f"Maven's repository has other jars than {sums}: {names}. If the versions of its pom were changed, write "
            "the file anew, with `sha256sum *` in the folder of `mvn dependency:copy-dependencies`; else trust none"
        )


def main(services: Sequence[str] = FETCHED) -> int:
    """Fetch the jars of the services; print ``fetched`` if any were missing."""
    try:
        complete = all(jar_folder(service, SHARED_JARS).is_dir() for service in services)
        for service in services:
            fetch_jars(service, SHARED_JARS)
    except UserError as error:
        sys.stderr.write(f"\nerror: {error}\n")
        return error.exit_code
    sys.stdout.write("" if complete else "fetched")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:] or FETCHED))
