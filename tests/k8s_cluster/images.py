"""Builds the images of the cluster's pods, as the compose test does, and keeps them as one archive.

``python -m tests.k8s_cluster.images``: the archive is made anew where an image has changed.
"""

import logging
import shutil
import sys
import tempfile
from pathlib import Path

from dart_streams.errors import UserError
from tests.compose import stand_ins
from tests.compose.company import company
from tests.compose.engine import Engine, engine
from tests.compose.stack import ROOT, Stack
from tests.k8s_cluster.node import HERE, HOME, programs

ENGINE_HOME = ROOT / ".dart/compose-test"
"""The compose test's, whose layers are shared."""
BASES = ("python", "kafka", "cassandra")
IMAGES = ("dart-streams/streams:test", "dart-streams/model:test", "apache/kafka:4.3.1", "cassandra:5.0.9")
PAUSE = "docker.io/local/pause:1"
ARCHIVE = HOME / "images.tar"
IDENTITY = HOME / "images.txt"


def build_images(docker: Engine) -> None:
    """Build what the pods run; the engine's cache has what is unchanged."""
    if docker.own:
        stand_ins.build(docker, ENGINE_HOME, BASES)
    with tempfile.TemporaryDirectory() as folder, company(docker, Path(folder)) as proxy:
        stack = Stack(docker, authority=proxy.authority)
        stack.compose("build", "--build-arg", f"HTTPS_PROXY={proxy.proxy}", "env", timeout_s=1800)
    # The old builder is in every engine.
    old = docker._replace(environment={**docker.environment, "DOCKER_BUILDKIT": "0"})
    with tempfile.TemporaryDirectory() as folder:
        for name in ("tests", "benchmarks"):
            shutil.copytree(ROOT / name, Path(folder) / name, ignore=shutil.ignore_patterns("__pycache__"))
        shutil.copy(HERE / "model/Dockerfile", folder)
        old.docker("build", "-q", "--tag=dart-streams/model:test", folder)
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "pause").write_bytes((programs() / "pause").read_bytes())
        (Path(folder) / "pause").chmod(0o755)
        (Path(folder) / "Dockerfile").write_text('FROM scratch\nCOPY pause /pause\nENTRYPOINT ["/pause"]\n')
        old.docker("build", "-q", f"--tag={PAUSE}", folder)


def save_images(docker: Engine) -> None:
    """Write the archive unless it has these images already."""
    identity = docker.docker("image", "inspect", "--format={{.Id}}", *IMAGES, PAUSE)
    if ARCHIVE.exists() and IDENTITY.exists() and IDENTITY.read_text() == identity:
        return
    IDENTITY.unlink(missing_ok=True)
    docker.docker("save", f"--output={ARCHIVE}", *IMAGES, PAUSE)
    IDENTITY.write_text(identity)


def main() -> None:
    """Build and save the images."""
    # The proxy's streams end half-closed, which asyncio has a warning for.
    logging.getLogger("asyncio").setLevel(logging.ERROR)
    try:
        with engine(ENGINE_HOME) as docker:
            build_images(docker)
            save_images(docker)
    except UserError as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()
