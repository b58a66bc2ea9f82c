"""Episodes whose order lists the actions: explorations, and solutions to check."""

from dart_streams import actions
from dart_streams.episodes.episode import Episode, Evaluate, Move, Stop
from topics.observations import EpisodeEnd
from workers.env.environment import Size, rescale


def next_planned(episode: Episode, screen: Size, image: Size) -> tuple[Episode, Move]:
    """Return the episode with the next action of its order's plan; the end is evaluated, as that of any episode.

    The plan is in pixels of ``screen``, and ``image`` is the policy's.
    """
    plan, step = episode.order.plan, episode.step - 1
    if step >= len(plan):
        return episode, Evaluate(cut=True)
    try:
        action = actions.parse(plan[step])
    except actions.Unparsable as error:
        return episode, Stop(EpisodeEnd(kind="env_error", reward=None, reason=f"plan of the order: {error}"))
    return episode.demonstrate(rescale(action, screen, image))
