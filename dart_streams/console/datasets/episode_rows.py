"""Episodes as rows of a data set, and back: both layouts have all that the log has of an episode. Pure."""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from dart_streams import pictures
from dart_streams.config import Policy
from dart_streams.console.datasets.episode_columns import (
    ChatMessage,
    ContentPart,
    CurationFacts,
    EpisodeColumns,
    ImageCell,
    InvalidRow,
    Layout,
    RecordedEpisode,
    StepColumns,
    StepMedia,
    TrajectoryMedia,
)
from dart_streams.episodes import prompts
from dart_streams.store.blobs import ref_of
from topics.observations import EpisodeEnd, ExecutedAction, Observation
from topics.rollout_orders import RolloutOrder
from topics.values import BlobRef, MessagePart, Sampling


def rows_of(layout: Layout, run: str, episode: RecordedEpisode, facts: CurationFacts, policy: Policy) -> list[Any]:
    """Return an episode as rows of plain values; ``policy`` bounds the prompts of layout ``step``."""
    common = msgspec.to_builtins(episode_columns(run, episode.observations, facts))
    if layout == "trajectory":
        return [common | as_row(trajectory_media(episode, facts, policy))]
    return [
        common | as_row(step_columns(episode, number, facts, policy)) | as_row(step_media(episode, number, policy))
        for number in range(len(episode.observations) - 1)
    ]


def as_row(columns: msgspec.Struct) -> dict[str, Any]:
    """Return columns as plain values; images stay bytes."""
    row: dict[str, Any] = msgspec.to_builtins(columns, builtin_types=(bytes,))
    return row


def episode_columns(run: str, observations: Sequence[Observation], facts: CurationFacts) -> EpisodeColumns:
    """Return the columns that all rows of an episode share; raise :class:`InvalidRow` if it has not ended."""
    order, last = observations[0].order, observations[-1]
    if last.end is None:
        raise InvalidRow(f"trajectory {last.trajectory_id} has not ended")
    versions = [span.version for one in observations if one.taken for span in one.taken.versions]
    return EpisodeColumns(
        run=run,
        trajectory_id=last.trajectory_id,
        task_id=order.task_id,
        instruction=observations[0].instruction,
        outcome=last.end.kind,
        reward=last.end.reward,
        reason=last.end.reason,
        steps=len(observations) - 1,
        purpose=order.purpose,
        version_min=min(versions, default=None),
        version_max=max(versions, default=None),
        trajectory_advantage=facts.advantage,
        train_steps=facts.train_steps,
        group_id=order.group_id,
        order_id=order.order_id,
        group_size=order.group_size,
        sample=order.sample,
        attempt=order.attempt,
        max_steps=order.max_steps,
        temperature=order.sampling.temperature,
        top_p=order.sampling.top_p,
        max_tokens=order.sampling.max_tokens,
        after_version=order.after_version,
        env_host=last.env_host,
        finished_ms=last.at_ms,
    )


def step_columns(
    episode: RecordedEpisode, number: int, facts: CurationFacts, policy: Policy | None = None
) -> StepColumns:
    """Return the columns of step ``number``; with a ``policy``, ``screen`` is that of the step's own prompt."""
    observation, taken = episode.observations[number], episode.observations[number + 1].taken
    shown = episode.observations[: number + 1]
    kept = shown if policy is None else shown[prompts.first_shown(len(shown), policy.min_images, policy.max_images) :]
    images = sum(one.screenshot is not None for one in kept)
    return StepColumns(
        step=number,
        screen=None if observation.screenshot is None else images - 1,
        text=taken.text if taken else None,
        action=taken.action if taken else None,
        advantage=facts.step_advantages.get(number),
        selected=number in facts.step_advantages,
        tokens=taken.tokens if taken else [],
        logprobs=taken.logprobs if taken else [],
        entropies=taken.entropies if taken else [],
        versions=taken.versions if taken else [],
        request_id=taken.request_id if taken else "",
        prompt_sha=taken.prompt_sha if taken else "",
        queue_ms=taken.queue_ms if taken else 0.0,
        generate_ms=taken.generate_ms if taken else 0.0,
        execute_ms=taken.execute_ms if taken else 0.0,
        at_ms=observation.at_ms,
    )


