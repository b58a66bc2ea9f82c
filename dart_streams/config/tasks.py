"""Task sets. A task is an exact instance, ``environment/page#seed``, of one split."""

import itertools
import os
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from dart_streams import stateless_random
from dart_streams.config import Config, record_sizes
from dart_streams.config.files import parse_as
from dart_streams.config.section import Count, Seed, Share, StepLimit
from dart_streams.config.tables import read_tables
from dart_streams.config.text import MALFORMED, json_of, lines_of, text_of
from dart_streams.errors import ConfigError
from topics.values import IN_A_NAME

Split = Literal["train", "heldout", "demonstration"]


class Task(msgspec.Struct, frozen=True, kw_only=True):
    """One exact instance: page ``page`` of environment ``environment`` with ``seed``, bounded by ``max_steps``.

    ``file`` is the page of a proposed task, empty for a page of the environment's own.
    """

    environment: str
    page: str
    seed: int
    max_steps: int
    split: Split
    file: str = ""

    @property
    def task_id(self) -> str:
        """The task's id in events, for instance ``miniwob/click-test-2#17``."""
        return task_id(self.environment, self.page, self.seed)


def task_id(environment: str, page: str, seed: int) -> str:
    """Return the id of a page's instance."""
    return f"{environment}/{page}#{seed}"


Names = list[str]
FETCH = (
    "name a checkout of OSWorld there, or in the environment by DART_OSWORLD: "
    "`git clone https://github.com/xlang-ai/OSWorld`"
)
MAX_NAMED = 3
"""Names that an error lists."""

MAX_TASKS = 100_000
"""Tasks of a set: each takes some 200 bytes in the state of an agent, and a state has to fit into one record."""
MAX_TASK_ID = 480
"""Characters of a task's id, which is part of an order's id."""
Word = Annotated[str, Meta(min_length=1, max_length=MAX_TASK_ID, pattern=IN_A_NAME)]


def page_of(task_id: str) -> str:
    """Return the page of a task: its name without the seed."""
    return task_id.partition("#")[0]


