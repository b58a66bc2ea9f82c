"""Task sets: a task is an exact instance, ``environment/page#seed``; the seeds of the splits never overlap."""

from pathlib import Path
from typing import Any, Literal

import msgspec

from dart_streams.config.files import parse_as, read_tables
from dart_streams.errors import ConfigError

Split = Literal["train", "heldout", "demonstration"]


class Task(msgspec.Struct, frozen=True, kw_only=True):
    """One exact instance: page ``page`` of environment ``environment`` with ``seed``, bounded by ``max_steps``."""

    environment: str
    page: str
    seed: int
    max_steps: int
    split: Split

    @property
    def task_id(self) -> str:
        """The id by which events name this task, for instance ``miniwob/click-test-2#17``."""
        return f"{self.environment}/{self.page}#{self.seed}"


class Page(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A family of tasks in the file: half-open seed ranges ``[first, last)``.

    ``demonstration_seeds`` are for the warm-up of the tiny policy only; by default there are none.
    """

    environment: str
    page: str
    max_steps: int
    train_seeds: tuple[int, int]
    heldout_seeds: tuple[int, int]
    demonstration_seeds: tuple[int, int] = (0, 0)

    def tasks(self, split: Split) -> list[Task]:
        """Return this page's instances of one split."""
        ranges = {
            "train": self.train_seeds,
            "heldout": self.heldout_seeds,
            "demonstration": self.demonstration_seeds,
        }
        return [
            Task(environment=self.environment, page=self.page, seed=seed, max_steps=self.max_steps, split=split)
            for seed in range(*ranges[split])
        ]


class TaskFile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The file: a list of ``[[pages]]``."""

    pages: list[Page]


class TaskSet:
    """The tasks of a deployment, by split and by id."""

    def __init__(self, pages: list[Page]) -> None:
        self.pages = tuple(pages)
        self.train = tuple(task for page in pages for task in page.tasks("train"))
        self.heldout = tuple(task for page in pages for task in page.tasks("heldout"))
        self.demonstration = tuple(task for page in pages for task in page.tasks("demonstration"))
        everything = (*self.train, *self.heldout, *self.demonstration)
        self._by_id = {task.task_id: task for task in everything}
        if len(self._by_id) != len(everything):
            raise ConfigError("task set: a page is listed twice, or its seeds for two purposes overlap")

    def get(self, task_id: str) -> Task:
        """Return the task of this id; raise :class:`ConfigError` if the set has none."""
        try:
            return self._by_id[task_id]
        except KeyError:
            raise ConfigError(f"unknown task {task_id!r}: the task set does not have it") from None

    def __contains__(self, task_id: object) -> bool:
        return task_id in self._by_id


def load(path: Path) -> TaskSet:
    """Read a task set; raise :class:`ConfigError` that names the file and the key."""
    return parse(
        read_tables(path, f"no task set {path}: set tasks.file, relative to the configuration file"), str(path)
    )


def parse(data: dict[str, Any], source: str) -> TaskSet:
    """Turn nested tables into a task set; raise :class:`ConfigError` that names ``source`` and the offending key."""
    return TaskSet(parse_as(TaskFile, data, source).pages)
