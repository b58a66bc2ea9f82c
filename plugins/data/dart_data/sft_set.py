"""Reads the data of supervised fine-tuning, and writes its episodes for the trainer; reports every one left out.

The data are JSON lines of demonstrations or conversations, a Parquet set, or the successes of a bundle.
"""

import functools
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from console.bundles.episode_index import EpisodeIndex, IndexedEpisodes
from console.runs.bundle import Bundle
from dart_data import demonstrations
from dart_data.chat_lines import ChatLine, read_chat
from dart_data.demonstrations import (
    DemonstrationLine,
    DemonstrationStep,
    NotDemonstrable,
    Placed,
    Unusable,
    as_demonstration,
    episode_of_line,
    line_id,
)
from dart_data.episode_columns import InvalidRow, RecordedEpisode
from dart_data.episode_export import EpisodeExport, EpisodeFilter
from dart_data.sft.episodes import EpisodeWriter
from dart_streams import actions
from dart_streams.actions.dialects import BY_NAME
from dart_streams.config import Config, Policy
from dart_streams.config.section import Share
from dart_streams.config.tasks import TaskSet
from dart_streams.config.text import MALFORMED, text_of
from dart_streams.episodes import prompts
from dart_streams.errors import ConfigError, UserError
from topics.observations import Observation

UNNAMED = "unnamed"
"""Task id of lines without one."""
BUNDLE = ".dart"


