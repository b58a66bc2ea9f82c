"""Print what is broken of the cluster's run, as JSON. Usage, in a pod: ``check_run CONFIG``.

All workers have been stopped before: the store is compared with the log as well.
"""

import json
import sys
from pathlib import Path

from console.runs import run_folder
from dart_streams.config import load
from tests.faults.invariants import of_run

if __name__ == "__main__":
    config = load(Path(sys.argv[1]))
    folder = run_folder.attach(config, Path(config.tasks.file))
    sys.stdout.write(json.dumps(of_run(folder.config())) + "\n")
