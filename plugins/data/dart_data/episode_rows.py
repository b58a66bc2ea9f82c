"""Converts episodes to rows of a data set, and back without loss. Pure."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from console.bundles.episode_index import CurationFacts
from dart_data.episode_columns import (
    ChatMessage,
    ContentPart,
    EpisodeColumns,
    ImageCell,
    InvalidRow,
    Layout,
    RecordedEpisode,
    StepColumns,
    StepMedia,
    TrajectoryMedia,
)
from dart_streams import pictures
from dart_streams.config import Policy
from dart_streams.episodes import prompts
from dart_streams.store.blobs import ref_of
from topics.observations import EpisodeEnd, ExecutedAction, Observation
from topics.rollout_orders import RolloutOrder
from topics.values import BlobRef, MessagePart, Sampling

ORDER = frozenset(EpisodeColumns.__struct_fields__) & frozenset(RolloutOrder.__struct_fields__)
SAMPLING = Sampling.__struct_fields__
TAKEN = ExecutedAction.__struct_fields__
"""Fields that columns copy under their own names."""
UNANSWERED: dict[str, Any] = (
    dict.fromkeys(("text", "action", "recorded_from", "take_over"))
    | dict.fromkeys(("request_id", "prompt_sha"), "")
    | dict.fromkeys(("queue_ms", "generate_ms", "execute_ms"), 0.0)
    | {"tokens": [], "logprobs": [], "entropies": [], "versions": []}
)
"""Columns of a step without an answer."""


def rows_of(layout: Layout, run: str, episode: RecordedEpisode, facts: CurationFacts, policy: Policy) -> list[Any]:
    """Return an episode as rows of built-in values; ``policy`` bounds the prompts of layout ``step``."""
    common = msgspec.to_builtins(episode_columns(run, episode.observations, facts))
    if layout == "trajectory":
        return [common | as_row(trajectory_media(episode, facts, policy))]
    return [
        common | as_row(step_columns(episode, number, facts, policy)) | as_row(step_media(episode, number, policy))
        for number in range(len(episode.observations) - 1)
    ]


def as_row(columns: msgspec.Struct) -> dict[str, Any]:
    """Return columns as built-in values; images stay bytes."""
    row: dict[str, Any] = msgspec.to_builtins(columns, builtin_types=(bytes,))
    return row


def episode_columns(run: str, observations: Sequence[Observation], facts: CurationFacts) -> EpisodeColumns:
    """Return the columns that all rows of an episode share; raise :class:`InvalidRow` if it has not ended."""
    order, last = observations[0].order, observations[-1]
    if last.end is None:
        raise InvalidRow(f"trajectory {last.trajectory_id} has not ended")
    versions = [span.version for step in observations if step.taken for span in step.taken.versions]
    return EpisodeColumns(
        run=run,
        trajectory_id=last.trajectory_id,
        instruction=observations[0].instruction,
        outcome=last.end.kind,
        reward=last.end.reward,
        reason=last.end.reason,
        steps=len(observations) - 1,
        version_min=min(versions, default=None),
        version_max=max(versions, default=None),
        trajectory_advantage=facts.advantage,
        train_steps=facts.train_steps,
        **copied_fields(order, ORDER),
        **copied_fields(order.sampling, SAMPLING),
        env_host=last.env_host,
        finished_ms=last.at_ms,
        calls=observations[0].calls,
    )


def step_columns(
    episode: RecordedEpisode, number: int, facts: CurationFacts, policy: Policy | None = None
) -> StepColumns:
    """Return the columns of step ``number``; with a ``policy``, ``screen`` is an index into the step's own prompt."""
    observation, taken = episode.observations[number], episode.observations[number + 1].taken
    shown = episode.observations[: number + 1]
    prompted = (
        shown if policy is None else shown[prompts.first_shown(len(shown), policy.min_images, policy.max_images) :]
    )
    images = sum(step.screenshot is not None for step in prompted)
    return StepColumns(
        step=number,
        screen=None if observation.screenshot is None else images - 1,
        advantage=facts.step_advantages.get(number),
        selected=number in facts.step_advantages,
        returned=episode.observations[number + 1].returned,
        at_ms=observation.at_ms,
        **(copied_fields(taken, TAKEN) if taken else UNANSWERED),
    )


def copied_fields(source: msgspec.Struct, names: Iterable[str]) -> dict[str, Any]:
    """Return fields of a struct by name."""
    return {name: getattr(source, name) for name in names}


