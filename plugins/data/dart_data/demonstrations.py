"""Reads demonstrations from a set of `data export` or JSON lines, and converts them to this deployment's.

A demonstration keeps screens, answers and reward. Tokens, log-probabilities and versions come from another model or
other weights, so they are dropped, as are the ids of the run.
"""

import functools
import hashlib
import itertools
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec

from dart_data.episode_columns import InvalidRow, RecordedEpisode
from dart_data.episode_rows import UNANSWERED, add_image, episode_of
from dart_streams import actions
from dart_streams.actions.sequence import format_all
from dart_streams.config import Config, Policy
from dart_streams.config.section import Share
from dart_streams.config.tasks import TaskSet
from dart_streams.config.text import MALFORMED, text_of
from dart_streams.episodes import prompts
from dart_streams.episodes.demonstrations import demonstration_order, written_action
from dart_streams.episodes.episode import new_trajectory_id
from dart_streams.errors import UserError
from topics.observations import EpisodeEnd, ExecutedAction, Observation
from topics.outcomes import is_success, reconcile_outcome

HOST = "data-import"


class DemonstrationStep(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """A step of a line: the screen's file, relative to the data set's folder, and the answer.

    Instead of the answer's ``text`` it may have the ``action`` alone, in canonical form; the dialect writes it.
    """

    image: str
    text: str = ""
    action: str = ""

    def __post_init__(self) -> None:
        """Refuse a step with both or neither."""
        if bool(self.text) == bool(self.action):
            raise ValueError("a step has either a text or an action")


class DemonstrationLine(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A demonstration as a line of JSON; ``last_image`` is the screen after the last step, if any."""

    task_id: str
    instruction: str
    steps: list[DemonstrationStep]
    last_image: str = ""
    reward: Share = 1.0


class NotDemonstrable(Exception):
    """The episode cannot be a demonstration of this deployment; it is counted by ``reason``."""

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(detail)
        self.reason = reason


def episode_of_line(line: DemonstrationLine, identity: str, read: Callable[[str], bytes]) -> RecordedEpisode:
    """Return a line as an episode, with images by ``read``; raise InvalidRow without a step, or for no screenshot."""
    if not line.steps:
        raise InvalidRow("it has no step")
    images: dict[str, bytes] = {}
    order = demonstration_order(identity, line.task_id, len(line.steps), Config())
    files = [*(step.image for step in line.steps), line.last_image]
    end = EpisodeEnd(kind=reconcile_outcome("failure", line.reward), reward=line.reward)
    observations = [
        Observation(
            trajectory_id=identity,
            order=order,
            step=number,
            instruction=line.instruction,
            screenshot=add_image(read(file) if file else None, images),
            taken=answer(line.steps[number - 1].text, line.steps[number - 1].action or None) if number else None,
            end=end if number == len(line.steps) else None,
            env_host=HOST,
            at_ms=0,
        )
        for number, file in enumerate(files)
    ]
    return RecordedEpisode(observations=observations, images=images)


def as_demonstration(
    episode: RecordedEpisode, config: Config, tasks: TaskSet, *, any_task: bool = False
) -> RecordedEpisode:
    """Return an episode as a demonstration of this deployment; repeated imports give the same ids.

    Raises :class:`NotDemonstrable` if it is no success, its task is held out or (but with ``any_task``) unknown, a step
    has no screen, or an answer is not in this deployment's dialect.
    """
    observations = episode.observations
    refuse_unusable(observations, tasks, any_task)
    first = observations[0]
    own = f"{config.bus.prefix}\n{first.trajectory_id}\n{first.order.task_id}"
    # With the prefix, an import into the episode's own run does not replace the episode.
    identity = new_trajectory_id(first.at_ms, hashlib.sha256(own.encode()).digest()[:10])
    order = demonstration_order(f"demonstration-{identity}", first.order.task_id, first.order.max_steps, config)
    shown: list[Observation] = []
    for observation in observations:
        if taken := observation.taken:
            # An answer may refer to the pointer, which earlier actions have moved.
            text, action = answer_of(taken, shown, config.policy)
            taken = answer(text, action, f"{identity}/{observation.step - 1}/0", taken.execute_ms)
        demonstrated = msgspec.structs.replace(
            observation,
            trajectory_id=identity,
            order=order,
            env_host=HOST,
            at_ms=first.at_ms,  # it takes no time: no slot of this deployment was busy
            end=observation.end and EpisodeEnd(kind="success", reward=observation.end.reward),
            taken=taken,
        )
        shown.append(demonstrated)
    return RecordedEpisode(observations=shown, images=episode.images)


def refuse_unusable(observations: list[Observation], tasks: TaskSet, any_task: bool = False) -> None:
    """Raise :class:`NotDemonstrable` unless an episode is a success that can be imitated."""
    first, end = observations[0], observations[-1].end
    task_id = first.order.task_id
    if end is None or end.reward is None or not is_success(end.reward):
        raise NotDemonstrable("no success", f"{task_id}: reward {end and end.reward}; only successes are imitated")
    if task_id not in tasks and not any_task:
        raise NotDemonstrable("unknown task", f"{task_id} is not in the task set: add its page and seed to tasks.file")
    if task_id in tasks and tasks.get(task_id).split == "heldout":
        raise NotDemonstrable("held-out task", f"{task_id} is held out: evaluation would measure the demonstration")
    for before, after in itertools.pairwise(observations):
        if before.screenshot is None or after.taken is None:
            raise NotDemonstrable("no screen or answer", f"{task_id}: step {before.step} has no screen, or no answer")


def answer_of(taken: ExecutedAction, before: Sequence[Observation], policy: Policy) -> tuple[str, str]:
    """Return text and actions of an answer to ``before``; raise :class:`NotDemonstrable` if the dialect has none."""
    try:
        text = taken.text or written_action(taken.action or "", before, policy)
    except ValueError as error:
        raise NotDemonstrable("invalid action", str(error)) from None
    try:
        reading = policy.dialect.build().read(text, prompts.view_of(before, policy), before[0].calls)
    except actions.Unparsable as error:
        place = f"{before[-1].order.task_id}: step {before[-1].step}"
        raise NotDemonstrable("invalid answer", f"{place}: {error}") from None
    return text, format_all(reading.actions)


def answer(text: str, action: str | None = None, request_id: str = "import", execute_ms: float = 0.0) -> ExecutedAction:
    """Return an answer without tokens; ``action`` is null until the answer is parsed."""
    given = {"text": text, "action": action, "request_id": request_id, "execute_ms": execute_ms}
    return ExecutedAction(**UNANSWERED | given)


class Placed(NamedTuple):
    """An episode and its place in a file."""

    place: str
    episode: RecordedEpisode


class Unusable(msgspec.Struct, frozen=True):
    """A trajectory that is left out: its place in the data, and the reason."""

    place: str
    kind: str
    reason: str


def is_lines(path: Path) -> bool:
    """Return whether a file has JSON lines; raise :class:`UserError` if it is neither that nor Parquet."""
    if not path.exists():
        raise UserError(f"no data set {path}: give a Parquet file of `dart-streams data export`, or JSON lines")
    if path.suffix in (".jsonl", ".ndjson"):
        return True
    if path.is_dir() or path.suffix == ".parquet":
        return False
    raise UserError(f"{path}: a data set is a .parquet file, a folder of them, or a .jsonl file")


def episodes_in(path: Path) -> Iterator[Placed]:
    """Yield the episodes of a file in order; raise :class:`UserError` with the place of an invalid one."""
    for found in episodes_of_lines(path) if is_lines(path) else episodes_of_parquet(path):
        if isinstance(found, Unusable):
            raise UserError(f"{found.place}: {found.reason}")
        yield found


def episode_count(path: Path) -> int | None:
    """Return the number of episodes in a file, None for Parquet, which counts rows."""
    if not is_lines(path):
        return None
    with path.open("rb") as file:
        return sum(1 for line in file if line.strip())


def episodes_of_lines(path: Path) -> Iterator[Placed]:
    """Yield the demonstrations in a file of JSON lines."""
    read = functools.partial(image_bytes, path.parent)
    for number, line in lines_in(path):
        text, place = text_of(line, str(path), number).strip(), f"{path}:{number}"
        try:
            yield Placed(place, episode_of_line(msgspec.json.decode(text, type=DemonstrationLine), line_id(text), read))
        except (InvalidRow, *MALFORMED) as error:
            raise UserError(f"{place}: {error}") from None


def lines_in(path: Path) -> Iterator[tuple[int, bytes]]:
    """Yield the lines of a file that are not blank, with their numbers."""
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            if line.strip():
                yield number, line


def line_id(text: str) -> str:
    """Return the trajectory id of a line."""
    return f"line-{hashlib.sha256(text.encode()).hexdigest()[:32]}"


def image_bytes(folder: Path, name: str) -> bytes:
    """Return the bytes of an image below a folder; raise :class:`InvalidRow` if it can't be read, or is elsewhere."""
    if Path(name).is_absolute() or ".." in Path(name).parts:
        raise InvalidRow(f"image {name} is not below {folder}: copy it there")
    try:
        return (folder / name).read_bytes()
    except OSError as error:
        raise InvalidRow(f"image {folder / name}: {error.strerror}") from None


def episodes_of_parquet(path: Path) -> Iterator[Placed | Unusable]:
    """Yield the episodes of a Parquet set; needs the environment .venv/data."""
    from dart_data import parquet

    for rows in parquet.episodes_in(path):
        place = f"{path}: trajectory {rows[0]['trajectory_id']}"
        try:
            yield Placed(place, episode_of(rows))
        except InvalidRow as error:
            yield Unusable(place, "invalid row", str(error))
