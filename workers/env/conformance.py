"""Conformance tests of environment backends, also of other packages.

They play a few episodes of a task on a started backend, and raise :class:`ContractViolation` for the first violated
rule. Time limits and the effects of a crash are left to the backend's own tests. What an action does is seen by
:func:`check_probe` alone.
"""

import contextlib
import io
from collections.abc import AsyncIterator, Sequence
from typing import Any

from PIL import Image, ImageChops

from dart_streams import actions
from dart_streams.actions import Action, Wait, contract
from dart_streams.config.tasks import Task
from workers.env.environment import Environment, EnvironmentBackend, NoOracle, ProbeEnvironment, Screen

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
GRID = 8
"""Parts of a side of the screen, between which clicks are tried for an effect."""


class ContractViolation(AssertionError):
    """A backend violated a rule; the message names the rule and the task."""


async def check(backend: EnvironmentBackend, task: Task) -> list[str]:
    """Check all rules with one task; return the kinds of actions that changed no screen.

    Raises ContractViolation if one does not hold, EnvironmentFault if the environment fails.
    """
    start = await check_start(backend, task)
    await check_ids(backend, task)
    await check_any_action(backend, task, start)
    if task == getattr(backend, "probe", None):
        await check_probe(backend, task)
    solved = await check_oracle(backend, task, start)
    await check_close(backend, task)
    await check_neighbors(backend, task, start)
    return await check_effects(backend, task, solved)


@contextlib.asynccontextmanager
async def opened_start(backend: EnvironmentBackend, task: Task) -> AsyncIterator[tuple[Any, Screen]]:
    """Yield an environment at the start of a task, and its screen; it is closed unless a rule is broken."""
    environment = await backend.open(task)
    yield environment, await environment.reset(task)
    await environment.close()


async def check_start(backend: EnvironmentBackend, task: Task) -> Screen:
    """Check that the first screen is reproducible and its reward 0; return it."""
    async with opened_start(backend, task) as (environment, start):
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
    return start


async def check_ids(backend: EnvironmentBackend, task: Task) -> None:
    """Check that an action is executed once per id."""
    async with opened_start(backend, task) as (environment, _):
        before = await environment.step(Wait(), "seen")
        with contextlib.suppress(NoOracle):
            async for action in begin_demonstration(environment, task):
                after = await environment.step(action, "seen")
                require_same(task, after, before, "an action with the id of the one before only looks again")
                break
        await require_start(environment, task)


async def check_any_action(backend: EnvironmentBackend, task: Task, start: Screen) -> None:
    """Check that no action is a fault or affects the next episode; each is the only one of an episode."""
    for number, action in enumerate([*ANY_ACTION, None]):
        before = ANY_ACTION[number - 1] if number else "an earlier episode"
        async with opened_start(backend, task) as (environment, screen):
            require_same(task, screen, start, f"nothing of {before} is left in the next episode")
            await require_start(environment, task)
            if action is not None:
                await environment.step(action, f"any-{number}")
                reward = await environment.evaluate()
                require(task, 0.0 <= reward <= 1.0, f"a reward is in [0, 1], also after {action}; it is {reward}")


async def check_probe(backend: EnvironmentBackend, task: Task) -> None:
    """Check with the backend's probe what each action does, and that nothing of an episode is left."""
    async with opened_start(backend, task) as (probe, _):
        violations = await find_violations(probe)
        require(task, not violations, "; ".join(violations))
        await probe.leave()
        require(task, await probe.left() != [], "a probe finds what it has left")
        await probe.reset(task)
        left = await probe.left()
        require(task, not left, f"nothing is left after a reset, but {', '.join(left)} is")
        await probe.leave()
    async with opened_start(backend, task) as (probe, _):
        left = await probe.left()
        require(task, not left, f"nothing is left in another episode, but {', '.join(left)} is")


async def find_violations(probe: ProbeEnvironment) -> list[str]:
    """Play each line of the contract of actions; return those that are not kept, and what was received."""
    found, number = [], 0
    for sequence, wanted in contract.CONTRACT:
        await probe.received()
        for action in sequence:
            number += 1
            await probe.step(action, f"contract-{number}")
        if (seen := contract.normalize_inputs(await probe.received())) != wanted:
            found.append(f"{', '.join(map(str, sequence))}: received {seen}, not {wanted}")
    return found


async def check_oracle(backend: EnvironmentBackend, task: Task, start: Screen) -> bool:
    """Check that the oracle, if any, solves the task, and that the next episode starts like the first.

    Returns whether there is one.
    """
    async with opened_start(backend, task) as (environment, _):
        if solved := await solve(environment, task):
            reward = await environment.evaluate()
            require(task, reward == 1.0, f"the oracle's end is worth 1, not {reward}")
            require(task, await environment.evaluate() == reward, "evaluating does not change what it finds")
        require_same(task, await environment.reset(task), start, "nothing of a solution is left after a reset")
        await require_start(environment, task)
    return solved


async def check_neighbors(backend: EnvironmentBackend, task: Task, start: Screen) -> None:
    """Check that a concurrent episode does not affect another one."""
    async with opened_start(backend, task) as (first, _), opened_start(backend, task) as (second, _):
        await solve(second, task)
        require_same(task, await first.step(Wait(), "look"), start, "an episode does not see what another one does")
        await require_start(first, task)


async def check_close(backend: EnvironmentBackend, task: Task) -> None:
    """Check that an environment can be closed before its first reset, and twice."""
    await (await backend.open(task)).close()
    async with opened_start(backend, task) as (environment, _):
        await environment.close()
    async with opened_start(backend, task) as (after, _):
        await require_start(after, task)


async def check_effects(backend: EnvironmentBackend, task: Task, solved: bool) -> list[str]:
    """Return the kinds of actions that change no screen; one must change it, unless the oracle has solved the task.

    Clicks are tried all over the screen, other kinds before and after the first click that changed it.
    """
    async with opened_start(backend, task) as (environment, start):
        xs, ys = ([length * part // GRID for part in range(1, GRID)] for length in (start.width, start.height))
        click = await first_effect(environment, task, [actions.Click(x, y) for y in ys for x in xs])
        missing = [] if click or await environment.evaluate() else ["Click"]
        click = click or actions.Click(start.width // 2, start.height // 2)
        at = click.x, click.y
        kinds: list[Action] = [actions.Move(*at), actions.Drag(*at, 1, 1), actions.Scroll(*at, "down")]
        kinds += [actions.Hotkey(("tab",)), actions.Type("a")]
        for action in kinds:
            if not await first_effect(environment, task, [action, click, action], but=1):
                missing.append(type(action).__name__)
    require(task, solved or len(missing) <= len(kinds), "an action has an effect: all that were tried are ignored")
    return missing


async def first_effect(environment: Environment, task: Task, sequence: Sequence[Any], but: int = -1) -> Any:
    """Return the first action, but for the one at a place, that changes the screen; None if there is none."""
    before = await environment.reset(task)
    for number, action in enumerate(sequence):
        after = await environment.step(action, f"effect-{number}")
        if number != but and not same_screen(after, before):
            return action
        if after.done:
            break
        before = after
    return None


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
