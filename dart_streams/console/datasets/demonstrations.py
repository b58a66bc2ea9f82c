"""Demonstrations from outside: an episode of any run, or a line of JSON, as a demonstration of this deployment. Pure.

What a demonstration keeps is what can be imitated: screens, answers, reward. Tokens, log-probabilities and versions are
another model's, or of other weights, so they are dropped, as are the ids of the run that it comes from.
"""

import hashlib
import itertools
from collections.abc import Callable, Sequence

import msgspec

from dart_streams import actions
from dart_streams.actions.sequence import format_all
from dart_streams.config import Config, Policy
from dart_streams.config.section import Share
from dart_streams.config.tasks import TaskSet
from dart_streams.console.datasets.episode_columns import InvalidRow, RecordedEpisode
from dart_streams.console.datasets.episode_rows import kept_image
from dart_streams.episodes import prompts
from dart_streams.episodes.episode import new_trajectory_id
from topics.observations import EpisodeEnd, ExecutedAction, Observation
from topics.outcomes import is_success, reconcile_outcome
from topics.rollout_orders import RolloutOrder

GROUP = "demonstrations"
HOST = "data-import"


class DemonstrationStep(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A step of a line: the screen's file, relative to that of the line, and the answer to it."""

    image: str
    text: str


class DemonstrationLine(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A line of a JSON lines file: one demonstration. ``last_image`` is the screen after the last step, if any."""

    task_id: str
    instruction: str
    steps: list[DemonstrationStep]
    last_image: str = ""
    reward: Share = 1.0


class NotDemonstrable(Exception):
    """An episode that is no demonstration for this deployment; ``reason`` is the name under which it is counted."""

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(detail)
        self.reason = reason


def episode_of_line(line: DemonstrationLine, identity: str, read: Callable[[str], bytes]) -> RecordedEpisode:
    """Return a line as an episode; ``read`` returns an image's bytes. Raise :class:`InvalidRow` if it has no step."""
    if not line.steps:
        raise InvalidRow("it has no step")
    images: dict[str, bytes] = {}
    order = RolloutOrder(
        order_id=identity,
        group_id=GROUP,
        group_size=1,
        sample=0,
        attempt=0,
        task_id=line.task_id,
        max_steps=len(line.steps),
        purpose="demonstration",
        sampling=Config().sampling(),
        after_version=0,
    )
    files = [*(step.image for step in line.steps), line.last_image]
    end = EpisodeEnd(kind=reconcile_outcome("failure", line.reward), reward=line.reward)
    observations = [
        Observation(
            trajectory_id=identity,
            order=order,
            step=number,
            instruction=line.instruction,
            screenshot=kept_image(read(file) if file else None, images),
            taken=answer(line.steps[number - 1].text) if number else None,
            end=end if number == len(line.steps) else None,
            env_host=HOST,
            at_ms=0,
        )
        for number, file in enumerate(files)
    ]
    return RecordedEpisode(observations=observations, images=images)


def as_demonstration(episode: RecordedEpisode, config: Config, tasks: TaskSet) -> RecordedEpisode:
    """Return an episode as a demonstration of this deployment, with ids that are the same each time it is imported.

    Raises :class:`NotDemonstrable` if it is no success, its task is held out or not in the set, a step has no screen,
    or an answer is not one that this deployment executes.
    """
    observations = episode.observations
    refuse_unusable(observations, tasks)
    first, end = observations[0], observations[-1].end
    assert end is not None
    identity = demonstration_id(config.bus.prefix, first)
    order = RolloutOrder(
        order_id=f"demonstration-{identity}",
        group_id=GROUP,
        group_size=1,
        sample=0,
        attempt=0,
        task_id=first.order.task_id,
        max_steps=first.order.max_steps,
        purpose="demonstration",
        sampling=config.sampling(),
        after_version=0,
    )
    shown: list[Observation] = []
    for one in observations:
        # An answer may mean the place where the actions before it have left the pointer.
        action = action_of(one.taken.text, shown, config.policy) if one.taken else None
        made = msgspec.structs.replace(
            one,
            trajectory_id=identity,
            order=order,
            env_host=HOST,
            at_ms=first.at_ms,  # it takes no time: no slot of this deployment was busy with it
            end=one.end and EpisodeEnd(kind="success", reward=one.end.reward),
            taken=one.taken and answer(one.taken.text, action, f"{identity}/{one.step - 1}/0", one.taken.execute_ms),
        )
        shown.append(made)
    return RecordedEpisode(observations=shown, images=episode.images)


def refuse_unusable(observations: list[Observation], tasks: TaskSet) -> None:
    """Raise :class:`NotDemonstrable` for the first thing that keeps an episode from being imitated."""
    first, end = observations[0], observations[-1].end
    task_id = first.order.task_id
    if end is None or end.reward is None or not is_success(end.reward):
        raise NotDemonstrable("no success", f"{task_id}: reward {end and end.reward}; only successes are imitated")
    if task_id not in tasks:
        raise NotDemonstrable("unknown task", f"{task_id} is not in the task set: add its page and seed to tasks.file")
    if tasks.get(task_id).split == "heldout":
        raise NotDemonstrable(
            "held-out task", f"{task_id} is held out: a demonstration would make its success no measure"
        )
    for before, after in itertools.pairwise(observations):
        if before.screenshot is None or after.taken is None:
            raise NotDemonstrable("no screen or answer", f"{task_id}: step {before.step} has no screen, or no answer")


def action_of(text: str, before: Sequence[Observation], policy: Policy) -> str:
    """Return what an answer to ``before`` executes; raise :class:`NotDemonstrable` if its dialect is another."""
    try:
        return format_all(policy.dialect.build().read(text, prompts.view_of(before, policy)).actions)
    except actions.Unparsable as error:
        place = f"{before[-1].order.task_id}: step {before[-1].step}"
        raise NotDemonstrable("invalid answer", f"{place}: {error}") from None


def answer(text: str, action: str | None = None, request_id: str = "import", execute_ms: float = 0.0) -> ExecutedAction:
    """Return an answer without tokens, as a demonstration has it; ``action`` is null until the answer is read."""
    return ExecutedAction(
        request_id=request_id,
        text=text,
        action=action,
        tokens=[],
        logprobs=[],
        entropies=[],
        versions=[],
        prompt_sha="",
        queue_ms=0.0,
        generate_ms=0.0,
        execute_ms=execute_ms,
    )


def demonstration_id(prefix: str, first: Observation) -> str:
    """Return the id that an episode has as a demonstration under ``prefix``: a UUIDv7, drawn from its own id.

    Another one than its own, or an import into the run that it comes from would replace it.
    """
    drawn = hashlib.sha256(f"{prefix}\n{first.trajectory_id}\n{first.order.task_id}".encode()).digest()
    return new_trajectory_id(first.at_ms, drawn[:10])