class Page(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A family of tasks with half-open seed ranges ``[first, last)``; the tiny policy warms up on demonstrations."""

    environment: Word
    page: Word
    max_steps: StepLimit
    train_seeds: tuple[Seed, Seed]
    heldout_seeds: tuple[Seed, Seed]
    demonstration_seeds: tuple[Seed, Seed] = (0, 0)

    def __post_init__(self) -> None:
        """Refuse ids that are too long for events, and too many tasks."""
        ends = [seed for seeds in self.seeds.values() for seed in seeds]
        longest = max(len(task_id(self.environment, self.page, seed)) for seed in ends)
        if longest > MAX_TASK_ID:
            raise ValueError(f"the ids of its tasks have {longest} characters: shorten page to {MAX_TASK_ID} in all")
        if self.count > MAX_TASKS:
            raise ValueError(f"its seeds make {self.count} tasks: a task set has at most {MAX_TASKS}")

    @property
    def seeds(self) -> dict[Split, tuple[int, int]]:
        """The seed range of each split."""
        return {"train": self.train_seeds, "heldout": self.heldout_seeds, "demonstration": self.demonstration_seeds}

    @property
    def count(self) -> int:
        """The number of its tasks, of all splits."""
        return sum(max(0, last - first) for first, last in self.seeds.values())

    def tasks(self, split: Split) -> list[Task]:
        """Return this page's tasks of one split."""
        return [
            Task(environment=self.environment, page=self.page, seed=seed, max_steps=self.max_steps, split=split)
            for seed in range(*self.seeds[split])
        ]


class OsworldTasks(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The table ``[osworld]``: tasks of a checkout of OSWorld, each with one seed."""

    folder: str = ""
    """The checkout, or its ``evaluation_examples``, relative to the file; empty: ``DART_OSWORLD``."""
    task_list: str = msgspec.field(default="test_all.json", name="list")
    """The task list, a file of the folder: ``test_all.json`` has 369 tasks, ``test_nogdrive.json`` the 361 without
    Google Drive; empty: none, with tasks in ``[[pages]]``."""
    tasks: Names = []
    """Tasks as ``APP/ID``, in place of those of a list."""
    apps: Names = []
    """Apps (folders) of the tasks; empty: all."""
    checked: str = ""
    """Results of ``dart-streams osworld check``, relative to the file, which leave runnable tasks only."""
    heldout: Names = []
    """Ids of held-out tasks; empty: a ``heldout_share`` of each app's tasks, drawn by ``seed``."""
    heldout_share: Share = 0.2
    seed: Seed = 0
    max_steps: StepLimit = 30
    """Actions of an episode: 30 in DART's paper; OSWorld's own runner stops after 15."""
    demonstrations: Count = 0
    """Demonstrations of each training task for the warm-up of the tiny policy."""

    def examples(self, base: Path) -> Path:
        """Return the folder of task files; raise ConfigError without a checkout, or for tasks that it lacks."""
        if not (named := self.folder or os.environ.get("DART_OSWORLD", "")):
            raise ConfigError(f"osworld.folder: {FETCH}")
        folder = base / Path(named).expanduser()
        if (folder / "evaluation_examples").is_dir():
            folder = folder / "evaluation_examples"
        if not (folder / "examples").is_dir():
            raise ConfigError(f"osworld.folder: {folder} is no checkout of OSWorld: it has no evaluation_examples")
        if lacking := [name for name in self.tasks if not (folder / "examples" / f"{name}.json").is_file()]:
            raise ConfigError(f"osworld.tasks: {folder} has no task {', '.join(lacking[:MAX_NAMED])}")
        return folder

    def listed(self, base: Path) -> dict[str, Names]:
        """Return the filtered ids by app; raise ConfigError for an unusable list or an unknown app."""
        source, by_app = ("the key tasks", self.ids_by_app()) if self.tasks else self.ids_of_list(base)
        if again := repeated_names(f"{app}/{name}" for app, names in by_app.items() for name in names):
            raise ConfigError(f"osworld: {source} has {', '.join(again)} twice: leave one of each")
        if unknown := sorted(set(self.apps) - set(by_app)):
            raise ConfigError(f"osworld.apps: no app {unknown[0]!r} in {source}: there are {', '.join(by_app)}")
        runnable = self.runnable(base)
        return {
            app: [name for name in names if runnable is None or f"{app}/{name}" in runnable]
            for app, names in by_app.items()
            if app in (self.apps or by_app)
        }

    def ids_by_app(self) -> dict[str, Names]:
        """Return the ids of the named tasks by app; raise ConfigError for a name of another form."""
        by_app: dict[str, Names] = {}
        for name in self.tasks:
            app, _, task = name.partition("/")
            if not app or not task or "/" in task:
                raise ConfigError(f"osworld.tasks: {name!r} is not of the form APP/ID, as os/f9be0997-…")
            by_app.setdefault(app, []).append(task)
        return by_app

    def ids_of_list(self, base: Path) -> tuple[str, dict[str, Names]]:
        """Return the path of the list and its ids by app; raise ConfigError for an unusable list."""
        path = self.examples(base) / self.task_list
        try:
            by_app = json_of(path.read_bytes(), str(path), dict[str, Names])
        except OSError as error:
            raise ConfigError(f"osworld.list: {path} can't be read: {error.strerror}") from None
        except ConfigError as error:
            raise ConfigError(f"osworld.list: no list of tasks: {error}") from None
        return str(path), by_app

    def runnable(self, base: Path) -> set[str] | None:
        """Return the runnable pages, None for all; raise ConfigError if the results can't be read."""
        if not self.checked:
            return None
        path = base / self.checked
        try:
            text = text_of(path.read_bytes(), str(path))
            lines = [msgspec.json.decode(line, type=CheckedPage) for line in lines_of(text) if line.strip()]
        except (OSError, ConfigError, *MALFORMED) as error:
            raise ConfigError(f"osworld.checked: {path} can't be read: {error}") from None
        return {page for page, verdict in {line.page: line.verdict for line in lines}.items() if verdict == "runnable"}

    def pages(self, base: Path) -> list[Page]:
        """Return the tasks as pages; raise ConfigError for an unknown held-out id."""
        if not self.task_list and not self.tasks:
            return []
        by_app = self.listed(base)
        heldout = set(self.heldout)
        if unknown := heldout - {name for names in by_app.values() for name in names}:
            raise ConfigError(f"osworld.heldout: no task {sorted(unknown)[0]!r} is in the set")
        if not heldout:
            for names in by_app.values():
                drawn = sorted(names, key=lambda name: stateless_random.number("osworld", self.seed, name))
                heldout |= set(drawn[: round(self.heldout_share * len(names))])
        return [self._page(f"{app}/{name}", name in heldout) for app, names in by_app.items() for name in names]

    def _page(self, name: str, heldout: bool) -> Page:
        one, none = (0, 1), (0, 0)
        return Page(
            environment="osworld",
            page=name,
            max_steps=self.max_steps,
            train_seeds=none if heldout else one,
            heldout_seeds=one if heldout else none,
            demonstration_seeds=none if heldout else (1, 1 + self.demonstrations),
        )


class CheckedPage(msgspec.Struct, frozen=True):
    """What a line of the results of ``dart-streams osworld check`` says of a task."""

    page: str
    verdict: str


class TaskFile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The file: a list of ``[[pages]]``, and tasks of OSWorld."""

    pages: list[Page] = []
    osworld: OsworldTasks | None = None

    def all_pages(self, base: Path) -> list[Page]:
        """Return its pages and OSWorld's; raise ConfigError if there are none."""
        pages = self.pages + (self.osworld.pages(base) if self.osworld else [])
        if not pages:
            raise ConfigError("lacks pages: it has no task")
        return pages


class TaskSet:
    """The tasks of a deployment, by split and by id."""

    def __init__(self, pages: list[Page]) -> None:
        if (count := sum(page.count for page in pages)) > MAX_TASKS:
            raise ConfigError(f"its pages have {count} tasks in all: a task set has at most {MAX_TASKS}")
        self.pages = tuple(pages)
        self.train = tuple(task for page in pages for task in page.tasks("train"))
        self.heldout = tuple(task for page in pages for task in page.tasks("heldout"))
        self.demonstration = tuple(task for page in pages for task in page.tasks("demonstration"))
        everything = (*self.train, *self.heldout, *self.demonstration)
        self._by_id = {task.task_id: task for task in everything}
        if len(self._by_id) != len(everything):
            again = repeated_names(task.task_id for task in everything)
            raise ConfigError(
                f"task set: {', '.join(again)} {'is' if len(again) == 1 else 'are'} there twice: a page is listed "
                "twice, or its seeds for two purposes overlap"
            )

    @property
    def most_steps(self) -> int:
        """Maximum steps of an episode; 0 without tasks."""
        return max((page.max_steps for page in self.pages), default=0)

    def get(self, task_id: str) -> Task:
        """Return the task of this id; raise :class:`ConfigError` if the set has none."""
        try:
            return self._by_id[task_id]
        except KeyError:
            raise ConfigError(f"unknown task {task_id!r}: the task set does not have it") from None

    def __len__(self) -> int:
        return len(self._by_id)

    def __contains__(self, task_id: object) -> bool:
        return task_id in self._by_id


def repeated_names(names: Iterable[str]) -> list[str]:
    """Return the first few repeated names."""
    again = (name for name, count in Counter(names).items() if count > 1)
    return list(itertools.islice(again, MAX_NAMED))


def tasks_of(config: Config, file: Path | None = None) -> TaskSet:
    """Read the task set of a deployment, from ``tasks.file`` or ``file``.

    Raises :class:`ConfigError` with the file and the key, also if records of its episodes could be too large.
    """
    path = file or Path(config.tasks.file)
    found = load(path)
    if too_large := record_sizes.size_refusal(config, max(1, found.most_steps)):
        raise ConfigError(f"{path}: {too_large}")
    return found


def load(path: Path) -> TaskSet:
    """Read a task set; raise :class:`ConfigError` that names the file and the key."""
    return parse(read_task_tables(path), str(path), path.parent)


def parse(data: dict[str, Any], source: str, base: Path = Path()) -> TaskSet:
    """Turn tables, with paths relative to ``base``, into a task set; raise :class:`ConfigError` with source and key."""
    file = parse_as(TaskFile, data, source)
    try:
        return TaskSet(file.all_pages(base))
    except ConfigError as error:
        raise ConfigError(f"{source}: {error}") from None


def read_task_tables(path: Path) -> dict[str, Any]:
    """Read a task file; raise :class:`ConfigError` if it is missing or no TOML."""
    return read_tables(path, f"no task set {path}: set tasks.file, relative to the configuration file")


def task_file(path: Path) -> TaskFile:
    """Read a task file as it is written; raise :class:`ConfigError` with the file and the key."""
    return parse_as(TaskFile, read_task_tables(path), str(path))


def self_contained(path: Path) -> TaskFile:
    """Return a task file with every task listed, independent of its place except for OSWorld's checkout."""
    file = task_file(path)
    if file.osworld is None or not (file.osworld.task_list or file.osworld.tasks):
        return file
    examples = file.osworld.examples(path.parent).absolute()
    return TaskFile(pages=file.all_pages(path.parent), osworld=OsworldTasks(folder=str(examples), task_list=""))
