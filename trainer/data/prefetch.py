"""Prefetching: the steps and screenshots of groups are read while the model trains on earlier ones."""

import threading
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import structlog

from dart_streams import pictures, stateless_random
from dart_streams.clock import since_ms
from dart_streams.config import Policy
from dart_streams.store import MissingBlob
from topics.curated import CuratedGroup, Member
from topics.observations import Observation
from topics.values import BlobRef
from trainer.data.distinct import count_distinct
from trainer.data.samples import MISSING_BLOB, UNUSABLE_IMAGE, ReadyGroup, Selection, select
from trainer.data.scores import Score, ScoreRequest, add_scores
from trainer.data.shares import StepShares, share

if TYPE_CHECKING:  # torch
    from dart_streams.policy.rendering import Renderer

SIGNAL_INTERVAL_S = 0.5
"""Interval at which a wait of the main thread lets Python's signal handlers run.

Python runs them between two of its instructions. A signal just before an unbounded wait would be handled after it.
"""

log = structlog.get_logger()


class StepStore(Protocol):
    """Steps and screenshots: those of a run's store, or a folder's."""

    def steps_many(self, ids: Sequence[str]) -> dict[str, list[Observation]]:
        """Return the observations of trajectories, in order."""

    def get_blobs(self, refs: Iterable[BlobRef]) -> dict[str, bytes]:
        """Return screenshots by sha256; raise :class:`MissingBlob` if one is missing."""


@dataclass
class GroupReader:
    """Reads this rank's share of a group from the store, and with ``score`` its scores. Thread-safe."""

    store: StepStore
    renderer: "Renderer"
    policy: Policy
    rank: int = 0
    ranks: int = 1
    score: Score | None = None
    stopped: Callable[[], bool] = bool
    """Whether the trainer is to end: then nothing waits for scores."""

    def read(self, group: CuratedGroup, members: Sequence[Member] | None = None) -> ReadyGroup:
        """Return the trainable samples of a group; refused steps are counted and logged with an example.

        Without ``members`` they are this rank's share of the group alone, in which a hash picks the first rank.
        """
        started = time.perf_counter()
        if members is None:
            turned = (self.rank + stateless_random.number("share", group.group_id)) % self.ranks
            [members] = share([group], turned, [0] * self.ranks)
        steps = self.store.steps_many([member.trajectory_id for member in members])
        selection = select(group, members, steps, self.renderer, self.policy)
        images = self._images(selection)
        if selection.refused:
            log.warning("steps refused", group=group.group_id, **selection.refused, example=selection.example)
        samples = selection.samples
        if self.score is not None and samples:
            samples = add_scores(samples, self.score(ScoreRequest(samples, images, self.stopped)))
        return ReadyGroup(
            group=group,
            samples=samples,
            images=images,
            refused=selection.refused,
            read_ms=since_ms(started),
            distinct_tokens=count_distinct(samples, steps, self.renderer, self.policy),
        )

    def _images(self, selection: Selection) -> dict[str, bytes]:
        """Return the screenshots of a selection; samples without a usable screenshot are removed."""
        wanted: dict[str, BlobRef] = {ref.sha256: ref for item in selection.samples for ref in item.images}
        blobs: dict[str, bytes] = {}
        while len(blobs) < len(wanted):
            try:
                blobs = self.store.get_blobs(wanted.values())
            except MissingBlob as missing:
                del wanted[missing.ref.sha256]
                selection.refuse_screenshot(missing.ref.sha256, MISSING_BLOB, str(missing))
        for sha256, data in blobs.items():
            try:
                self.renderer.expansion(*pictures.decode_picture(data).size)
            except ValueError as error:
                detail = f"screenshot {sha256[:12]} is no input of the model: {error}"
                selection.refuse_screenshot(sha256, UNUSABLE_IMAGE, detail)
        return {ref.sha256: blobs[ref.sha256] for item in selection.samples for ref in item.images}


class Prefetcher:
    """Reads groups in a background thread, in request order.

    With ``shares`` all ranks make the same calls in the same order: then arriving groups are shared as those say.
    """

    def __init__(self, read: Callable[..., ReadyGroup], shares: StepShares | None = None) -> None:
        self._read = read
        self.shares = shares
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="prefetch")
        self._ready: dict[str, Future[ReadyGroup]] = {}
        self._lock = threading.Lock()

    def want(self, group: CuratedGroup) -> None:
        """Start to read a group, unless already requested."""
        with self._lock:
            if group.group_id not in self._ready:
                self._ready[group.group_id] = self._pool.submit(self._read, group)

    def want_arrived(self, groups: Iterable[CuratedGroup]) -> None:
        """Start to read groups for the next steps, in the order of their arrival, unless already requested."""
        if self.shares is None:
            for group in groups:
                self.want(group)
            return
        with self._lock:
            new = list({one.group_id: one for one in groups if one.group_id not in self._ready}.values())
            for group, members in zip(new, self.shares.plan(new), strict=True):
                self._ready[group.group_id] = self._pool.submit(self._read, group, members)

    def take(self, group: CuratedGroup) -> ReadyGroup:
        """Return a group once read, and forget it. Raises the store's errors."""
        self.want(group)
        with self._lock:
            future = self._ready.pop(group.group_id)
        while not future.done():
            wait([future], SIGNAL_INTERVAL_S)
        return future.result()

    def forget(self, group: CuratedGroup) -> bool:
        """Drop a group that will not be trained; return whether it was requested."""
        with self._lock:
            future = self._ready.pop(group.group_id, None)
        if future is not None:
            future.cancel()
        return future is not None

    def leave_out(self, count: int) -> None:
        """Note groups that arrived and take no place in a batch."""
        if self.shares:
            self.shares.leave_out(count)

    @property
    def held_bytes(self) -> int:
        """Bytes of screenshots in groups that were read and not taken."""
        with self._lock:
            done = [future for future in self._ready.values() if future.done() and not future.cancelled()]
        return sum(future.result().size for future in done if future.exception() is None)

    def close(self) -> None:
        """Stop reading; wait for the read in progress."""
        self._pool.shutdown(cancel_futures=True)
