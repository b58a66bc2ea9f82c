"""Backends: ours and those that packages bring, and the contract that each keeps, with one backend for each breach."""

import contextlib
import io
import re
from collections.abc import AsyncIterator
from typing import ClassVar

import pytest
from msgspec.structs import replace
from PIL import Image

from console.cli.doctor_checks import check_environment
from dart_streams.actions import Action, Click, KeyDown, Scroll
from dart_streams.actions.contract import CONTRACT
from dart_streams.config import Config, parse
from dart_streams.config.backends import ENTRY_POINTS
from dart_streams.config.tasks import Task
from dart_streams.errors import ConfigError
from tests.installed_packages import install_metadata
from workers.env import conformance
from workers.env.backends.registry import backend_of
from workers.env.backends.simulated import SimulatedBackend
from workers.env.conformance import ContractViolation
from workers.env.environment import Screen, screen_of

TASK = Task(environment="columns", page="column", seed=3, max_steps=4, split="train")
COLUMNS, SIDE = 4, 64


class Columns:
    """A backend and its environments: the episode ends with a click on one of four columns."""

    async def start(self) -> None: ...
    async def stop(self) -> None: ...

    async def open(self, task: Task) -> "Columns":
        return type(self)()

    async def reset(self, task: Task) -> Screen:
        self.hidden, self.clicked, self.executed = task.seed % COLUMNS, -1, ""
        return self.screen()

    async def step(self, action: Action, action_id: str, last: bool = False) -> Screen:
        if action_id != self.executed:
            self.executed = action_id
            self.act(action)
        return self.screen()

    def act(self, action: Action) -> None:
        if isinstance(action, Click) and action.button == "left":
            self.clicked = action.x * COLUMNS // SIDE

    async def evaluate(self) -> float:
        return float(self.clicked == self.hidden)

    async def close(self) -> None: ...

    async def demonstrate(self, task: Task) -> AsyncIterator[Action]:
        yield Click(self.hidden * SIDE // COLUMNS + 1, 1)

    def screen(self) -> Screen:
        image, drawn = io.BytesIO(), Image.new("RGB", (SIDE, SIDE))
        drawn.putpixel((1, 1), (self.clicked + 1, 0, 0))
        drawn.save(image, "png")
        return screen_of(image.getvalue(), "Click", self.clicked >= 0)


class WorthSomethingAtTheStart(Columns):
    async def evaluate(self) -> float:
        return 1.0 if self.clicked < 0 else await super().evaluate()


class OfAnotherSize(Columns):
    def screen(self) -> Screen:
        return replace(super().screen(), width=1, height=1)


class OfAnotherType(Columns):
    def screen(self) -> Screen:
        return replace(super().screen(), media_type="image/jpeg")


class ExecutesAgain(Columns):
    async def step(self, action: Action, action_id: str, last: bool = False) -> Screen:
        self.act(action)
        return self.screen()


class LeavesWhatWasScrolled(Columns):
    scrolled = 0

    def act(self, action: Action) -> None:
        super().act(action)
        LeavesWhatWasScrolled.scrolled += isinstance(action, Scroll)

    def screen(self) -> Screen:
        return replace(super().screen(), instruction=f"Click {self.scrolled}")


class ScoresAKey(Columns):
    async def evaluate(self) -> float:
        return self.score if self.executed else 0.0

    def act(self, action: Action) -> None:
        self.score = 2.0 if isinstance(action, KeyDown) else 0.0


class CannotBeSolved(Columns):
    async def demonstrate(self, task: Task) -> AsyncIterator[Action]:
        yield Click((self.hidden + 1) % COLUMNS * SIDE // COLUMNS + 1, 1)


class NeverEnds(Columns):
    async def demonstrate(self, task: Task) -> AsyncIterator[Action]:
        while True:
            yield Click(self.hidden * SIDE // COLUMNS + 1, 1)

    def screen(self) -> Screen:
        return replace(super().screen(), done=False)


class SharesItsState(Columns):
    async def open(self, task: Task) -> "Columns":
        return self


class IgnoresItsActions(Columns):
    demonstrate = None

    def act(self, action: Action) -> None: ...


class ClosesOnlyAfterAReset(Columns):
    async def close(self) -> None:
        del self.hidden


class ClosesOnce(Columns):
    closed = False

    async def close(self) -> None:
        if self.closed:
            raise ContractViolation("closed twice")
        self.closed = True


@pytest.mark.parametrize("backend", [Columns(), SimulatedBackend(parse({"env": {"backend": "simulated"}}))])
async def test_backends_that_keep_the_contract(backend):
    for seed in range(4):
        await conformance.check(backend, Task(environment="any", page="column", seed=seed, max_steps=4, split="train"))


@pytest.mark.parametrize(
    ("broken", "why"),
    [
        (WorthSomethingAtTheStart, "the start is worth 0, not 1"),
        (OfAnotherSize, "the size that it says"),
        (OfAnotherType, "the media type"),
        (ExecutesAgain, "only looks again"),
        (LeavesWhatWasScrolled, "nothing of Scroll.* is left"),
        (ScoresAKey, "a reward is in"),
        (CannotBeSolved, "worth 1, not 0"),
        (NeverEnds, "at most the 4 steps"),
        (SharesItsState, "what another one does"),
        (ClosesOnce, "closed twice"),
        (ClosesOnlyAfterAReset, "hidden"),
        (IgnoresItsActions, "all that were tried are ignored"),
    ],
)
async def test_each_breach_of_the_contract_is_found(broken, why):
    with pytest.raises((ContractViolation, AttributeError), match=why):
        await conformance.check(broken(), TASK)


class Echo(Columns):
    """A backend with a probe, which receives what the contract says, and keeps what is left until a reset."""

    probe, kept = TASK, None

    async def reset(self, task: Task) -> Screen:
        self.inputs = []
        self.forget()
        return await super().reset(task)

    def forget(self) -> None:
        self.kept = []

    def act(self, action: Action) -> None:
        super().act(action)
        self.inputs.append(action)

    async def received(self) -> list[list]:
        played, self.inputs = self.inputs, []
        return [one for sequence, wanted in CONTRACT if list(sequence) == played for one in wanted]

    async def leave(self) -> None:
        self.kept.append("a file")

    async def left(self) -> list[str]:
        return self.kept


class ClicksTwiceAtMost(Echo):
    def act(self, action: Action) -> None:
        super().act(replace(action, count=2) if getattr(action, "count", 0) == 3 else action)


class LeavesAFileAfterAReset(Echo):
    def forget(self) -> None:
        self.kept = self.kept or []


class LeavesAFileToOthers(Echo):
    files: ClassVar[list[str]] = []

    def forget(self) -> None:
        self.kept = self.files.copy() if self.kept is None else []

    async def leave(self) -> None:
        await super().leave()
        self.files.append("a file")


class FindsNothing(Echo):
    async def left(self) -> list[str]:
        return []


@pytest.mark.parametrize(
    ("kind", "why"),
    [
        (Echo, ""),
        (ClicksTwiceAtMost, r"count=3\): received \[.* not"),
        (LeavesAFileAfterAReset, "nothing is left after a reset, but a file is"),
        (LeavesAFileToOthers, "nothing is left in another episode"),
        (FindsNothing, "a probe finds what it has left"),
    ],
)
async def test_a_probe_shows_what_actions_do_and_what_is_left(kind, why):
    with pytest.raises(ContractViolation, match=why) if why else contextlib.nullcontext():
        await conformance.check(kind(), TASK)


def png(size: tuple[int, int] = (8, 6), dot: tuple[int, int] | None = None) -> bytes:
    """Return a black image with a white pixel."""
    image, file = Image.new("RGB", size), io.BytesIO()
    if dot is not None:
        image.putpixel(dot, (255, 255, 255))
    image.save(file, "PNG")
    return file.getvalue()


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({"instruction": "other"}, "instruction is 'other', not 'click'"),
        ({"image": png(dot=(2, 3))}, re.escape("the box (2, 3, 3, 4)")),
        ({"image": png(size=(8, 7))}, re.escape("has (8, 7) pixels, not (8, 6)")),
        ({"image": None}, "only one of the two has an image"),
    ],
)
def test_a_violation_says_in_what_two_screens_differ(changed, why):
    screen = Screen(image=png(), media_type="image/png", width=8, height=6, instruction="click")
    conformance.require_same(TASK, screen, screen, "they are equal")
    with pytest.raises(ContractViolation, match=f"they are equal: .*{why}"):
        conformance.require_same(TASK, replace(screen, **changed), screen, "they are equal")


# --- packages


def columns(config: Config) -> Columns:
    """What the entry point of the package below means."""
    return Columns()


def configured(backend: str) -> Config:
    return parse({"env": {"backend": backend, "installed": {"options": {"side": 64, "dark": True}}}})


async def test_an_installed_package_brings_a_backend(tmp_path, monkeypatch):
    install_metadata(tmp_path, "columns-env", ENTRY_POINTS, f"columns = {__name__}:columns")
    monkeypatch.syspath_prepend(tmp_path)
    config = configured("columns")
    await conformance.check(backend_of(config), TASK)
    assert config.env.selected.call_timeout_s == 15.0
    assert config.env.installed.options == {"side": 64, "dark": True}


@pytest.mark.parametrize(
    ("values", "why"),
    [
        (
            [],
            r"no environment 'columns'; known are androidworld, desktop, gymnasium, miniwob, openenv, osworld, phone, "
            r"simulated\. .*entry point",
        ),
        (["no_such_module:it"], r"'columns' of no_such_module:it \(package_0 1\.0\) cannot be loaded: No module"),
        (["json:it", "json:that"], r"json:it \(package_0 1\.0\) and by json:that \(package_1 1\.0\): uninstall one"),
    ],
)
def test_a_backend_that_cannot_be_had_is_named(tmp_path, monkeypatch, values, why):
    for number, value in enumerate(values):
        install_metadata(tmp_path, f"package_{number}", ENTRY_POINTS, f"columns = {value}")
    monkeypatch.syspath_prepend(tmp_path)
    assert check_environment(configured("columns")).status == ("ok" if len(values) == 1 else "fail")
    with pytest.raises(ConfigError, match=why):
        backend_of(configured("columns"))