class SftLine(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A demonstration as a line of JSON, whose task may have no name."""

    instruction: str
    steps: list[DemonstrationStep]
    task_id: str = ""
    last_image: str = ""
    reward: Share = 1.0


class SftData(msgspec.Struct, frozen=True, kw_only=True):
    """Trajectories and answers of the data, and what was left out."""

    trajectories: int
    answers: int
    unusable: list[Unusable]


class AnswerLimits(NamedTuple):
    """Limits of the model: ``count_tokens`` of an answer, its end included, and ``check_image`` (width, height)."""

    count_tokens: Callable[[str], int]
    check_image: Callable[[int, int], Any]


def prepare(
    config: Config,
    tasks: TaskSet,
    path: Path,
    folder: Path,
    limits: AnswerLimits,
    report: Callable[[Unusable], None] = lambda _: None,
    *,
    strict: bool = False,
) -> SftData:
    """Write the usable episodes of a data set to ``folder``, and ``report`` each of the others.

    Raises UserError if there is none, or more are left out than ``trainer.sft.unusable`` allows (with ``strict``: any).
    """
    unusable: list[Unusable] = []
    with EpisodeWriter(folder) as writer:
        for found in read_set(path, config.policy):
            left = found if isinstance(found, Unusable) else add_episode(found, writer, config, tasks, limits)
            if left is not None:
                unusable.append(left)
                report(left)
    data = SftData(
        trajectories=len(writer.entries),
        answers=sum(entry.steps for entry in writer.entries.values()),
        unusable=unusable,
    )
    if refusal := refusal_of(data, path, config, strict):
        raise UserError(refusal)
    return data


def add_episode(
    found: Placed, writer: EpisodeWriter, config: Config, tasks: TaskSet, limits: AnswerLimits
) -> Unusable | None:
    """Write an episode; return the reason if it is unusable."""
    try:
        shown = as_demonstration(found.episode, config, tasks, any_task=True)
        lengths = action_lengths(shown.observations, config.policy, limits)
        if shown.observations[0].trajectory_id in writer.entries:
            raise NotDemonstrable("repeated", "it repeats an earlier trajectory")
    except NotDemonstrable as error:
        hint = dialect_hint(found.episode, error, config)
        return Unusable(found.place, error.reason, f"{error}{hint}")
    writer.add(shown.observations, shown.images, lengths)
    return None


def refusal_of(data: SftData, path: Path, config: Config, strict: bool) -> str:
    """Return the reason not to train on a data set; empty if there is none."""
    if not data.trajectories and not data.unusable:
        return f"{path} is empty: give a trajectory on each line, or another file"
    kinds = Counter(left.kind for left in data.unusable)
    total = data.trajectories + len(data.unusable)
    listed = ", ".join(f"{count} {kind}" for kind, count in kinds.most_common())
    left = f"{path}: {len(data.unusable)} of {total} trajectories are unusable ({listed}), the first is "
    first = data.unusable[0] if data.unusable else None
    if first and not data.trajectories:
        return f"{left}{first.place}: {first.reason}"
    if first and strict:
        return f"{left}{first.place}: {first.reason}. Correct them, or leave --strict out"
    if first and len(data.unusable) > config.trainer.sft.unusable * total:
        return (
            f"{left}{first.place}: {first.reason}. Correct them, or raise trainer.sft.unusable "
            f"({config.trainer.sft.unusable:g})"
        )
    return ""


def action_lengths(observations: Sequence[Observation], policy: Policy, limits: AnswerLimits) -> list[int]:
    """Return the tokens of each answer's action, its end included, without a thought before it.

    Raises :class:`NotDemonstrable` for an answer or a screen that exceeds the limits.
    """
    lengths = []
    for number, observation in enumerate(observations[1:]):
        shown, screen, taken = observations[: number + 1], observations[number].screenshot, observation.taken
        assert taken is not None
        place = f"{observation.order.task_id}: step {number}"
        if (count := limits.count_tokens(taken.text)) > policy.max_tokens:
            raise NotDemonstrable(
                "too long", f"{place} answers with {count} tokens, policy.max_tokens is {policy.max_tokens}"
            )
        try:
            limits.check_image(screen.width, screen.height) if screen else None
        except ValueError as error:
            raise NotDemonstrable("unusable image", f"{place} has a screen that is no input: {error}") from None
        lengths.append(min(count, limits.count_tokens(action_text(taken.text, shown, policy))))
    return lengths


def action_text(text: str, before: Sequence[Observation], policy: Policy) -> str:
    """Return the last lines of an answer that have its actions."""
    dialect, view, calls = policy.dialect.build(), prompts.view_of(before, policy), before[0].calls
    wanted = dialect.read(text, view, calls).actions
    lines = text.splitlines(keepends=True)
    for start in range(len(lines) - 1, 0, -1):
        rest = "".join(lines[start:])
        try:
            if dialect.read(rest, view, calls).actions == wanted:
                return rest
        except actions.Unparsable:
            continue
    return text


def dialect_hint(episode: RecordedEpisode, error: NotDemonstrable, config: Config) -> str:
    """Return a clause that names another dialect which reads the episode's first answer; empty if there is none."""
    policy, first, taken = config.policy, episode.observations[0], episode.observations[1].taken
    if error.reason != "invalid answer" or taken is None or not taken.text:
        return ""
    for name, kind in BY_NAME.items():
        try:
            if name != policy.dialect.name:
                kind().read(taken.text, prompts.view_of([first], policy), first.calls)
                return f" (it reads as {name}: is policy.dialect.name the data's?)"
        except actions.Unparsable:
            continue
    return ""


def read_set(path: Path, policy: Policy) -> Iterator[Placed | Unusable]:
    """Yield the episodes of a data set in order, and the trajectories that make none.

    Raises :class:`UserError` for a file of another kind.
    """
    if path.suffix == BUNDLE and path.is_file():
        yield from read_bundle(path, policy)
    elif demonstrations.is_lines(path):
        for number, line in demonstrations.lines_in(path):
            yield read_line(path, number, line, policy)
    else:
        try:
            yield from demonstrations.episodes_of_parquet(path)
        except ModuleNotFoundError as error:
            raise UserError(
                f"{path} is Parquet, and this environment lacks {error.name}: write it as JSON lines by "
                f"`.venv/data/bin/dart-streams data lines {path} FILE.jsonl`, and give FILE.jsonl"
            ) from None


def read_line(path: Path, number: int, line: bytes, policy: Policy) -> Placed | Unusable:
    """Return the episode of a line of JSON."""
    place = f"{path}:{number}"
    try:
        text = text_of(line, str(path), number).strip()
        found = decode_line(text, policy)
        read = functools.partial(demonstrations.image_bytes, path.parent)
        return Placed(place, episode_of_line(found, line_id(text), read))
    except ConfigError as error:
        return Unusable(place, "no text", str(error))
    except MALFORMED as error:
        return Unusable(place, "invalid line", str(error))
    except InvalidRow as error:
        return Unusable(place, "missing image" if str(error).startswith("image ") else "invalid line", str(error))


def decode_line(text: str, policy: Policy) -> DemonstrationLine:
    """Return a line of either form as a demonstration."""
    raw = msgspec.json.decode(text)
    if isinstance(raw, dict) and "messages" in raw:
        chat = msgspec.convert(raw, ChatLine)
        episode = read_chat(chat, policy.dialect.build())
        return DemonstrationLine(
            chat.task_id or UNNAMED, episode.instruction, episode.steps, last_image=episode.last_image
        )
    line = msgspec.convert(raw, SftLine)
    return DemonstrationLine(line.task_id or UNNAMED, line.instruction, line.steps, line.last_image, line.reward)


def read_bundle(path: Path, policy: Policy) -> Iterator[Placed]:
    """Yield the successes of a bundle, in order of their end; evaluations and failures are not meant."""
    bundle = Bundle(path)
    wanted = EpisodeFilter(outcomes=["success"], purposes=["train", "demonstration"])
    with EpisodeIndex() as index:
        export = EpisodeExport(bundle, "", index, IndexedEpisodes(index, bundle))
        for episode in export.episodes_of(wanted):
            yield Placed(f"{path}: trajectory {episode.observations[0].trajectory_id}", episode)


def write_lines(placed: Iterable[Placed], output: Path) -> tuple[int, list[str]]:
    """Write episodes as JSON lines; return their number, and the place and reason of those that can't be lines."""
    written, left_out = 0, []
    with output.open("wb") as file:
        for place, episode in placed:
            try:
                line = line_of(episode, output.parent, f"{output.stem}.images")
            except InvalidRow as error:
                left_out.append(f"{place}: {error}")
                continue
            file.write(msgspec.json.encode(line) + b"\n")
            written += 1
    return written, left_out


def line_of(episode: RecordedEpisode, folder: Path, images: str) -> DemonstrationLine:
    """Return an episode as a line of JSON, with its screens written to ``folder / images``.

    Raises :class:`InvalidRow` if a step has no screen or answer, or the episode has calls, which lines do not hold.
    """
    first, *others = episode.observations
    if first.calls or any(after.returned for after in others):
        raise InvalidRow("it has calls, which JSON lines do not hold")
    (folder / images).mkdir(parents=True, exist_ok=True)
    names = [f"{images}/{one.screenshot.sha256}" if one.screenshot else "" for one in episode.observations]
    for sha256, data in episode.images.items():
        (folder / images / sha256).write_bytes(data)
    steps = []
    for name, after in zip(names, others, strict=False):
        if not name or after.taken is None:
            raise InvalidRow(f"step {after.step - 1} has no screen, or no answer")
        steps.append(DemonstrationStep(image=name, text=after.taken.text))
    end = episode.observations[-1].end
    reward = end.reward if end and end.reward is not None else 0.0
    return DemonstrationLine(first.order.task_id, first.instruction, steps, names[-1], reward)
