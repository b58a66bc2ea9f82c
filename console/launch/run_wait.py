"""What a run waits for, in plain words; and a watch of the policy's endpoint."""

import asyncio
import os
from collections.abc import Callable, Collection
from urllib.parse import urlsplit

from console.runs import open_orders
from console.runs.run_state import RunState
from dart_streams.config import Config

CONNECT_S = 5.0
WATCH_INTERVAL_S = 5.0


def describe_wait(config: Config, phase: str, state: RunState, missing: Collection[str], endpoint_fault: str) -> str:
    """Return what a phase waits for, empty where its figures say it.

    ``missing`` are the rollout workers that do not serve yet, and ``endpoint_fault`` is the reason why no connection
    to the policy's endpoint opens.
    """
    if endpoint_fault:
        return f"{config.rollout.openai.base_url} does not answer ({endpoint_fault})"
    if phase == "start":
        return describe_start(config, state, missing)
    if phase == "settle" and (still := len(open_orders.unfinished_orders(state, "train"))):
        return f"waiting for {still} training orders to finish"
    return "stopping the processes" if phase == "drain" else ""


def describe_start(config: Config, state: RunState, missing: Collection[str]) -> str:
    """Return what the start of the processes waits for."""
    if not config.rollout.fixed_weights and state.newest_version is None:
        return "waiting for the trainer to publish its first weights"
    if not missing:
        return "waiting for served weights"
    starting = {"vllm": "starting vLLM in", "openai": "waiting for the endpoint's first answer in"}
    return f"{starting.get(config.rollout.engine, 'starting')} {', '.join(sorted(missing))}"


async def connection_fault(url: str) -> str:
    """Return why no connection to an address opens, empty if one does."""
    parts = urlsplit(url)
    try:
        async with asyncio.timeout(CONNECT_S):
            _, writer = await asyncio.open_connection(
                parts.hostname, parts.port or (443 if parts.scheme == "https" else 80)
            )
    except TimeoutError:
        return f"no connection within {CONNECT_S:g} s"
    except OSError as error:
        return os.strerror(error.errno) if error.errno and error.errno > 0 else str(error)
    writer.close()
    return ""


async def watch_endpoint(url: str, changed: Callable[[str], None]) -> None:
    """Call ``changed`` with each new fault of the connection to an endpoint, and with nothing when it answers again."""
    known = ""
    while True:
        if (fault := await connection_fault(url)) != known:
            known = fault
            changed(fault)
        await asyncio.sleep(WATCH_INTERVAL_S)
