"""The jars of the local services, fetched once by Maven and kept under the digest of the pom that names them."""

import hashlib
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from dart_streams.errors import ServiceUnavailable, UserError
from dart_streams.launch.services.lock import one_at_a_time

RECIPES = Path(__file__).parents[3] / "deploy" / "local"
"""The poms and configuration templates. They are part of the repository, not of an installed package."""
PLUGIN = "org.apache.maven.plugins:maven-dependency-plugin:3.8.1:copy-dependencies"
FETCH_S = 600
SERVICES = ("kafka", "cassandra")
SHARED_JARS = RECIPES.parents[1] / ".dart" / "jars"
"""Where jars lie by default, whatever state folder their services use."""


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


def fetch_jars(service: str, cache: Path) -> Path:
    """Return the folder of a service's jars, complete; fetch them with Maven if they are not there.

    Raises
    ------
    ServiceUnavailable
        If Maven is missing, fails or takes longer than ten minutes.
    """
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


def main() -> int:
    """Fetch the jars of every service; print ``fetched`` if any were missing."""
    try:
        complete = all(jar_folder(service, SHARED_JARS).is_dir() for service in SERVICES)
        for service in SERVICES:
            fetch_jars(service, SHARED_JARS)
    except UserError as error:
        sys.stderr.write(f"\nerror: {error}\n")
        return error.exit_code
    sys.stdout.write("" if complete else "fetched")
    return 0


if __name__ == "__main__":
    sys.exit(main())
