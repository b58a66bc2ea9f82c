"""The lanes: tests beside those of `make test`, each a target of make, and the paths that each covers.

``python -m tests.lanes`` prints the lanes that CI runs for the present commit. A lane that takes long there runs unless
it has passed with the files that it covers: ``tests/passed_lanes.json`` has their digest. Each of these targets of make
writes it there at its end. ``--all`` prints every lane, for ``make test-all``. ``--passed COMMIT LANE`` writes one.
"""

import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Iterable, Mapping
from typing import Literal, NamedTuple

from tests.sources import ROOT

PASSED = ROOT / "tests/passed_lanes.json"
When = Literal["each time", "if covered files changed", "by hand"]


class Lane(NamedTuple):
    """A target of make, the beginnings of the paths that it covers, and when CI runs it."""

    target: str
    when: When
    covers: tuple[str, ...]

    def digest(self, tree: Iterable[str]) -> str:
        """Return the digest of a commit's files that the lane covers; ``tree`` has the lines of ``git ls-tree -r``."""
        covered = (*self.covers, *OF_ALL)
        files = sorted(line for line in tree if line.partition("\t")[2].startswith(covered))
        return hashlib.sha256("\n".join(files).encode()).hexdigest()


OF_ALL = ("requirements/", "pyproject.toml", "conftest.py")
"""Files that every lane covers."""
DESKTOPS = "plugins/desktops/"
LANES = (
    Lane("test-data", "each time", ("plugins/data/",)),
    Lane("test-adapters", "each time", ("plugins/adapters/",)),
    Lane("test-alerts", "each time", ("tests/alerts/", "deploy/prometheus/")),
    Lane("test-phone", "each time", ("plugins/phones/", "deploy/config/phone.toml")),
    Lane("test-compose", "each time", ("tests/compose/", "deploy/docker/", "docker-compose.yml")),
    Lane(
        "test-launch",
        "if covered files changed",
        ("tests/launch/", "console/launch/", "console/sizing/placement.py", "deploy/local/"),
    ),
    Lane(
        "test-page",
        "if covered files changed",
        (
            "tests/page/",
            "tests/integration/page_browser.py",
            "tests/integration/page_audit.py",
            "tests/integration/recorded_run.py",
            "console/views/",
            "console/runs/",
            "dart_streams/episodes/",
            "topics/",
        ),
    ),
    Lane(
        "test-desktops",
        "if covered files changed",
        (
            DESKTOPS,
            "workers/env/environment.py",
            "workers/env/episode_runner.py",
            "workers/env/fault_boundary.py",
            "workers/env/backends/connection.py",
            "plugins/adapters/dart_adapters/mcp/",
            "dart_streams/actions/",
            "deploy/config/desktop.toml",
            "deploy/config/adaptive.toml",
        ),
    ),
    Lane(
        "test-osworld",
        "if covered files changed",
        (DESKTOPS, "deploy/config/osworld.toml"),
    ),
    Lane(
        "test-models",
        "if covered files changed",
        (
            "tests/bench/",
            "tests/model/",
            "tests/path/",
            "trainer/",
            "dart_streams/policy/",
            "console/bundles/retrain.py",
            "plugins/recipes/",
            "plugins/data/dart_data/",
            "console/sizing/",
            "workers/rollout/",
            "benchmarks/",
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


def lanes_of_ci(tree: Iterable[str] | None, passed: Mapping[str, str]) -> list[Lane]:
    """Return the lanes that CI runs for a commit; ``tree`` is None where it is not known."""
    files = None if tree is None else list(tree)
    return [
        lane
        for lane in LANES
        if lane.when == "each time"
        or (lane.when != "by hand" and (files is None or passed.get(lane.target) != lane.digest(files)))
    ]


def record(commit: str, target: str) -> None:
    """Write that a lane has passed, unless it ran in part, or on files that differ from the commit of its beginning."""
    (lane,) = (one for one in LANES if one.target == target)
    tree, others = git("ls-tree", "-r", commit), ("ls-files", "--others", "--exclude-standard")
    changed = [git(*words, "--", *lane.covers, *OF_ALL) for words in (("diff", "--name-only", commit), others)]
    if tree is None or any(changed) or "PYTEST_ADDOPTS" in os.environ:
        print(f"{target} passed; not recorded: PYTEST_ADDOPTS, or files of no commit, {changed}", file=sys.stderr)  # noqa: T201
    else:
        passed = {**json.loads(PASSED.read_bytes()), target: lane.digest(tree)}
        PASSED.write_text(json.dumps(dict(sorted(passed.items())), indent=1) + "\n")


def git(*words: str) -> list[str] | None:
    """Return the lines of git's answer about this checkout; None where there is none."""
    done = subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=False)
    return done.stdout.splitlines() if done.returncode == 0 else None


def main(words: list[str]) -> None:
    """Print lanes, one a line: those of CI, or all; or record that one has passed."""
    if words[:1] == ["--passed"]:
        return record(*words[1:])
    wanted = (
        list(LANES)
        if words == ["--all"]
        else lanes_of_ci(git("ls-tree", "-r", "HEAD"), json.loads(PASSED.read_bytes()))
    )
    left_out = [lane.target for lane in LANES if lane not in wanted and lane.when != "by hand"]
    if left_out:
        print("left out, for they passed with the files that they cover:", *left_out, file=sys.stderr)  # noqa: T201
    print(*(lane.target for lane in wanted), sep="\n")  # noqa: T201


if __name__ == "__main__":
    main(sys.argv[1:])