def step_media(episode: RecordedEpisode, number: int, policy: Policy) -> StepMedia:
    """Return the prompt of step ``number`` with its answer, as the rollout worker was sent it."""
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
    """Return the whole conversation of an episode, every screen and every answer of it."""
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
    """Return the episode that an episode's rows came from; raise :class:`InvalidRow` if they do not make one."""
    if not rows:
        raise InvalidRow("no row")
    try:
        common = msgspec.convert(rows[0], EpisodeColumns)
        if "step_data" in rows[0]:
            [row] = rows
            media = msgspec.convert(row, TrajectoryMedia)
            steps = media.step_data
            screens = [screen_of(media.images, step.screen) for step in steps]
            screens.append(screen_of(media.images, media.last_screen))
        else:
            steps = [msgspec.convert(row, StepColumns) for row in rows]
            shown = [msgspec.convert(row, StepMedia) for row in rows]
            screens = [screen_of(one.images, step.screen) for one, step in zip(shown, steps, strict=True)]
            screens.append(content_of(shown[-1].last_screen))
    except (msgspec.ValidationError, ValueError, IndexError) as error:
        raise InvalidRow(str(error)) from None
    if [step.step for step in steps] != list(range(common.steps)):
        raise InvalidRow(f"trajectory {common.trajectory_id} has {common.steps} steps, here are {len(steps)} of them")
    return build_episode(common, steps, screens)


def screen_of(images: Sequence[ImageCell], index: int | None) -> bytes | None:
    """Return the bytes of the image at ``index``, if there is one."""
    return None if index is None else content_of(images[index])


def content_of(image: ImageCell | None) -> bytes | None:
    """Return the bytes of an image; raise :class:`InvalidRow` if the row names its file only."""
    if image is None:
        return None
    if image.bytes is None:
        raise InvalidRow(f"the image {image.path} is not in the row: write the set with its images in it")
    return image.bytes


def build_episode(
    common: EpisodeColumns, steps: Sequence[StepColumns], screens: Sequence[bytes | None]
) -> RecordedEpisode:
    """Return the episode of its columns, its steps and the screen before each step and after the last."""
    images: dict[str, bytes] = {}
    end = EpisodeEnd(kind=common.outcome, reward=common.reward, reason=common.reason)
    last = len(steps)
    observations = [
        Observation(
            trajectory_id=common.trajectory_id,
            order=order_of(common),
            step=number,
            instruction=common.instruction,
            screenshot=kept_image(screens[number], images),
            taken=taken_of(steps[number - 1]) if number else None,
            end=end if number == last else None,
            env_host=common.env_host,
            at_ms=steps[number].at_ms if number < last else common.finished_ms,
        )
        for number in range(last + 1)
    ]
    return RecordedEpisode(observations=observations, images=images)


def order_of(common: EpisodeColumns) -> RolloutOrder:
    """Return the order that an episode was played for."""
    return RolloutOrder(
        order_id=common.order_id,
        group_id=common.group_id,
        group_size=common.group_size,
        sample=common.sample,
        attempt=common.attempt,
        task_id=common.task_id,
        max_steps=common.max_steps,
        purpose=common.purpose,
        sampling=Sampling(temperature=common.temperature, top_p=common.top_p, max_tokens=common.max_tokens),
        after_version=common.after_version,
    )


def taken_of(step: StepColumns) -> ExecutedAction | None:
    """Return what was answered at a step, None if nothing was."""
    if step.text is None:
        return None
    copied: dict[str, Any] = {name: getattr(step, name) for name in ExecutedAction.__struct_fields__}
    return ExecutedAction(**copied)


def kept_image(data: bytes | None, images: dict[str, bytes]) -> BlobRef | None:
    """Return the reference of an image, and add its bytes to ``images``."""
    if data is None:
        return None
    ref = image_ref(data)
    images[ref.sha256] = data
    return ref


def image_ref(data: bytes) -> BlobRef:
    """Return the claim check of an image's bytes; raise :class:`InvalidRow` if they are none."""
    try:
        return ref_of(data, *pictures.check_picture(data))
    except pictures.UnusablePicture as error:
        raise InvalidRow(f"an image is no screenshot: {error}") from None
