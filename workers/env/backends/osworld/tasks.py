"""An OSWorld task: what its JSON file says, checked and typed. Pure: it reads no other file and reaches no machine."""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Literal
from urllib.parse import urlsplit

import msgspec

from dart_streams.config.text import json_of
from dart_streams.errors import ConfigError
from workers.env.backends.osworld.steps import Step, StepError, parse_steps, urls_of

INFEASIBLE = "infeasible"
"""The evaluator of a task that cannot be done: the policy is to say so."""
CLOUD = "cloud_file"
"""The getter of a published file."""
EVALUATOR_KEYS = frozenset({"func", "result", "expected", "options", "conj", "postconfig"})


class Getter(msgspec.Struct, frozen=True):
    """Where a value comes from (``get_<name>`` of OSWorld's evaluators), with its settings."""

    name: str
    settings: dict[str, Any]

    def cloud_files(self) -> Iterator[tuple[str, str]]:
        """Yield the published files it compares with, as (URL, name in the cache)."""
        if self.name == CLOUD:
            yield from zip(as_list(self.settings["path"]), as_list(self.settings["dest"]), strict=True)


class Check(msgspec.Struct, frozen=True):
    """One metric, the value it judges and the one it compares with."""

    metric: str
    result: Getter | None
    expected: Getter | None


class Evaluator(msgspec.Struct, frozen=True):
    """How a task is scored: every check (``and``: the mean, 0 if any is) or the best one (``or``)."""

    checks: tuple[Check, ...]
    conjunction: Literal["and", "or"]
    postconfig: tuple[Step, ...]
    source: dict[str, Any]
    """As in the file, but for postconfig: what the sidecar is given."""

    @property
    def infeasible(self) -> bool:
        """Whether the right answer is that the task cannot be done."""
        return self.checks[0].metric == INFEASIBLE

    def getters(self) -> Iterator[Getter]:
        """Yield where its values come from."""
        for check in self.checks:
            for getter in (check.result, check.expected):
                if getter is not None:
                    yield getter


class OsworldTask(msgspec.Struct, frozen=True, kw_only=True):
    """One task. ``app`` is its folder, ``proxy`` whether its pages block the addresses of data centers."""

    app: str
    task_id: str
    instruction: str
    config: tuple[Step, ...]
    evaluator: Evaluator
    related_apps: tuple[str, ...] = ()
    proxy: bool = False

    @property
    def page(self) -> str:
        """Its name in a task set."""
        return f"{self.app}/{self.task_id}"

    def steps(self) -> tuple[Step, ...]:
        """Return all its steps, those before the evaluation too."""
        return self.config + self.evaluator.postconfig

    def cloud_files(self) -> list[tuple[str, str]]:
        """Return what its evaluator compares with, as (URL, name in the cache)."""
        return [file for getter in self.evaluator.getters() for file in getter.cloud_files()]

    def urls(self) -> list[str]:
        """Return all published files that it needs, each once."""
        return list(dict.fromkeys([*urls_of(self.steps()), *(url for url, _ in self.cloud_files())]))


class TaskSource(msgspec.Struct, frozen=True):
    """What of a task's file is used. Its ``id`` is not: a task is named by its file."""

    evaluator: dict[str, Any]
    instruction: str = ""
    config: list[Any] | None = None
    related_apps: list[str] | None = None
    proxy: bool | None = None


class UnusableTask(msgspec.Struct, frozen=True):
    """A task whose file cannot be used, and why."""

    page: str
    reason: str


def load_all(folder: Path, pages: Iterable[str]) -> tuple[list[OsworldTask], list[UnusableTask]]:
    """Return the tasks of an ``evaluation_examples`` folder that can be used, and those whose files cannot."""
    found: list[OsworldTask] = []
    unusable: list[UnusableTask] = []
    for page in pages:
        try:
            found.append(load(folder, page))
        except ConfigError as error:
            unusable.append(UnusableTask(page, str(error)))
    return found, unusable


def load(folder: Path, page: str) -> OsworldTask:
    """Read a task (``app/id``) of an ``evaluation_examples`` folder; raise ConfigError that names the file."""
    app, _, task_id = page.partition("/")
    path = folder / "examples" / app / f"{task_id}.json"
    try:
        data = json_of(path.read_bytes(), str(path), dict[str, Any])
    except OSError as error:
        raise ConfigError(f"no OSWorld task {page}: {path} can't be read ({error.strerror})") from None
    except ValueError as error:  # A NUL character in a name.
        raise ConfigError(f"no OSWorld task {page!r}: {error}") from None
    try:
        return parse(data, app, task_id)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from None


