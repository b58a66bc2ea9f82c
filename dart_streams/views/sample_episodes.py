"""Sample episodes for the report: the same held-out task before and after training, screen by screen."""

import base64
import itertools
from collections.abc import Iterator

import msgspec

from dart_streams import actions, screens
from dart_streams.config import Policy
from dart_streams.history.evaluation import EvaluationEpisode, EvaluationResult
from dart_streams.store import MissingBlob, SyncStore
from topics.observations import Observation
from topics.values import BlobRef

SCREENS = 8


class Point(msgspec.Struct, frozen=True):
    """A place on a screen, in its pixels."""

    x: float
    y: float


class Shot(msgspec.Struct, frozen=True, kw_only=True):
    """One screen as a data URL, and the action taken on it: its text, and where it points."""

    image: str
    width: int
    height: int
    text: str = ""
    points: tuple[Point, ...] = ()


class SampleEpisode(msgspec.Struct, frozen=True, kw_only=True):
    """One episode. ``skipped`` counts screens left out to keep the strip short."""

    task_id: str
    instruction: str
    outcome: str
    reason: str
    version: str
    shots: tuple[Shot, ...]
    skipped: int


def choose(
    before: EvaluationResult, after: EvaluationResult, count: int
) -> list[tuple[EvaluationEpisode, EvaluationEpisode]]:
    """Choose pairs of the same task, a page each: those that were learnt first, then long ones."""
    earlier = {episode.index: episode for episode in before.episodes}
    pairs = [(earlier[e.index], e) for e in after.episodes if e.index in earlier]

    def rank(pair: tuple[EvaluationEpisode, EvaluationEpisode]) -> tuple[float, int, int]:
        first, second = pair[0].trajectory, pair[1].trajectory
        return (first.reward or 0.0) - (second.reward or 0.0), -second.steps, pair[0].index

    pairs.sort(key=rank)
    chosen: dict[str, tuple[EvaluationEpisode, EvaluationEpisode]] = {}
    for first, second in pairs:
        chosen.setdefault(first.page, (first, second))
    return list(chosen.values())[:count]


def load(store: SyncStore, episode: EvaluationEpisode, policy: Policy) -> SampleEpisode:
    """Read an episode's screens; one that is missing in the store is left out."""
    observations = store.steps(episode.trajectory.trajectory_id)
    shots = list(shots_of(store, observations, policy))
    kept = shots if len(shots) <= SCREENS else [*shots[: SCREENS - 2], *shots[-2:]]
    end = observations[-1].end if observations else None
    low, high = episode.trajectory.version_min, episode.trajectory.version_max
    return SampleEpisode(
        task_id=episode.task_id,
        instruction=observations[0].instruction if observations else "",
        outcome=episode.trajectory.outcome,
        reason=end.reason if end else "",
        version=str(high) if low == high else f"{low} to {high}",
        shots=tuple(kept),
        skipped=len(shots) - len(kept),
    )


def shots_of(store: SyncStore, observations: list[Observation], policy: Policy) -> Iterator[Shot]:
    """Yield each screen with the action that the policy took on it."""
    for observation, following in itertools.zip_longest(observations, observations[1:]):
        ref, taken = observation.screenshot, following and following.taken
        if ref is None:
            continue
        try:
            data = store.get_blob(ref)
        except MissingBlob:
            continue
        yield Shot(
            image=f"data:{ref.media_type};base64,{base64.b64encode(data).decode()}",
            width=ref.width,
            height=ref.height,
            text=(taken.action or taken.text) if taken else "",
            points=points_of(taken.action, ref, policy) if taken and taken.action else (),
        )


def points_of(text: str, screen: BlobRef, policy: Policy) -> tuple[Point, ...]:
    """Return where an action points to, from the policy's pixels to the screen's."""
    try:
        action = actions.parse(text)
    except actions.Unparsable:
        return ()
    width, height = screens.smart_resize(screen.width, screen.height, policy.min_pixels, policy.max_pixels)
    return tuple(
        Point(getattr(action, x) * screen.width / width, getattr(action, y) * screen.height / height)
        for x, y in (("x", "y"), ("to_x", "to_y"))
        if hasattr(action, x)
    )
