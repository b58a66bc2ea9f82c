"""Synthetic backlog of curated groups with stored steps and screenshots, deterministic by seed. Torch-free."""

import hashlib
import io
import random
from collections.abc import Sequence
from typing import Any, NamedTuple

import msgspec
from PIL import Image, ImageDraw

from dart_streams.config import Config
from dart_streams.episodes import prompts
from topics.curated import CuratedGroup, Member
from topics.observations import EpisodeEnd, ExecutedAction, Observation
from topics.rollout_orders import RolloutOrder
from topics.values import BlobRef, VersionSpan


class BacklogShape(NamedTuple):
    """Shape of groups: trajectories, maximum actions each, screenshot size (pixels).

    ``lengths`` has the exact actions of each member; empty: they are drawn.
    """

    members: int = 4
    steps: int = 3
    width: int = 160
    height: int = 210
    lengths: tuple[int, ...] = ()


class SyntheticBacklog(NamedTuple):
    """A group, observations by trajectory, and screenshots by sha256."""

    group: CuratedGroup
    observations: dict[str, list[Observation]]
    blobs: dict[str, bytes]


SMALL = BacklogShape()


class Maker:
    """Makes groups for one deployment; ``renderer`` is a :class:`dart_streams.policy.rendering.Renderer`."""

    def __init__(self, config: Config, renderer: Any, shape: BacklogShape = SMALL) -> None:
        self.config = config
        self.renderer = renderer
        self.shape = shape

    def group(self, index: int, version: int = 0) -> SyntheticBacklog:
        """Return group ``index`` played by weight ``version``; all members start on the same screen."""
        rng = random.Random(index)
        blobs: dict[str, bytes] = {}
        first = self._screenshot(rng, blobs)
        observations, members = {}, []
        for number in range(self.shape.members):
            steps = self.shape.lengths[number] if self.shape.lengths else rng.randint(1, self.shape.steps)
            screens = [first, *(self._screenshot(rng, blobs) for _ in range(steps))]
            order = self._order(index, number, version)
            trajectory = f"trajectory-{index}-{number}"
            observations[trajectory] = self._play(trajectory, order, screens, rng)
            members.append(
                Member(
                    trajectory_id=trajectory,
                    reward=float(number % 2),
                    advantage=1.0 if number % 2 else -1.0,
                    selected=list(range(steps)),
                    source="online",
                    version_min=version,
                    version_max=version,
                )
            )
        group = CuratedGroup(group_id=f"group-{index}", task_id=order.task_id, members=members, mean=0.5, std=0.5)
        return SyntheticBacklog(group, observations, blobs)

    def _order(self, index: int, number: int, version: int) -> RolloutOrder:
        return RolloutOrder(
            order_id=f"order-{index}-{number}",
            group_id=f"group-{index}",
            group_size=self.shape.members,
            sample=number,
            attempt=0,
            task_id=f"miniwob/made-up#{index}",
            max_steps=self.shape.steps,
            purpose="train",
            sampling=self.config.sampling(),
            after_version=version,
        )

    def _screenshot(self, rng: random.Random, blobs: dict[str, bytes]) -> BlobRef:
        """Draw a page with boxes into ``blobs``; return its reference."""
        width, height = self.shape.width, self.shape.height
        image = Image.new("RGB", (width, height), "white")
        draw = ImageDraw.Draw(image)
        for _ in range(6):
            x, y = rng.randrange(width), rng.randrange(height)
            draw.rectangle((x, y, x + width // 5, y + height // 10), fill=rng.choice(["grey", "blue", "red"]))
        stream = io.BytesIO()
        image.save(stream, "PNG")
        data = stream.getvalue()
        sha256 = hashlib.sha256(data).hexdigest()
        blobs[sha256] = data
        return BlobRef(sha256=sha256, size=len(data), width=width, height=height)

    def _play(
        self, trajectory: str, order: RolloutOrder, screens: Sequence[BlobRef], rng: random.Random
    ) -> list[Observation]:
        """Return the observations of a trajectory over ``screens``; every second sample succeeds."""
        success = order.sample % 2
        observations: list[Observation] = []
        for step, screen in enumerate(screens):
            end = EpisodeEnd(kind="success" if success else "failure", reward=float(success))
            observations.append(
                Observation(
                    trajectory_id=trajectory,
                    order=order,
                    step=step,
                    instruction=f'Click on the "{order.task_id}" button.',
                    screenshot=screen,
                    taken=self._take(observations, order, rng) if step else None,
                    end=end if step == len(screens) - 1 else None,
                    env_host="made-up",
                    at_ms=step,
                )
            )
        return observations

    def _take(self, observations: Sequence[Observation], order: RolloutOrder, rng: random.Random) -> ExecutedAction:
        """Return a random click, generated from the prompt of ``observations``."""
        limits = self.config.policy
        prompt = self.renderer.prompt(prompts.prompt_turns(observations, limits))
        text = f"click(start_box='({rng.randrange(self.shape.width)},{rng.randrange(self.shape.height)})')"
        tokens = self.renderer.answer_tokens(text)
        return ExecutedAction(
            request_id=f"{order.order_id}-{len(observations)}",
            text=text,
            action=text,
            tokens=tokens,
            logprobs=[-2.0 * rng.random() for _ in tokens],
            entropies=[1.0 for _ in tokens],
            versions=[VersionSpan(version=order.after_version, start=0, end=len(tokens))],
            prompt_sha=prompt.sha,
            queue_ms=1.0,
            generate_ms=10.0,
            execute_ms=5.0,
        )


async def write(made: Sequence[SyntheticBacklog], store: Any) -> None:
    """Write steps and screenshots of groups to an :class:`~dart_streams.store.AsyncStore`."""
    for group in made:
        for observations in group.observations.values():
            for observation in observations:
                shot = observation.screenshot
                if shot is not None:
                    await store.put_blob(group.blobs[shot.sha256], shot.media_type, shot.width, shot.height)
                await store.write_step(observation)


def alter_group(made: SyntheticBacklog, trajectory: str, step: int, **changes: Any) -> SyntheticBacklog:
    """Return the group with ``changes`` to the action that led to ``step`` of a trajectory."""
    observations = list(made.observations[trajectory])
    taken = observations[step].taken
    if taken is None:
        raise ValueError(f"nothing was taken before step {step}")
    observations[step] = msgspec.structs.replace(observations[step], taken=msgspec.structs.replace(taken, **changes))
    return made._replace(observations={**made.observations, trajectory: observations})
