"""Conformance tests of environment backends, also of other packages.

They play a few episodes of a task on a started backend, and raise :class:`ContractViolation` for the first violated
rule. Time limits and the effects of a crash are left to the backend's own tests.
"""

import contextlib
import io
from collections.abc import AsyncIterator

from PIL import Image, ImageChops

from dart_streams import actions
from dart_streams.actions import Action, Wait
from dart_streams.config.tasks import Task
from workers.env.environment import Environment, EnvironmentBackend, NoOracle, Screen

ANY_ACTION: tuple[Action, ...] = (
    actions.Move(1, 1),
    actions.Click(1, 1),
    actions.Click(0, 0, "right"),
    actions.Click(1, 1, "middle"),
    actions.Click(1, 1, count=3),
    actions.Drag(1, 1, 2, 2),
    actions.MouseDown(1, 1),
    actions.MouseUp(2, 2),
    actions.Scroll(1, 1, "down"),
    actions.Scroll(1, 1, "left", 100),
    actions.KeyDown("shift"),
    actions.KeyUp("shift"),
    actions.KeyDown("ctrl"),
    actions.Hotkey(("ctrl", "a")),
    actions.Hotkey(("no such key",)),
    actions.Type("<é😀>\n"),
    Wait(),
)
"""Actions of each type, also with unusual arguments; a key stays held."""


class ContractViolation(AssertionError):
    """A backend violated a rule; the message names the rule and the task."""


async def check(backend: EnvironmentBackend, task: Task) -> None:
    """Check all rules with one task.

    Raises ContractViolation if one does not hold, EnvironmentFault if the environment fails.
    """
    start = await check_start(backend, task)
    await check_ids(backend, task)
    await check_any_action(backend, task, start)
    await check_oracle(backend, task, start)
    await check_close(backend, task)
    await check_neighbors(backend, task, start)


async def check_start(backend: EnvironmentBackend, task: Task) -> Screen:
    """Check that the first screen is reproducible and its reward 0; return it."""
    environment = await backend.open(task)
    start = await environment.reset(task)
    require(task, bool(start.instruction), "reset returns an instruction")
    require(task, not start.done, "an episode is not over when it begins")
    require(task, start.image is not None, "reset returns a screen")
    with Image.open(io.BytesIO(start.image or b"")) as image:
        require(task, image.size == (start.width, start.height), "a screen has the size that it says")
        require(task, image.get_format_mimetype() == start.media_type, "a screen has the media type that it says")
    await require_start(environment, task)
    again = await environment.reset(task)
    require_same(task, again, start, "a second reset of the same environment shows the same screen")
    await require_start(environment, task)
    await environment.close()
    return start


async def check_ids(backend: EnvironmentBackend, task: Task) -> None:
    """Check that an action is executed once per id."""
    environment = await backend.open(task)
    await environment.reset(task)
    before = await environment.step(Wait(), "seen")
    with contextlib.suppress(NoOracle):
        async for action in begin_demonstration(environment, task):
            after = await environment.step(action, "seen")
            require_same(task, after, before, "an action with the id of the one before only looks again")
            break
    await require_start(environment, task)
    await environment.close()


async def check_any_action(backend: EnvironmentBackend, task: Task, start: Screen) -> None:
    """Check that no action is a fault or affects the next episode; each is the only one of an episode."""
    for number, action in enumerate([*ANY_ACTION, None]):
        environment = await backend.open(task)
        before = ANY_ACTION[number - 1] if number else "an earlier episode"
        require_same(task, await environment.reset(task), start, f"nothing of {before} is left in the next episode")
        await require_start(environment, task)
        if action is not None:
            await environment.step(action, f"any-{number}")
            reward = await environment.evaluate()
            require(task, 0.0 <= reward <= 1.0, f"a reward is in [0, 1], also after {action}; it is {reward}")
        await environment.close()


