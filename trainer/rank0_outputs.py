"""What only rank 0 has: the ways out of a training process, and whether they are still its own."""

from typing import NamedTuple

import msgspec

from dart_streams.bus import sync_clients
from dart_streams.store import SyncStore
from topics import trained
from topics.trained import TrainedStep
from trainer.data.consumer import CuratedConsumer, Fenced, Overtaken
from trainer.publish import WeightPublisher
from trainer.reporting import StepReporter


class Rank0Outputs(NamedTuple):
    """What only rank 0 has: the ways out of the process."""

    consumer: CuratedConsumer
    publisher: WeightPublisher
    store: SyncStore
    reporter: StepReporter

    def check(self) -> None:
        """Raise :class:`Fenced` if a newer trainer has claimed its epoch, or what ended the consumer's thread.

        The database is asked: that trainer's first event may not have been read here yet.
        """
        self.consumer.check()
        claimed = self.store.claimed_epoch(self.consumer.model_id)
        if claimed > self.publisher.epoch:
            raise self._fenced_by(claimed)
        self.check_versions()

    def check_versions(self) -> None:
        """Raise :class:`Overtaken` if the topic's newest version is none of this trainer's, or counts other groups."""
        self.consumer.check()
        newest, own = self.consumer.weights.newest, self.publisher.weights.newest
        if newest is None or own is None:
            return
        if (newest.version, newest.epoch, newest.groups_consumed) > (own.version, own.epoch, own.groups_consumed):
            raise Overtaken.by(newest, self.publisher.bus)

    def record(self, step: TrainedStep) -> None:
        """Write a step's row into the store's ``trained``, then its event; the same step again overwrites the row.

        What the step imitated is in its event alone: the row has no column for it. Raises :class:`Fenced`, and writes
        neither, if a newer trainer has claimed its epoch.
        """
        row, model_id = msgspec.structs.asdict(step), self.consumer.model_id
        if not self.store.write_trained_by_claim(model_id, self.publisher.epoch, row.pop("train_step"), row):
            raise self._fenced_by(self.store.claimed_epoch(model_id))
        self.publisher.publish_trained(step)

    def record_last(self, step: TrainedStep) -> None:
        """Record the newest step of a checkpoint, unless its event is there, and so its row, from before.

        What was measured after the checkpoint is in those alone.
        """
        known = sync_clients.read_events(self.publisher.bus, "trained-log", trained.TOPIC)
        if (step.epoch, step.train_step) not in {(event.epoch, event.train_step) for event in known}:
            self.record(step)

    def _fenced_by(self, newer: int) -> Fenced:
        return Fenced.by(newer, self.publisher.epoch, self.consumer.model_id, self.publisher.bus.run)
