"""OSWorld tasks: parsing and validation of their JSON files."""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import msgspec

from dart_desktops.osworld.steps import Step, StepError, parse_steps, urls_of
from dart_streams.config.text import json_of
from dart_streams.errors import ConfigError

INFEASIBLE = "infeasible"
"""Metric of a task that cannot be done, which the policy has to report."""
CLOUD = "cloud_file"
"""Getter of a published file."""
EVALUATOR_KEYS = frozenset({"func", "result", "expected", "options", "conj", "postconfig"})


class Getter(msgspec.Struct, frozen=True):
    """Getter of a value (``get_<name>`` of OSWorld's evaluators) with its settings."""

    name: str
    settings: dict[str, Any]

    def cloud_files(self) -> Iterator[tuple[str, str]]:
        """Yield its reference files as (URL, name in the cache)."""
        if self.name == CLOUD:
            yield from zip(as_list(self.settings["path"]), as_list(self.settings["dest"]), strict=True)


class Check(msgspec.Struct, frozen=True):
    """A metric with the getters of its value and of the expected one."""

    metric: str
    result: Getter | None
    expected: Getter | None


class Evaluator(msgspec.Struct, frozen=True):
    """Scoring of a task by its checks, which OSWorld's code combines (``conj`` of the source)."""

    checks: tuple[Check, ...]
    postconfig: tuple[Step, ...]
    source: dict[str, Any]
    """The evaluator in the file without postconfig, for the sidecar."""

    @property
    def infeasible(self) -> bool:
        """Whether the task cannot be done, which is the right answer."""
        return self.checks[0].metric == INFEASIBLE

    def getters(self) -> Iterator[Getter]:
        """Yield all getters."""
        for check in self.checks:
            for getter in (check.result, check.expected):
                if getter is not None:
                    yield getter


class OsworldTask(msgspec.Struct, frozen=True, kw_only=True):
    """A task; ``app`` is its folder."""

    app: str
    task_id: str
    instruction: str
    config: tuple[Step, ...]
    evaluator: Evaluator
    related_apps: tuple[str, ...] = ()

    @property
    def page(self) -> str:
        """Its name in a task set."""
        return f"{self.app}/{self.task_id}"

    def steps(self) -> tuple[Step, ...]:
        """Return all steps, including those before the evaluation."""
        return self.config + self.evaluator.postconfig

    def cloud_files(self) -> list[tuple[str, str]]:
        """Return the evaluator's reference files as (URL, name in the cache)."""
        return [file for getter in self.evaluator.getters() for file in getter.cloud_files()]

    def urls(self) -> list[str]:
        """Return the URLs of all files that it needs, each once."""
        return list(dict.fromkeys([*urls_of(self.steps()), *(url for url, _ in self.cloud_files())]))


class TaskSource(msgspec.Struct, frozen=True):
    """Used keys of a task's file. Its ``id`` is ignored: the file names the task."""

    evaluator: dict[str, Any]
    instruction: str = ""
    config: list[Any] | None = None
    related_apps: list[str] | None = None


class UnusableTask(msgspec.Struct, frozen=True):
    """A task whose file cannot be used, with the reason."""

    page: str
    reason: str


def load_all(folder: Path, pages: Iterable[str]) -> tuple[list[OsworldTask], list[UnusableTask]]:
    """Load tasks of an ``evaluation_examples`` folder; return the usable and the unusable ones."""
    usable: list[OsworldTask] = []
    unusable: list[UnusableTask] = []
    for page in pages:
        try:
            usable.append(load(folder, page))
        except ConfigError as error:
            unusable.append(UnusableTask(page, str(error)))
    return usable, unusable


def load(folder: Path, page: str) -> OsworldTask:
    """Load a task (``app/id``) of an ``evaluation_examples`` folder; raise ConfigError that names the file."""
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
    """Parse a file's content; raise ConfigError for an error or an unknown key."""
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
    )
    for url in task.urls():
        refuse_malformed(url)
    return task


def refuse_malformed(url: str) -> None:
    """Raise ConfigError for a malformed URL."""
    try:
        if urlsplit(url).scheme:
            return
        reason = "it has no scheme, such as https"
    except ValueError as error:
        reason = str(error)
    raise ConfigError(f"no URL {url!r}: {reason}")


def parse_evaluator(data: dict[str, Any]) -> Evaluator:
    """Parse a task's evaluator; raise ConfigError for an unknown key or form."""
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
        postconfig=parse_steps(data.get("postconfig")),
        source={key: value for key, value in data.items() if key in EVALUATOR_KEYS and key != "postconfig"},
    )


def parse_getters(data: dict[str, Any], key: str, count: int, several: bool) -> list[Getter | None]:
    """Parse the getters of one side, one a metric; an empty one is None."""
    value = data.get(key) or ([None] * count if several else None)
    if isinstance(value, list) != several or len(as_list(value)) != count:
        raise ConfigError(f"evaluator: {key} has to be {'a list of' if several else 'one for'} {count}, as func is")
    return [parse_getter(item, key) for item in as_list(value)]


def parse_getter(data: Any, key: str) -> Getter | None:
    """Parse a getter; an empty one is None."""
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
    """Return a list as is, any other value as a list of one."""
    return value if isinstance(value, list) else [value]


def settled_score(task: OsworldTask, gave_up: bool) -> float | None:
    """Return the score if the last action alone decides it, None if the machine's state has to be evaluated.

    As in OSWorld, an infeasible task scores 1 if and only if the policy gave up (FAIL, here ``call_user``); any other
    task then scores 0.
    """
    if task.evaluator.infeasible:
        return float(gave_up)
    return 0.0 if gave_up else None
