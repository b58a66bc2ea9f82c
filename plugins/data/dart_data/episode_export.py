"""Exports a run's episodes as rows, from its topics and the store or from a bundle, in bounded memory.

``trajectories`` gives the episodes and their order, ``curated`` advantages, and ``trained`` optimizer steps. A bundle's
observations and screenshots are in another order, so they are indexed first.
"""

import itertools
from collections.abc import Iterable, Iterator, Sequence
from fnmatch import fnmatchcase
from typing import Any, TypeVar

import msgspec

from console.bundles.episode_index import EpisodeIndex, IndexedEpisodes, report_progress
from console.runs.bundle import Bundle
from console.runs.run_log import read_events
from dart_data.episode_columns import Layout, Progress, RecordedEpisode
from dart_data.episode_rows import rows_of
from dart_streams.bus import sync_clients
from dart_streams.config import Bus, Policy
from dart_streams.episodes.trajectory_summary import is_whole
from dart_streams.errors import UserError
from dart_streams.store import MissingBlob, SyncStore
from topics import curated, trained, trajectories
from topics.trajectories import Trajectory
from topics.values import OutcomeKind, Purpose

EPISODES_PER_READ = 16

T = TypeVar("T")


class EpisodeFilter(msgspec.Struct, frozen=True, kw_only=True):
    """Conditions on episodes; empty lists and None are no condition. ``tasks`` are task ids, or patterns with ``*``.

    An episode is within a range of versions if all of its tokens are.
    """

    outcomes: Sequence[OutcomeKind] = ()
    tasks: Sequence[str] = ()
    purposes: Sequence[Purpose] = ()
    first_version: int | None = None
    last_version: int | None = None

    def has(self, episode: Trajectory) -> bool:
        """Return whether an episode meets all conditions."""
        return (
            (not self.outcomes or episode.outcome in self.outcomes)
            and (not self.purposes or episode.purpose in self.purposes)
            and (not self.tasks or any(fnmatchcase(episode.task_id, pattern) for pattern in self.tasks))
            and self._has_versions(episode)
        )

    def _has_versions(self, episode: Trajectory) -> bool:
        if self.first_version is None and self.last_version is None:
            return True
        if episode.version_min is None or episode.version_max is None:
            return False
        first = self.first_version is None or episode.version_min >= self.first_version
        return first and (self.last_version is None or episode.version_max <= self.last_version)


EpisodeSource = SyncStore | IndexedEpisodes


class ExportResult(msgspec.Struct, kw_only=True):
    """Counts of an export; ``filtered`` episodes were not wanted, and ``incomplete`` ones lack a step."""

    episodes: int = 0
    rows: int = 0
    screenshots: int = 0
    filtered: int = 0
    incomplete: int = 0


class EpisodeExport:
    """Export of the episodes of ``log``, with steps and screenshots from ``episodes``."""

    def __init__(self, log: Bus | Bundle, run: str, index: EpisodeIndex, episodes: EpisodeSource) -> None:
        self.log = log
        self.run = run
        self.index = index
        self.episodes = episodes
        self.result = ExportResult()

    def rows(
        self, wanted: EpisodeFilter, layout: Layout, policy: Policy, report: Progress = lambda _: None
    ) -> Iterator[list[dict[str, Any]]]:
        """Yield the rows of each wanted episode, in order of their end; ``report`` gets the number of episodes seen."""
        self.index.add_groups(read_events(self.log, [curated.TOPIC]))
        self.index.add_trained(read_events(self.log, [trained.TOPIC]))
        for episode in self.episodes_of(wanted, report):
            facts = self.index.facts(episode.observations[0].trajectory_id)
            rows = rows_of(layout, self.run, episode, facts, policy)
            self.result.episodes += 1
            self.result.rows += len(rows)
            self.result.screenshots += len(episode.images)
            yield rows

    def episodes_of(self, wanted: EpisodeFilter, report: Progress = lambda _: None) -> Iterator[RecordedEpisode]:
        """Yield each wanted episode, in order of their end; ``report`` gets the number of episodes seen."""
        finished = report_progress(read_events(self.log, [trajectories.TOPIC]), report)
        for batch in batch_items(self._chosen(finished, wanted), EPISODES_PER_READ):
            yield from self._read(batch)

    def _chosen(self, finished: Iterable[Trajectory], wanted: EpisodeFilter) -> Iterator[Trajectory]:
        """Yield each wanted episode once; the topic may repeat it."""
        for episode in finished:
            if not self.index.is_new(episode.trajectory_id):
                continue
            if wanted.has(episode):
                yield episode
            else:
                self.result.filtered += 1

    def _read(self, batch: Sequence[Trajectory]) -> Iterator[RecordedEpisode]:
        """Yield the episodes of a batch that have all of their steps."""
        steps = self.episodes.steps_many([episode.trajectory_id for episode in batch])
        shown = itertools.chain.from_iterable(steps.values())
        try:
            images = self.episodes.get_blobs({step.screenshot for step in shown if step.screenshot is not None})
        except MissingBlob as missing:
            advice = (
                "is this the store that the run used (store.hosts, store.keyspace)? A bundle that was captured with "
                "--blobs has its screenshots: export that with --bundle"
            )
            if isinstance(self.episodes, IndexedEpisodes):
                advice = "capture the run again with --blobs"
            raise UserError(f"{missing}: {advice}") from None
        for episode in batch:
            episode_steps = steps[episode.trajectory_id]
            if not is_whole(episode_steps):
                self.result.incomplete += 1
                continue
            names = {step.screenshot.sha256 for step in episode_steps if step.screenshot is not None}
            yield RecordedEpisode(observations=episode_steps, images={sha256: images[sha256] for sha256 in names})


def episode_count(log: Bus | Bundle) -> int:
    """Return the number of records of finished episodes, repeats included."""
    if isinstance(log, Bundle):
        section = log.sections.get(trajectories.TOPIC.name)
        return section.items if section else 0
    with sync_clients.TopicReader(log, "history", trajectories.TOPIC) as reader:
        first = reader.client.beginning_offsets(reader.partitions)
        return sum(end - first[partition] for partition, end in reader.end_offsets().items())


def batch_items(items: Iterable[T], size: int) -> Iterator[list[T]]:
    """Yield items in lists of ``size``, the last one shorter."""
    rest = iter(items)
    while batch := list(itertools.islice(rest, size)):
        yield batch
