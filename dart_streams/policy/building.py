"""The tiny policy before its first version: born, warmed up on demonstrations, probed, put in place."""

import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

from dart_streams.config import Config
from dart_streams.policy import probe, tiny
from dart_streams.policy.demonstrations import demonstration_orders
from dart_streams.policy.gathering import Gathering
from dart_streams.policy.rendering import Renderer
from dart_streams.policy.warmup import warm_up
from dart_streams.store import SyncStore, connect
from dart_streams.tasks import TaskSet

SEED = 0

Report = Callable[[int, int, float], None]
"""Called with demonstrations ended, training steps done, and the loss (nats a token)."""


def build(config: Config, tasks: TaskSet, folder: Path, report: Report) -> None:
    """Build the policy into ``folder``, which appears complete or not at all.

    Training waits for all demonstrations, so that how far it gets does not depend on how fast they are played.
    """
    torch.set_num_threads(1)  # So small a model gains nothing from a second thread.
    session = connect(config.store)
    store = SyncStore(session, config.bus.run, config.store.blob_cache_mb, config.store.wait_s)
    orders = demonstration_orders(tasks.demonstration, config.warmup.demonstrations, SEED)
    try:
        with scratch(folder) as partial:
            with Gathering(config, store, orders) as gathering:
                tiny.build(partial, SEED)
                samples = gathering.wait(lambda: report(gathering.finished, 0, 0.0))
            renderer = Renderer(partial, config.policy.min_pixels, config.policy.max_pixels)
            warm_up(partial, renderer, samples, config.warmup, lambda step, loss: report(len(orders), step, loss), SEED)
            probe.write(partial, renderer)
    finally:
        session.cluster.shutdown()


@contextmanager
def scratch(folder: Path) -> Iterator[Path]:
    """Yield a path beside ``folder`` that becomes it at the end; nothing is left behind if the block fails.

    Two builds at the same time both finish; the first one's result stays.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{folder.name}.", dir=folder.parent) as place:
        partial = Path(place) / "policy"
        yield partial
        if not folder.exists():
            shutil.move(partial, folder)