async def check_oracle(backend: EnvironmentBackend, task: Task, start: Screen) -> None:
    """Check that the oracle, if any, solves the task, and that the next episode starts like the first."""
    environment = await backend.open(task)
    await environment.reset(task)
    if await solve(environment, task):
        reward = await environment.evaluate()
        require(task, reward == 1.0, f"the oracle's end is worth 1, not {reward}")
        require(task, await environment.evaluate() == reward, "evaluating does not change what it finds")
    require_same(task, await environment.reset(task), start, "nothing of a solution is left after a reset")
    await require_start(environment, task)
    await environment.close()


async def check_neighbors(backend: EnvironmentBackend, task: Task, start: Screen) -> None:
    """Check that a concurrent episode does not affect another one."""
    first, second = await backend.open(task), await backend.open(task)
    await first.reset(task)
    await second.reset(task)
    await solve(second, task)
    require_same(task, await first.step(Wait(), "look"), start, "an episode does not see what another one does")
    await require_start(first, task)
    await second.close()
    await first.close()


async def check_close(backend: EnvironmentBackend, task: Task) -> None:
    """Check that an environment can be closed before its first reset, and twice."""
    unused = await backend.open(task)
    await unused.close()
    environment = await backend.open(task)
    await environment.reset(task)
    await environment.close()
    await environment.close()
    after = await backend.open(task)
    await after.reset(task)
    await require_start(after, task)
    await after.close()


async def solve(environment: Environment, task: Task) -> bool:
    """Play the oracle's actions; return whether there is an oracle."""
    number = 0
    try:
        async for action in begin_demonstration(environment, task):
            number += 1
            require(task, number <= task.max_steps, f"the oracle needs at most the {task.max_steps} steps of the task")
            screen = await environment.step(action, f"oracle-{number}")
            if screen.done:
                break
    except NoOracle:
        return False
    return True


def begin_demonstration(environment: Environment, task: Task) -> AsyncIterator[Action]:
    """Return the oracle's actions; raise :class:`NoOracle`, now or at the first one, if there is no oracle."""
    demonstrate = getattr(environment, "demonstrate", None)
    if demonstrate is None:
        raise NoOracle("the environment has no oracle")
    actions: AsyncIterator[Action] = demonstrate(task)
    return actions


async def require_start(environment: Environment, task: Task) -> None:
    """Require that the reward of the present state is 0."""
    reward = await environment.evaluate()
    require(task, reward == 0.0, f"the start is worth 0, not {reward}")


def require(task: Task, holds: bool, rule: str) -> None:
    """Raise ContractViolation if a rule does not hold."""
    if not holds:
        raise ContractViolation(f"{task.task_id}: {rule}")


def require_same(task: Task, screen: Screen, expected: Screen, rule: str) -> None:
    """Require that two screens are equal; the message says in what they differ."""
    if not same_screen(screen, expected):
        require(task, False, f"{rule}: {describe_difference(screen, expected)}")


def same_screen(first: Screen, second: Screen) -> bool:
    """Return whether two screens are equal."""
    return (first.image, first.instruction, first.done) == (second.image, second.instruction, second.done)


def describe_difference(screen: Screen, expected: Screen) -> str:
    """Say in what a screen differs from the expected one; of two images it gives the box of different pixels."""
    for name in ("instruction", "done"):
        found, wanted = getattr(screen, name), getattr(expected, name)
        if found != wanted:
            return f"{name} is {found!r}, not {wanted!r}"
    if not (screen.image and expected.image):
        return "only one of the two has an image"
    with Image.open(io.BytesIO(screen.image)) as image, Image.open(io.BytesIO(expected.image)) as other:
        if image.size != other.size:
            return f"the image has {image.size} pixels, not {other.size}"
        box = ImageChops.difference(image.convert("RGB"), other.convert("RGB")).getbbox()
    return f"the images differ in the box {box} (left, top, right, bottom)"