def step_media(episode: RecordedEpisode, number: int, policy: Policy) -> StepMedia:
    """Return the prompt of step ``number``, as it was sent to the rollout worker, and its answer."""
    shown, following = episode.observations[: number + 1], episode.observations[number + 1]
    turns = prompts.prompt_turns(shown, policy)
    if following.taken is not None:
        turns.append(MessagePart(role="assistant", text=following.taken.text))
    last = following.screenshot if number + 2 == len(episode.observations) else None
    return StepMedia(
        images=images_of(turns, episode.images),
        messages=messages_of(turns),
        last_screen=ImageCell(episode.images[last.sha256]) if last else None,
    )


def trajectory_media(episode: RecordedEpisode, facts: CurationFacts, policy: Policy) -> TrajectoryMedia:
    """Return the whole conversation of an episode, with every screen and every answer."""
    length = len(episode.observations)
    turns = prompts.prompt_turns(
        episode.observations, msgspec.structs.replace(policy.sliding, max_images=length, max_texts=length)
    )
    images = images_of(turns, episode.images)
    return TrajectoryMedia(
        images=images,
        messages=messages_of(turns),
        step_data=[step_columns(episode, number, facts) for number in range(length - 1)],
        last_screen=None if episode.observations[-1].screenshot is None else len(images) - 1,
    )


def images_of(turns: Sequence[MessagePart], images: Mapping[str, bytes]) -> list[ImageCell]:
    """Return the images of a prompt in their order."""
    return [ImageCell(images[turn.image.sha256]) for turn in turns if turn.image is not None]


def messages_of(turns: Sequence[MessagePart]) -> list[ChatMessage]:
    """Return a prompt's parts as messages, neighbors of one role together."""
    messages: list[ChatMessage] = []
    for turn in turns:
        part = ContentPart("image") if turn.image is not None else ContentPart("text", turn.text)
        if messages and messages[-1].role == turn.role:
            messages[-1].content.append(part)
        else:
            messages.append(ChatMessage(turn.role, [part]))
    return messages


def episode_of(rows: Sequence[Mapping[str, Any]]) -> RecordedEpisode:
    """Return the episode of an episode's rows; raise :class:`InvalidRow` if they do not make one."""
    if not rows:
        raise InvalidRow("no row")
    try:
        common = msgspec.convert(rows[0], EpisodeColumns)
        if "step_data" in rows[0]:
            [row] = rows
            media = msgspec.convert(row, TrajectoryMedia)
            steps = media.step_data
            screens = [screen_of(media.images, index) for index in (*(s.screen for s in steps), media.last_screen)]
        else:
            steps = [msgspec.convert(row, StepColumns) for row in rows]
            prompts_shown = [msgspec.convert(row, StepMedia) for row in rows]
            screens = [screen_of(shown.images, s.screen) for shown, s in zip(prompts_shown, steps, strict=True)]
            screens.append(screen_of([prompts_shown[-1].last_screen], 0))
    except (msgspec.ValidationError, ValueError, IndexError) as error:
        raise InvalidRow(str(error)) from None
    if [step.step for step in steps] != list(range(common.steps)):
        raise InvalidRow(f"trajectory {common.trajectory_id} has {common.steps} steps, here are {len(steps)} of them")
    sampling = Sampling(**copied_fields(common, SAMPLING))
    order = RolloutOrder(sampling=sampling, **copied_fields(common, ORDER))
    end = EpisodeEnd(kind=common.outcome, reward=common.reward, reason=common.reason)
    images: dict[str, bytes] = {}
    answers = [ExecutedAction(**copied_fields(s, TAKEN)) if s.text is not None else None for s in steps]
    observations = [
        Observation(
            trajectory_id=common.trajectory_id,
            order=order,
            step=number,
            instruction=common.instruction,
            screenshot=add_image(screen, images),
            taken=taken,
            end=end if number == common.steps else None,
            env_host=common.env_host,
            at_ms=steps[number].at_ms if number < common.steps else common.finished_ms,
            calls=[] if number else common.calls,
            returned=steps[number - 1].returned if number else "",
        )
        for number, (screen, taken) in enumerate(zip(screens, [None, *answers], strict=True))
    ]
    return RecordedEpisode(observations=observations, images=images)


def screen_of(images: Sequence[ImageCell | None], index: int | None) -> bytes | None:
    """Return the bytes of the image at ``index``, if any; raise :class:`InvalidRow` if the row only names its file."""
    image = None if index is None else images[index]
    if image is not None and image.bytes is None:
        raise InvalidRow(f"the image {image.path} is not in the row: write the set with its images in it")
    return image.bytes if image is not None else None


def add_image(data: bytes | None, images: dict[str, bytes]) -> BlobRef | None:
    """Add an image's bytes to ``images`` and return its reference; raise :class:`InvalidRow` if they are no image."""
    if data is None:
        return None
    try:
        ref = ref_of(data, *pictures.check_picture(data))
    except pictures.UnusablePicture as error:
        raise InvalidRow(f"an image is no screenshot: {error}") from None
    images[ref.sha256] = data
    return ref
