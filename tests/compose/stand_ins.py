"""Stand-ins for the public base images, made here: an engine of the test's own may not reach an image registry.

Debian comes from debootstrap, the JRE from its packages, the jars of Kafka and Cassandra from Maven. They carry the
public names, so they are made in the test's own engine only, never in one that somebody uses.
"""

import shutil
import subprocess
import tempfile
from pathlib import Path

from dart_streams.launch.services.jars import SERVICES, SHARED_JARS, fetch_jars
from tests.compose.engine import Engine

SOURCES = Path(__file__).parent / "stand_ins"
DEBIAN = "dart-streams/stand-in-debian"
IMAGES = {"python": "python:3.11-slim-bookworm", "kafka": "apache/kafka:4.3.1", "cassandra": "cassandra:5.0.9"}
SETTINGS = (Path("/etc/ssl/certs/ca-certificates.crt"), Path("/etc/pip.conf"), Path("/root/.m2/settings.xml"))
"""What this machine's package clients go by; a container does not have it by itself."""


def build(engine: Engine) -> None:
    """Make what is missing or has changed."""
    # The old builder is in every engine; the other one needs a plugin.
    engine = engine._replace(environment={**engine.environment, "DOCKER_BUILDKIT": "0"})
    if not has(engine, DEBIAN):
        import_debian(engine)
    for name, image in IMAGES.items():
        with tempfile.TemporaryDirectory() as folder:
            context = Path(folder) / name
            shutil.copytree(SOURCES / name, context)
            if name in SERVICES:
                shutil.copytree(fetch_jars(name, SHARED_JARS), context / "jars")
            else:
                copy_settings(context / "settings")
            engine.docker("build", "-q", "-t", image, str(context), timeout_s=1200)


def has(engine: Engine, image: str) -> bool:
    found = subprocess.run(["docker", "image", "inspect", image], env=engine.environment, capture_output=True)
    return found.returncode == 0


def import_debian(engine: Engine) -> None:
    """Make a minimal Debian 12 from this machine's package sources."""
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder) / "debian"
        subprocess.run(["debootstrap", "--variant=minbase", "bookworm", str(root)], check=True, capture_output=True)
        archive = Path(folder) / "debian.tar"
        subprocess.run(["tar", "--one-file-system", "-C", str(root), "-cf", str(archive), "."], check=True)
        engine.docker("import", str(archive), DEBIAN)


def copy_settings(folder: Path) -> None:
    folder.mkdir()
    for file in SETTINGS:
        if file.is_file():
            copied = folder / file.relative_to("/")
            copied.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(file, copied)
