"""The recorded answers that an order's rollout follows, from the store."""

from dart_streams.actions.recorded import RecordedAnswer
from dart_streams.episodes import guidance
from dart_streams.store import AsyncStore
from topics.rollout_orders import Guide
from workers.env.environment import EnvironmentFault


async def load_recording(store: AsyncStore, guide: Guide) -> tuple[RecordedAnswer, ...]:
    """Return the recorded answers of an order's guide; raise EnvironmentFault if the store does not have them."""
    observed = await store.steps(guide.trajectory_id)
    try:
        return guidance.recorded_answers(guide.trajectory_id, observed)
    except guidance.UnusableRecording as error:
        raise EnvironmentFault(f"order.guide: {error}") from None
