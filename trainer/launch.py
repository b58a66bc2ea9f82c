"""Several ranks on this machine, by torchrun's own launcher."""

import os
import sys

import msgspec
from torch.distributed.elastic.multiprocessing.api import SignalException
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.distributed.launcher.api import LaunchConfig, elastic_launch

from dart_streams.config import Config

FILE = "trainer.json"


def torchrun(config: Config) -> int:
    """Run ``trainer.processes`` ranks and return the exit code: of the rank that failed first, if one did.

    A signal is passed on to the ranks, which then have the time of a drain; ending so is a success.
    """
    file = config.run.folder / FILE
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(msgspec.json.encode(config))
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    job = LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=config.trainer.processes,
        rdzv_backend="c10d",
        rdzv_endpoint="localhost:0",
        run_id=config.run.id,
        max_restarts=0,
        signals_to_handle="SIGTERM,SIGINT",
    )
    try:
        elastic_launch(job, sys.executable)("-m", "trainer", str(file))
    except SignalException:
        return 0
    except ChildFailedError as error:
        _, failure = error.get_first_failure()
        return failure.exitcode if failure.exitcode > 0 else 128 - failure.exitcode
    return 0
