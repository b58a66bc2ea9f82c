"""Build of the tiny policy: initialize, imitate demonstrations (briefly on purpose), probe, move into place."""

import random
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import msgspec
import torch

from dart_streams.config import Config, Warmup
from dart_streams.config.tasks import TaskSet
from dart_streams.disk_room import make_private
from dart_streams.policy import tiny, weights
from dart_streams.policy.rendering import Renderer, renderer_of
from dart_streams.store import connect, sync_store
from trainer.data.collate import Collator
from trainer.data.prefetch import GroupReader
from trainer.data.samples import ReadyGroup
from trainer.learning import model
from trainer.learning.schedule import rate_share
from trainer.objective import masked_sum
from trainer.warmup import demonstrations

SEED = 0
RAMP = 20
"""Steps of linear learning-rate warm-up."""
GRAD_CLIP = 1.0
WEIGHT_DECAY = 0.01


def build(
    config: Config, tasks: TaskSet, folder: Path, report: Callable[[int, int, float], None], *, imported: bool = False
) -> None:
    """Build the policy into ``folder``, which appears complete or not at all.

    With ``imported`` the policy imitates recorded demonstrations and orders none. ``report`` is called with
    demonstrations ended, training steps done, and the loss (nats a token).
    """
    torch.set_num_threads(1)  # A model this small gains nothing from a second thread.
    session = connect(config.store)
    store = sync_store(session, config)
    orders = demonstrations.demonstration_orders(tasks.demonstration, config.warmup.demonstrations, SEED)
    try:
        with scratch(folder) as partial:
            if not imported:
                demonstrations.publish(config.bus, orders)
            tiny.build(partial, SEED, config.warmup.architecture, config.warmup.width)
            renderer = renderer_of(partial, config.policy)
            reader = GroupReader(store, renderer, config.policy)
            if imported:
                groups = demonstrations.read_recorded(config.bus, reader)
            else:
                groups = demonstrations.gather(config, reader, orders, lambda ended: report(ended, 0, 0.0))
            shown = len(groups if imported else orders)
            warm_up(partial, renderer, groups, config.warmup, lambda step, loss: report(shown, step, loss), SEED)
    finally:
        session.cluster.shutdown()


def warm_up(
    model_dir: Path,
    renderer: Renderer,
    groups: Sequence[ReadyGroup],
    settings: Warmup,
    report: Callable[[int, float], None],
    seed: int = 0,
) -> None:
    """Train the model in ``model_dir`` in place on the mean negative log-likelihood of answer tokens (nats)."""
    samples = [item for group in groups for item in group.samples]
    if not samples:
        raise ValueError("no samples to warm up on")
    scorer = model.load(model_dir, renderer, torch.device("cpu"))
    optimizer = torch.optim.AdamW(
        scorer.parameters(), lr=settings.learning_rate, weight_decay=WEIGHT_DECAY, betas=(0.9, 0.98)
    )
    generator = random.Random(seed)
    drawn = [generator.choices(samples, k=settings.batch) for _ in range(settings.steps)]
    for step, batch in enumerate(Collator(renderer).batches(groups, drawn, settings.steps)):
        for group in optimizer.param_groups:
            group["lr"] = settings.learning_rate * rate_share(step, settings.steps, RAMP)
        logp_BA, _ = scorer(batch)
        loss = -masked_sum(logp_BA, batch.mask_BA) / batch.mask_BA.sum()
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(scorer.parameters(), GRAD_CLIP)
        optimizer.step()
        report(step + 1, loss.item())
    probe = msgspec.json.encode(model.probe_of(scorer, renderer))
    weights.save(weights.own_state(scorer.policy), str(model_dir), {weights.PROBE: probe})


@contextmanager
def scratch(folder: Path) -> Iterator[Path]:
    """Yield a path that is moved to ``folder`` at the end, unless the block fails or ``folder`` exists by then."""
    make_private(folder.parent)
    with tempfile.TemporaryDirectory(prefix=f".{folder.name}.", dir=folder.parent) as place:
        partial = Path(place) / "policy"
        yield partial
        if not folder.exists():
            shutil.move(partial, folder)
