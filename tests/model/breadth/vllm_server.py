"""vLLM's own OpenAI-compatible server on this machine, in a process of its own, with a model directory."""

import contextlib
import os
import runpy
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from multiprocessing.process import BaseProcess
from pathlib import Path

from console.launch.services.daemon import free_port
from dart_streams.config import Config
from tests.model.forkserver import POLLING, spawning
from workers.rollout import vllm_settings

START_S = 400.0
NAME = "served"


@contextlib.contextmanager
def served(folder: Path, config: Config, key: str, log: Path, *further: str) -> Iterator[str]:
    """Serve a model on loopback, as docs/how-to/endpoint.md says; yield its base URL once it answers."""
    port = free_port()
    policy = config.policy
    arguments = [
        *("--model", str(folder), "--served-model-name", NAME, "--host", "127.0.0.1", "--port", str(port)),
        *("--dtype", "float32", "--enforce-eager", "--max-num-seqs", "8", "--kv-cache-memory-bytes", str(256 << 20)),
        *("--limit-mm-per-prompt", f'{{"image": {policy.max_images}, "video": 0}}', "--skip-mm-profiling"),
        *("--mm-processor-kwargs", f'{{"min_pixels": {policy.min_pixels}, "max_pixels": {policy.max_pixels}}}'),
        *("--logprobs-mode", "processed_logprobs", "--distributed-executor-backend", "uni"),
        *further,
    ]
    forked = {"VLLM_WORKER_MULTIPROC_METHOD": "fork"}  # as vLLM does of itself: its engine is a process beside
    environment = {**forked, **vllm_settings.engine_environment(forked)}
    environment["VLLM_API_KEY"] = key
    process = spawning.Process(target=be_server, args=(arguments, environment, log))
    with POLLING:
        process.start()
    base = f"http://127.0.0.1:{port}/v1"
    try:
        await_health(base.removesuffix("/v1") + "/health", process, log)
        yield base
    finally:
        process.terminate()
        process.join(60)
        process.kill()
        process.join()


def be_server(arguments: list[str], environment: Mapping[str, str], log: Path) -> None:
    """Be vLLM's program, which writes to ``log``."""
    os.environ.update(environment)
    file = os.open(log, os.O_CREAT | os.O_WRONLY | os.O_APPEND)
    for stream in (1, 2):
        os.dup2(file, stream)
    sys.argv = ["vllm", *arguments]
    runpy.run_module("vllm.entrypoints.launchers.api_server.entry", run_name="__main__")


def await_health(url: str, process: BaseProcess, log: Path) -> None:
    """Return once the server is up; raise RuntimeError with its log's end if it is not within the bound."""
    end_s = time.monotonic() + START_S
    while time.monotonic() < end_s and process.is_alive():
        with contextlib.suppress(OSError, urllib.error.URLError), urllib.request.urlopen(url, timeout=5) as answer:
            if answer.status == 200:
                return
        process.join(0.5)
    raise RuntimeError(f"vLLM's server is not up: {log.read_text()[-3000:]}")
