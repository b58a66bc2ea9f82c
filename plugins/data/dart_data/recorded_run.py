"""A recorded run for Python: its episodes, actions, groups and optimizer steps as tables of plain values.

:func:`dart_streams.open` returns a :class:`RecordedRun`. Each table is read from the log when it is iterated, in one
pass; nothing is kept but what a column needs from another topic.
"""

from collections.abc import Callable, Iterator
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from console.bundles.bundle_inputs import config_of, tasks_of
from console.bundles.episode_index import EpisodeIndex
from console.runs import run_folder
from console.runs.bundle import Bundle
from console.runs.run_log import read_events
from dart_streams.config import Bus, Config
from dart_streams.config.tasks import TaskSet
from dart_streams.errors import UserError
from dart_streams.store import MissingBlob, connect, sync_store
from topics import Topic, curated, observations, rollout_budgets, rollout_orders, trained, trajectories, weights
from topics.observations import ExecutedAction, Observation
from topics.trained import TrainedStep

if TYPE_CHECKING:  # Neither is a requirement of this package.
    import pandas
    import polars

Row = dict[str, Any]


class RunTable(NamedTuple):
    """Rows of one kind; each iteration reads the log again."""

    name: str
    read: Callable[[], Iterator[Row]]

    def __iter__(self) -> Iterator[Row]:  # type: ignore[override]
        """Yield the rows, as dictionaries with the columns' names."""
        return self.read()

    def to_pandas(self) -> "pandas.DataFrame":
        """Return the rows as a pandas DataFrame; raise UserError if pandas is not installed."""
        try:
            import pandas
        except ImportError:
            raise UserError("pandas is not installed: install it here, or use to_polars() or the rows") from None
        return pandas.DataFrame(self.read())

    def to_polars(self) -> "polars.DataFrame":
        """Return the rows as a polars DataFrame; raise UserError if polars is not installed."""
        try:
            import polars
        except ImportError:
            raise UserError("polars is not installed: install it here, or use to_pandas() or the rows") from None
        return polars.DataFrame(list(self.read()), infer_schema_length=None)


