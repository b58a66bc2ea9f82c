"""A prepared backlog: curated groups with stored steps and screenshots, as a run leaves them, but made up.

For the trainer's tests and benchmarks. The same seed makes the same groups. Torch-free: the renderer is passed in.
"""

import hashlib
import io
import random
from collections.abc import Sequence
from typing import Any, NamedTuple

from PIL import Image, ImageDraw

from dart_streams import prompts
from dart_streams.config import Config
from topics.curated import CuratedGroup, Member
from topics.observations import End, Observation, Taken
from topics.rollout_orders import RolloutOrder
from topics.values import BlobRef, Segment


class Shape(NamedTuple):
    """What groups look like: trajectories each, actions each (at most), screenshot size in pixels."""

    members: int = 4
    steps: int = 3
    width: int = 160
    height: int = 210


class Made(NamedTuple):
    """A group, its trajectories' observations, and the screenshots that they show."""

    group: CuratedGroup
    observations: list[Observation]
    blobs: dict[str, bytes]


def make(index: int, renderer: Any, config: Config, version: int = 0, shape: Shape = Shape()) -> Made:
    """Return made-up group ``index``, acted by weight ``version``. The first screen is the same in all its members."""
    chance = random.Random(index)
    blobs: dict[str, bytes] = {}
    first = screenshot(chance, shape, blobs)
    observations, members = [], []
    for number in range(shape.members):
        steps = chance.randint(1, shape.steps)
        screens = [first, *(screenshot(chance, shape, blobs) for _ in range(steps))]
        trajectory = f"trajectory-{index}-{number}"
        reward = float(number % 2)
        observations += play(trajectory, index, number, screens, reward, renderer, config, version, chance, shape)
        members.append(
            Member(
                trajectory_id=trajectory,
                reward=reward,
                advantage=1.0 if reward else -1.0,
                selected=list(range(steps)),
                source="online",
                version_min=version,
                version_max=version,
            )
        )
    group = CuratedGroup(
        group_id=f"group-{index}", task_id=f"miniwob/made-up#{index}", members=members, mean=0.5, std=0.5
    )
    return Made(group, observations, blobs)


def screenshot(chance: random.Random, shape: Shape, blobs: dict[str, bytes]) -> BlobRef:
    """Draw a page with a few boxes into ``blobs`` and return its reference."""
    image = Image.new("RGB", (shape.width, shape.height), "white")
    draw = ImageDraw.Draw(image)
    for _ in range(6):
        x, y = chance.randrange(shape.width), chance.randrange(shape.height)
        draw.rectangle(
            (x, y, x + shape.width // 5, y + shape.height // 10), fill=chance.choice(["grey", "blue", "red"])
        )
    stream = io.BytesIO()
    image.save(stream, "PNG")
    data = stream.getvalue()
    sha256 = hashlib.sha256(data).hexdigest()
    blobs[sha256] = data
    return BlobRef(sha256=sha256, size=len(data), width=shape.width, height=shape.height)


def play(
    trajectory: str,
    index: int,
    number: int,
    screens: Sequence[BlobRef],
    reward: float,
    renderer: Any,
    config: Config,
    version: int,
    chance: random.Random,
    shape: Shape,
) -> list[Observation]:
    """Return the observations of one made-up trajectory over ``screens``."""
    order = RolloutOrder(
        order_id=f"order-{index}-{number}",
        group_id=f"group-{index}",
        group_size=shape.members,
        sample=number,
        attempt=0,
        task_id=f"miniwob/made-up#{index}",
        max_steps=shape.steps,
        purpose="train",
        sampling=config.sampling(),
        after_version=version,
    )
    observations: list[Observation] = []
    for step, screen in enumerate(screens):
        taken = None
        if step:
            prompt = renderer.prompt(prompts.turns(observations, config.policy.max_images, config.policy.max_texts))
            text = f"click(start_box='({chance.randrange(shape.width)},{chance.randrange(shape.height)})')"
            tokens = renderer.answer_tokens(text)
            taken = Taken(
                request_id=f"{trajectory}-{step}",
                text=text,
                action=text,
                tokens=tokens,
                logprobs=[-2.0 * chance.random() for _ in tokens],
                entropies=[1.0 for _ in tokens],
                versions=[Segment(version=version, start=0, end=len(tokens))],
                prompt_sha=prompt.sha,
                queue_ms=1.0,
                generate_ms=10.0,
                execute_ms=5.0,
            )
        observations.append(
            Observation(
                trajectory_id=trajectory,
                order=order,
                step=step,
                instruction=f'Click on the "number {index}" button.',
                screenshot=screen,
                taken=taken,
                end=End(kind="success" if reward else "failure", reward=reward) if step == len(screens) - 1 else None,
                env_host="made-up",
                at_ms=step,
            )
        )
    return observations


async def write(made: Sequence[Made], store: Any) -> None:
    """Write the steps and screenshots of groups through an :class:`~dart_streams.store.AsyncStore`."""
    for group in made:
        sizes = {o.screenshot.sha256: o.screenshot for o in group.observations if o.screenshot}
        for sha256, data in group.blobs.items():
            await store.put_blob(data, "image/png", sizes[sha256].width, sizes[sha256].height)
        for observation in group.observations:
            await store.write_step(observation)
