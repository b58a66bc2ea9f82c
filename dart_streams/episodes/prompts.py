"""The prompt of a step as turns: instruction, a bounded history of screens and answers, the present screen.

The environment worker sends these turns and the trainer rebuilds them from stored steps. Pure and without torch, so
that both agree. The dialect provides the words.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Literal, NamedTuple

import msgspec

from dart_streams.actions import grammar
from dart_streams.actions.dialects import View
from dart_streams.actions.sequence import parse_all, pointer_after
from dart_streams.config import Policy
from dart_streams.screens import smart_resize
from topics.observations import Observation
from topics.values import BlobRef, MessagePart, OfferedCall


class Window(NamedTuple):
    """Indices of the first screen and the first answer that a prompt shows; steps count from 0."""

    first_image: int
    first_text: int


class PromptStep(NamedTuple):
    """The answer that led to a screen (None before the first), what its calls returned, and the screen."""

    answer: str | None
    returned: str
    screen: BlobRef | None


def prompt_turns(
    observations: Sequence[Observation], policy: Policy, window: Window | None = None
) -> list[MessagePart]:
    """Return the prompt for the action after ``observations`` (steps 0..n of a trajectory).

    It has the last ``policy.max_images`` screens, the present one included, and the last ``policy.max_texts`` answers,
    so an answer may lack its screen. What calls returned is shown with their answer. ``window`` shows others.
    """
    steps = [
        PromptStep(None if each.taken is None else each.taken.text, each.returned, each.screenshot)
        for each in observations
    ]
    first = observations[0]
    return turns_of(first.instruction, view_of([first], policy), steps, policy, window, first.calls)


def longest_prompt(
    instruction: str, size: tuple[int, int], steps: int, policy: Policy, answer: str = ""
) -> list[MessagePart]:
    """Return the longest prompt of episodes of ``steps`` steps, with equal screens and answers."""
    screen = BlobRef(sha256="", size=0, width=size[0], height=size[1])
    answered = [PromptStep(answer, "", screen)] * min(steps - 1, max(policy.max_texts, policy.max_images))
    begun = [PromptStep(None, "", screen), *answered]
    return turns_of(instruction, View(*policy_size(screen, policy)), begun, policy.sliding)


def turns_of(
    instruction: str,
    view: View,
    steps: Sequence[PromptStep],
    policy: Policy,
    window: Window | None = None,
    offered: Sequence[OfferedCall] = (),
) -> list[MessagePart]:
    """Return the prompt after ``steps``, with the policy's window unless another is given."""
    dialect = policy.dialect.build()
    separate = True if dialect.separate else msgspec.UNSET
    first_image, first_text = window or window_after(len(steps), policy)

    def part(
        role: Literal["system", "user", "assistant"], text: str | None = None, image: BlobRef | None = None
    ) -> MessagePart:
        return MessagePart(role=role, text=text, image=image, separate=separate)

    result = [part(role, text) for role, text in dialect.system_messages(instruction, view, offered)]
    for index, (answer, returned, screen) in enumerate(steps):
        if answer is not None and index >= first_text:
            result.append(part("assistant", dialect.history_text(answer)))
            if returned:
                result.append(part("user", dialect.returned_text(returned)))
        if index >= first_image and screen is not None:
            result.append(part("user", image=screen))
    return result


def window_after(steps: int, policy: Policy) -> Window:
    """Return the window of the prompt after ``steps`` screens.

    Prompts of a trajectory with equal windows extend each other.
    """
    return Window(
        first_shown(steps, policy.min_images, policy.max_images),
        1 + first_shown(steps - 1, policy.min_texts, policy.max_texts),
    )


def first_shown(count: int, least: int, most: int) -> int:
    """Return the index of the first of ``count`` items that a window shows.

    The window grows to ``most`` items. The next item makes it drop its oldest ones, so that ``least`` stay, the newest
    included; without ``least`` (0) it drops one at a time. The index depends on ``count`` only: every process finds the
    same.
    """
    block = most - least + 1 if least else 1
    return -(-max(0, count - most) // block) * block


def split_messages(parts: Iterable[MessagePart]) -> Iterator[list[MessagePart]]:
    """Yield the messages of a prompt's parts, in order."""
    message: list[MessagePart] = []
    for part in parts:
        if message and (part.role != message[0].role or part.separate is True):
            yield message
            message = []
        message.append(part)
    if message:
        yield message


def view_of(observations: Sequence[Observation], policy: Policy) -> View:
    """Return the policy's view after ``observations``, with the pointer's position."""
    screens = (observation.screenshot for observation in reversed(observations))
    width, height = policy_size(next((screen for screen in screens if screen is not None), None), policy)
    for observation in reversed(observations):
        if observation.taken is not None and (place := pointer_of(observation.taken.action)) is not None:
            return View(width, height, place)
    return View(width, height)


def policy_size(screen: BlobRef | None, policy: Policy) -> tuple[int, int]:
    """Return the policy's size of a screen; one pixel if its size is unknown."""
    if screen is None or not screen.width or not screen.height:
        return 1, 1
    return smart_resize(screen.width, screen.height, policy.min_pixels, policy.max_pixels)


def pointer_of(text: str | None) -> tuple[int, int] | None:
    """Return the pointer's position after actions in canonical text; None if they do not move it."""
    try:
        actions = parse_all(text) if text is not None else ()
    except grammar.Unparsable:
        return None
    return next((place for action in reversed(actions) if (place := pointer_after(action)) is not None), None)
