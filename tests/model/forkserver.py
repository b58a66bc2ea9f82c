"""Processes of the model side that begin with torch, transformers and vLLM imported, which takes longer than a test."""

import multiprocessing
import threading
from collections.abc import Callable

from dart_streams.console.launch.services.daemon import free_port

spawning = multiprocessing.get_context("forkserver")
spawning.set_forkserver_preload(["tests.model.preloaded"])
POLLING = threading.Lock()
"""A start polls all children: an exit status that two threads read at once is lost to one of them, which gets 255."""


def jobs(count: int, nodes: int = 1) -> list[dict[str, str]]:
    """Return what torchrun would put into the environment of each rank of a job on this host, as on ``nodes``."""
    job = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "WORLD_SIZE": str(count)}
    job["LOCAL_WORLD_SIZE"] = str(count // nodes)
    return [job | {"RANK": str(rank), "LOCAL_RANK": str(rank % (count // nodes))} for rank in range(count)]


def run_ranks(count: int, main: Callable[..., None], *arguments: object, limit_s: float, nodes: int = 1) -> None:
    """Run ``main(job, *arguments)`` as each rank of a job of ``count``; none may fail or outlast ``limit_s``."""
    ranks = [spawning.Process(target=main, args=(job, *arguments)) for job in jobs(count, nodes)]
    for process in ranks:
        process.start()
    try:
        for process in ranks:
            process.join(limit_s)
        assert [process.exitcode for process in ranks] == [0] * count
    finally:
        for process in ranks:
            process.kill()
