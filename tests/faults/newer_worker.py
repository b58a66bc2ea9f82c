"""An environment worker of a later release: what it writes on ``observations`` is of a newer schema.

Usage: ``python -m tests.faults.newer_worker FOLDER ID`` with the run's folder.
"""

import sys
from pathlib import Path

import msgspec

from console.runs.run_folder import RunFolder
from topics import observations

NEWER = observations.TOPIC.version + 1


def main(folder: str, worker_id: str) -> int:
    """Run the worker until it is killed."""
    observations.TOPIC = msgspec.structs.replace(observations.TOPIC, version=NEWER)
    from workers.env.main import connect
    from workers.runtime import lifecycle

    return lifecycle.run(connect, RunFolder(Path(folder)).config(), worker_id)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