class RecordedRun:
    """A run on its broker, or in a bundle: ``config``, ``tasks``, tables, and screenshots."""

    def __init__(self, config: Config, tasks: TaskSet, source: Bus | Bundle) -> None:
        self.config = config
        self.tasks = tasks
        self.source = source

    @property
    def episodes(self) -> RunTable:
        """Ended episodes, oldest first within a task: a ``Trajectory``'s fields, and what curation made of each.

        ``advantage`` and ``selected`` (indexes of the actions to train on) are null if no curated group has the
        episode. ``train_steps`` are the optimizer steps that trained on it.
        """
        return RunTable("episodes", self._episodes)

    @property
    def actions(self) -> RunTable:
        """Executed actions with the screen before each: the ``ExecutedAction``'s fields, times in milliseconds.

        ``screen`` is the screenshot's sha256. ``version`` is the weight version of the first token, null without any.
        """
        return RunTable("actions", self._actions)

    @property
    def groups(self) -> RunTable:
        """Curated groups, with a list for each field of their members."""
        return RunTable("groups", self._groups)

    @property
    def train_steps(self) -> RunTable:
        """Optimizer steps with their metrics (docs/metrics.md); of one that was repeated after a restart, the last."""
        return RunTable("train_steps", self._train_steps)

    @property
    def versions(self) -> RunTable:
        """Announced weight versions, in order."""
        return RunTable("versions", lambda: self._fields(weights.TOPIC, "base"))

    @property
    def orders(self) -> RunTable:
        """Rollout orders."""
        return RunTable("orders", lambda: self._fields(rollout_orders.TOPIC))

    @property
    def budgets(self) -> RunTable:
        """Rollout budgets, each with its ``reason``."""
        return RunTable("budgets", lambda: self._fields(rollout_budgets.TOPIC))

    def screenshot(self, sha256: str) -> bytes:
        """Return a screenshot's bytes (PNG, JPEG or WebP); raise UserError if the run does not have it."""
        if not isinstance(self.source, Bundle):
            return self._stored(sha256)
        if sha256 not in self._blobs:
            raise UserError(f"{self.source.path} has no screenshot {sha256}: capture the run with --blobs")
        return self._blobs[sha256]

    @cached_property
    def _blobs(self) -> dict[str, bytes]:
        source = self.source
        if not isinstance(source, Bundle) or not source.has("blobs"):
            return {}
        return {blob.sha256: blob.data for blob in source.blobs()}

    def _stored(self, sha256: str) -> bytes:
        session = connect(self.config.store)
        try:
            store = sync_store(session, self.config, cache_mb=0)
            return store.blob_named(sha256)
        except MissingBlob as error:
            raise UserError(str(error)) from None
        finally:
            session.cluster.shutdown()

    def _events(self, topic: Topic) -> Iterator[Any]:
        return read_events(self.source, [topic])

    def _fields(self, topic: Topic, *left_out: str) -> Iterator[Row]:
        for event in self._events(topic):
            names = [name for name in event.__struct_fields__ if name not in left_out]
            yield {name: msgspec.to_builtins(getattr(event, name)) for name in names}

    def _episodes(self) -> Iterator[Row]:
        with EpisodeIndex() as index:
            index.add_groups(self._events(curated.TOPIC))
            index.add_trained(self._events(trained.TOPIC), past=True)
            for row in self._fields(trajectories.TOPIC):
                if not index.is_new(row["trajectory_id"]):
                    continue  # A recorder that was killed announces a trajectory again.
                facts = index.facts(row["trajectory_id"])
                curated_by_group = facts.advantage is not None
                yield row | {
                    "advantage": facts.advantage,
                    "selected": list(facts.step_advantages) if curated_by_group else None,
                    "train_steps": facts.train_steps,
                }

    def _actions(self) -> Iterator[Row]:
        newest: dict[str, Observation] = {}
        ended: set[str] = set()
        for shown in self._events(observations.TOPIC):
            name = shown.trajectory_id
            before = newest.get(name)
            if name in ended or (before is not None and shown.step <= before.step):
                continue  # A worker that was killed publishes a record again.
            if before is not None and shown.taken is not None:
                yield action_row(before, shown)
            newest[name] = shown
            if shown.end is not None:
                ended.add(name)
                del newest[name]

    def _groups(self) -> Iterator[Row]:
        for group in self._events(curated.TOPIC):
            row = {"group_id": group.group_id, "task_id": group.task_id, "mean": group.mean, "std": group.std}
            names = ("trajectory_id", "reward", "advantage", "source", "version_min", "version_max")
            yield row | {name: [getattr(member, name) for member in group.members] for name in names}

    def _train_steps(self) -> Iterator[Row]:
        steps: dict[int, TrainedStep] = {step.train_step: step for step in self._events(trained.TOPIC)}
        for _, step in sorted(steps.items()):
            yield {
                "train_step": step.train_step,
                "version": step.version,
                "epoch": step.epoch,
                "at_ms": step.at_ms,
                "trajectories": len(step.trajectory_ids),
            } | step.metrics


def action_row(before: Observation, after: Observation) -> Row:
    """Return the row of the action between two observations of an episode."""
    taken, screen = after.taken, before.screenshot
    fields = [name for name in ExecutedAction.__struct_fields__ if name != "versions"]
    versions = taken.versions if taken else []
    return {
        "trajectory_id": before.trajectory_id,
        "task_id": before.order.task_id,
        "purpose": before.order.purpose,
        "group_id": before.order.group_id,
        "step": before.step,
        "instruction": before.instruction,
        "screen": screen.sha256 if screen else None,
        "at_ms": before.at_ms,
        "version": versions[0].version if versions else None,
        **{name: msgspec.to_builtins(getattr(taken, name)) for name in fields},
        "outcome": after.end.kind if after.end else None,
    }


def open_run(source: str | Path = "latest", state: str | Path = run_folder.DEFAULT_STATE) -> RecordedRun:
    """Return a bundle's run for a file, or the run of a folder or of an id in the folder ``state``.

    A run that is no bundle needs its broker: start it with ``dart-streams up``. Raises UserError for an unknown run.
    """
    path = Path(source)
    if path.is_file():
        bundle = Bundle(path)
        return RecordedRun(config_of(bundle), tasks_of(bundle), bundle)
    if (path / "config.toml").is_file():
        folder = run_folder.RunFolder(path.resolve())
    else:
        if path.suffix or len(path.parts) > 1:
            raise UserError(f"{source} is neither a bundle nor the folder of a run")
        folder = run_folder.find(str(state), str(source))
    config = folder.named(folder.config())
    return RecordedRun(config, folder.tasks(), config.bus)
