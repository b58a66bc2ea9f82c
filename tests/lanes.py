"""The lanes: tests beside those of `make test`, each a target of make, and the paths that each covers.

``python -m tests.lanes`` prints the lanes that CI runs for the present commit. A lane that takes long there runs if a
file that it covers has changed since the commit ``DART_CI_BASE``, by default the newest that is a day older. Where no
such commit is known, as in a shallow clone, all of these run. ``--all`` prints every lane, for ``make test-all``.
"""

import os
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Literal, NamedTuple

ROOT = Path(__file__).parents[1]
BASE = "DART_CI_BASE"
When = Literal["each time", "if covered files changed", "by hand"]


class Lane(NamedTuple):
    """A target of make, the beginnings of the paths that it covers, and when CI runs it."""

    target: str
    when: When
    covers: tuple[str, ...]

    def is_touched_by(self, changed: Iterable[str]) -> bool:
        """Return whether any of these files is one that the lane covers, or that every lane does."""
        return any(file.startswith((*self.covers, *OF_ALL)) for file in changed)


OF_ALL = ("requirements/", "pyproject.toml", "tests/conftest.py")
"""Files that every lane covers."""
DESKTOPS = ("tests/desktops/", "workers/env/backends/desktop/", "workers/desktop_server/")
LANES = (
    Lane("test-data", "each time", ("tests/data/", "dart_streams/console/datasets/", "workers/tracker/")),
    Lane("test-adapters", "each time", ("tests/adapters/", "workers/env/backends/adapters/")),
    Lane("test-alerts", "each time", ("tests/alerts/", "deploy/prometheus/")),
    Lane("test-phone", "each time", ("tests/phone/", "workers/env/backends/phone/", "deploy/config/phone.toml")),
    Lane("test-compose", "each time", ("tests/compose/", "deploy/docker/", "docker-compose.yml")),
    Lane(
        "test-launch",
        "if covered files changed",
        ("tests/launch/", "dart_streams/console/launch/", "dart_streams/console/sizing/placement.py", "deploy/local/"),
    ),
    Lane(
        "test-page",
        "if covered files changed",
        (
            "tests/page/",
            "tests/integration/page_browser.py",
            "tests/integration/page_audit.py",
            "tests/integration/recorded_run.py",
            "dart_streams/console/views/",
            "dart_streams/console/runs/",
            "dart_streams/episodes/",
            "topics/",
        ),
    ),
    Lane(
        "test-desktops",
        "if covered files changed",
        (*DESKTOPS, "workers/env/backends/tools/", "deploy/config/desktop.toml", "deploy/config/adaptive.toml"),
    ),
    Lane(
        "test-osworld",
        "if covered files changed",
        ("tests/osworld/", "workers/env/backends/osworld/", *DESKTOPS, "deploy/config/osworld.toml"),
    ),
    Lane(
        "test-models",
        "if covered files changed",
        (
            "tests/model/",
            "tests/path/",
            "trainer/",
            "dart_streams/policy/",
            "dart_streams/recipes/",
            "dart_streams/console/sizing/",
            "workers/rollout/",
            "benchmarks/gpu/",
            "benchmarks/learning/",
            "deploy/config/ui-tars/",
            "docs/how-to/ui-tars.md",
        ),
    ),
    Lane("test-path", "by hand", ("tests/path/", "deploy/config/ui-tars/", "docs/how-to/ui-tars.md")),
    Lane("test-k8s", "by hand", ("tests/k8s/", "deploy/k8s/")),
    Lane("test-desktop-image", "by hand", ("tests/compose/test_desktop.py", "deploy/docker/desktop.Dockerfile")),
    Lane("test-s3", "by hand", ("tests/objects/", "dart_streams/store/objects.py", "trainer/checkpoint_store.py")),
    Lane("test-cluster", "by hand", ("tests/cluster/", "dart_streams/bus/", "dart_streams/store/")),
    Lane("test-upgrade", "by hand", ("tests/upgrade/", "topics/", "dart_streams/store/")),
    Lane("test-k8s-cluster", "by hand", ("tests/k8s_cluster/", "deploy/k8s/")),
    Lane("test-k8s-keda", "by hand", ("tests/k8s_cluster/test_keda.py", "deploy/k8s/")),
    Lane("test-faults", "by hand", ("tests/faults/",)),
)


def lanes_of_ci(changed: Iterable[str] | None) -> list[Lane]:
    """Return the lanes that CI runs after a change of these files; None if they are not known."""
    files = None if changed is None else list(changed)
    return [
        lane
        for lane in LANES
        if lane.when == "each time"
        or (lane.when == "if covered files changed" and (files is None or lane.is_touched_by(files)))
    ]


def changed_files() -> list[str] | None:
    """Return the files that differ from the base; None without one."""
    base = os.environ.get(BASE) or older_commit()
    if not base:
        return None
    done = git("diff", "--name-only", base, "HEAD")
    return done.stdout.splitlines() if done.returncode == 0 else None


def older_commit() -> str:
    """Return the newest commit that is a day older than the present one; empty without one."""
    newest = git("log", "-1", "--format=%ct").stdout.strip()
    return git("rev-list", "-1", f"--before={int(newest) - 86_400}", "HEAD").stdout.strip() if newest else ""


def git(*words: str) -> subprocess.CompletedProcess[str]:
    """Ask git about this checkout."""
    return subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=False)


def main(words: list[str]) -> None:
    """Print lanes, one a line: those of CI, or all."""
    wanted = list(LANES) if words == ["--all"] else lanes_of_ci(changed_files())
    left_out = [lane.target for lane in LANES if lane not in wanted and lane.when != "by hand"]
    if left_out:
        print("left out, for no file that they cover has changed:", *left_out, file=sys.stderr)  # noqa: T201
    print(*(lane.target for lane in wanted), sep="\n")  # noqa: T201


if __name__ == "__main__":
    main(sys.argv[1:])
