"""vLLM's own OpenAI-compatible server on this machine, in a process of its own, with a model directory."""

import contextlib
import os
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

from dart_streams.config import Config
from dart_streams.console.launch.services.daemon import free_port
from workers.rollout import vllm_settings

START_S = 400.0
NAME = "served"


@contextlib.contextmanager
def served(folder: Path, config: Config, key: str, log: Path, *further: str) -> Iterator[str]:
    """Serve a model on loopback, as docs/how-to/endpoint.md says; yield its base URL once it answers."""
    port = free_port()
    policy = config.policy
    command = [
        *(sys.executable, "-m", "vllm.entrypoints.launchers.api_server.entry"),
        *("--model", str(folder), "--served-model-name", NAME, "--host", "127.0.0.1", "--port", str(port)),
        *("--dtype", "float32", "--enforce-eager", "--max-num-seqs", "8", "--kv-cache-memory-bytes", str(256 << 20)),
        *("--limit-mm-per-prompt", f'{{"image": {policy.max_images}, "video": 0}}', "--skip-mm-profiling"),
        *("--mm-processor-kwargs", f'{{"min_pixels": {policy.min_pixels}, "max_pixels": {policy.max_pixels}}}'),
        *("--logprobs-mode", "processed_logprobs", "--distributed-executor-backend", "uni"),
        *further,
    ]
    environment = {
        **os.environ,
        **vllm_settings.engine_environment({}, vllm_settings.available_cores()),
        "VLLM_API_KEY": key,
    }
    with log.open("w") as output:
        process = subprocess.Popen(command, env=environment, stdout=output, stderr=subprocess.STDOUT)
    base = f"http://127.0.0.1:{port}/v1"
    try:
        await_health(base.removesuffix("/v1") + "/health", process, log)
        yield base
    finally:
        process.terminate()
        try:
            process.wait(60)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def await_health(url: str, process: subprocess.Popen, log: Path) -> None:
    """Return once the server is up; raise RuntimeError with its log's end if it is not within the bound."""
    end_s = time.monotonic() + START_S
    while time.monotonic() < end_s and process.poll() is None:
        with contextlib.suppress(OSError, urllib.error.URLError), urllib.request.urlopen(url, timeout=5) as answer:
            if answer.status == 200:
                return
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(0.5)
    raise RuntimeError(f"vLLM's server is not up: {log.read_text()[-3000:]}")