def parse(data: Any, app: str, task_id: str) -> OsworldTask:
    """Return the task that a file's content describes; raise ConfigError with what is wrong or not known."""
    try:
        source = msgspec.convert(data, TaskSource)
        config = parse_steps(source.config)
        evaluator = parse_evaluator(source.evaluator)
    except (msgspec.ValidationError, StepError) as error:
        raise ConfigError(str(error)) from None
    task = OsworldTask(
        app=app,
        task_id=task_id,
        instruction=source.instruction.strip(),
        config=config,
        evaluator=evaluator,
        related_apps=tuple(source.related_apps or ()),
        proxy=bool(source.proxy),
    )
    for url in task.urls():
        refuse_malformed(url)
    return task


def refuse_malformed(url: str) -> None:
    """Raise ConfigError for a URL that none can be read from."""
    try:
        if urlsplit(url).scheme:
            return
        reason = "it has no scheme, such as https"
    except ValueError as error:
        reason = str(error)
    raise ConfigError(f"no URL {url!r}: {reason}")


def parse_evaluator(data: dict[str, Any]) -> Evaluator:
    """Return a task's evaluator; raise ConfigError if it has a key or a form that is not known."""
    if unknown := [key for key in data if key not in EVALUATOR_KEYS and not key.startswith("_")]:
        raise ConfigError(f"evaluator: no key {unknown[0]!r} is known")
    metrics = as_list(data.get("func"))
    if not metrics or not all(isinstance(name, str) and name for name in metrics):
        raise ConfigError("evaluator: func names no metric")
    if INFEASIBLE in metrics and len(metrics) > 1:
        raise ConfigError(f"evaluator: {INFEASIBLE} goes with no other metric")
    if (conjunction := data.get("conj", "and")) not in {"and", "or"}:
        raise ConfigError(f"evaluator: conj is and or or, not {conjunction!r}")
    several = isinstance(data["func"], list)
    results, expected = (parse_getters(data, key, len(metrics), several) for key in ("result", "expected"))
    checks = tuple(map(Check, metrics, results, expected))
    for check in checks:
        if check.result is None and check.metric != INFEASIBLE:
            raise ConfigError(f"evaluator: {check.metric} has no result to judge")
    return Evaluator(
        checks=checks,
        conjunction=conjunction,
        postconfig=parse_steps(data.get("postconfig")),
        source={key: value for key, value in data.items() if key in EVALUATOR_KEYS and key != "postconfig"},
    )


def parse_getters(data: dict[str, Any], key: str, count: int, several: bool) -> list[Getter | None]:
    """Return the getters of one side, one a metric; an empty one is none."""
    value = data.get(key) or ([None] * count if several else None)
    if isinstance(value, list) != several or len(as_list(value)) != count:
        raise ConfigError(f"evaluator: {key} has to be {'a list of' if several else 'one for'} {count}, as func is")
    return [parse_getter(item, key) for item in as_list(value)]


def parse_getter(data: Any, key: str) -> Getter | None:
    """Return a getter, None for an empty one."""
    if not data:
        return None
    if not isinstance(data, dict) or not isinstance(data.get("type"), str):
        raise ConfigError(f"evaluator: {key} has no type")
    settings = {name: value for name, value in data.items() if name != "type"}
    if data["type"] == CLOUD:
        paths, names = (as_list(settings.get(side)) for side in ("path", "dest"))
        if len(paths) != len(names):
            raise ConfigError(f"evaluator: {key} has as many paths as names in the cache")
        if not all(isinstance(text, str) for text in (*paths, *names)):
            raise ConfigError(f"evaluator: path and dest of {key} are texts, or lists of texts")
    return Getter(data["type"], settings)


def as_list(value: Any) -> list[Any]:
    """Return a list as it is, and anything else as a list of one."""
    return value if isinstance(value, list) else [value]


def settled_score(task: OsworldTask, gave_up: bool) -> float | None:
    """Return the score that the last action decides alone, None if the machine's state has to be evaluated.

    As OSWorld scores: a task that cannot be done is worth 1 if and only if the policy gave up (its action FAIL, our
    ``call_user``); any other is then worth 0.
    """
    if task.evaluator.infeasible:
        return float(gave_up)
    return 0.0 if gave_up else None
