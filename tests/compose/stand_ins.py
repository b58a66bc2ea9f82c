"""Stand-ins for the public base images, made here: an engine of the test's own may not reach an image registry.

Debian comes from debootstrap, the JRE and Prometheus from its packages, the jars of Kafka and Cassandra from Maven, and
Jaeger from its Go module. They carry the public names, so they are made in the test's own engine only, never in one
that are in use. Like the public ones they know nothing of this machine, not whom it trusts either.
"""

import shutil
import subprocess
import tempfile
from collections.abc import Iterable
from pathlib import Path

from console.launch.services.jars import SERVICES, fetch_jars
from dart_streams.java import SHARED_JARS
from tests.compose.engine import Engine

SOURCES = Path(__file__).parent / "stand_ins"
DEBIAN = "dart-streams/stand-in-debian"
IMAGES = {
    "python": ("python:3.11-slim-bookworm",),
    "kafka": ("apache/kafka:4.3.1",),
    "cassandra": ("cassandra:5.0.9",),
    "prometheus": ("prom/prometheus:v3.2.1",),
    # Jaeger 2 is a collector with a storage: as a program it is the same.
    "jaeger": ("jaegertracing/jaeger:2.13.0", "otel/opentelemetry-collector-contrib:0.123.0"),
}
"""What each is called, as docker-compose.yml and the Dockerfiles have it. Grafana and kafka-ui are in no registry."""


def build(engine: Engine, home: Path, names: Iterable[str] = tuple(IMAGES)) -> None:
    """Make those of ``names`` that are missing or have changed; ``home`` has the programs that set-up has built."""
    # The old builder is in every engine; the other one needs a plugin.
    engine = engine._replace(environment={**engine.environment, "DOCKER_BUILDKIT": "0"})
    if not has(engine, DEBIAN):
        import_debian(engine)
    for name in names:
        with tempfile.TemporaryDirectory() as folder:
            context = Path(folder) / name
            shutil.copytree(SOURCES / name, context)
            if name in SERVICES:
                shutil.copytree(fetch_jars(name, SHARED_JARS), context / "jars")
            elif name == "jaeger":
                shutil.copy(home / name, context)
            engine.docker("build", "-q", *(f"--tag={tag}" for tag in IMAGES[name]), str(context), timeout_s=1200)


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
