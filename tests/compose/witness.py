"""Print the state of a run from its topics, a line of JSON a second. Usage: ``witness.py CONFIG``."""

import asyncio
import contextlib
import json
import signal
import sys
from pathlib import Path

from console.runs import open_orders
from console.runs.run_follower import follow_run
from console.runs.run_state import RunState
from dart_streams.bus.clients import Publisher
from dart_streams.config import Config, load


def seen(progress: RunState) -> dict[str, object]:
    return {
        "version": progress.newest_version,
        "served": progress.served_version,
        "finished": len(progress.finished),
        "open": len(open_orders.unfinished_orders(progress)),
        "steps": progress.steps,
        "rollout_workers": len(progress.serving),
    }


async def tell(config: Config) -> None:
    async with (
        Publisher(config.bus, "witness") as publisher,
        follow_run(config.bus, publisher, config.telemetry.stall_s) as watch,
    ):
        while True:
            watch.raise_if_reader_failed()
            sys.stdout.write(json.dumps(seen(watch.progress)) + "\n")
            sys.stdout.flush()
            await asyncio.sleep(1.0)


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(tell(load(Path(sys.argv[1]))))
