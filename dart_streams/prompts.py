"""The prompt of a step as turns: instruction, a bounded history of screens and answers, the present screen.

The environment worker sends these turns; the trainer rebuilds the same ones from the stored steps. Pure and without
torch, so that both agree by construction.
"""

from collections.abc import Sequence

from topics.observations import Observation
from topics.values import MessagePart

SYSTEM = "You use a computer. Answer with one action."


def turns(observations: Sequence[Observation], max_images: int, max_texts: int) -> list[MessagePart]:
    """Return the prompt for the action that follows ``observations`` (steps 0..n of one trajectory, in order).

    The last ``max_images`` screens are shown, the present one included; of the earlier answers the last ``max_texts``
    are kept, so an answer can stand without its screen.
    """
    last = len(observations) - 1
    result = [MessagePart(role="system", text=SYSTEM), MessagePart(role="user", text=observations[0].instruction)]
    for index, observation in enumerate(observations):
        if observation.taken is not None and index > last - max_texts:
            result.append(MessagePart(role="assistant", text=observation.taken.text))
        if index > last - max_images and observation.screenshot is not None:
            result.append(MessagePart(role="user", image=observation.screenshot))
    return result
