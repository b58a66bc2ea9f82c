"""Phones: real Android views in a process each, their families, and the cost of faults."""

import asyncio
import json
import os
import signal
import subprocess
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import psutil
import pytest
import pytest_asyncio

from dart_desktops.desktop.problem import Element, find, in_turn
from dart_phones import backend as backend_module
from dart_phones import gestures, process
from dart_phones.backend import PhoneBackend
from dart_phones.environment import PhoneEnvironment
from dart_phones.families import FAMILIES, PhoneProblem, make_state
from dart_phones.installation import COMPILE_S, COMPILER, class_path, ensure_built
from dart_phones.process import PhoneProcess
from dart_streams.actions import Action, Call, Click, Drag, Hotkey, MouseDown, MouseUp, Move, Scroll, Type
from dart_streams.actions.contract import CONTRACT, Received, make_strokes, normalize_inputs
from dart_streams.config.tasks import Task
from dart_streams.java import SHARED_JARS, find_java, jar_folder
from plugins.phones.tests.phones.conftest import config
from tests.environments import check_family, check_held_ends, playing
from tests.keyboard import TYPED
from tests.waiting import wait_until
from workers.env import conformance
from workers.env.environment import EnvironmentFault

SEEDS = 3
SOURCE = Path(__file__).with_name("ProbeEpisode.java")
pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.timeout(1800)]


def task(family: str, seed: int = 0) -> Task:
    return Task(environment="phone", page=family, seed=seed, max_steps=10, split="train")


async def elements_of(environment: Any) -> list[Any]:
    """Return the shown views."""
    answer = await environment.phone.request("elements")
    return [Element(**element) for element in answer["elements"]]


async def perform(environment: Any, *actions: Action) -> None:
    """Perform actions with new ids."""
    for action in actions:
        perform.count += 1  # type: ignore[attr-defined]
        await environment.step(action, f"{perform.count}")  # type: ignore[attr-defined]


perform.count = 0  # type: ignore[attr-defined]


async def press(environment: Any, role: str, name: str) -> None:
    """Touch a view."""
    await perform(environment, find(await elements_of(environment), role, name).click())


async def state_of(environment: Any) -> dict[str, Any]:
    """Return what the applications keep."""
    return (await environment.phone.request("state"))["state"]


async def files_of(environment: Any) -> list[Path]:
    """Return the files and folders of the phone's process."""
    return await asyncio.to_thread(lambda: list(environment.phone._folder.rglob("*")))


async def title_of(environment: Any) -> str:
    """Return the title of the shown page."""
    shown = [element for element in await elements_of(environment) if element.role == "TextView"]
    return min(shown, key=lambda element: element.box[1]).text if shown else ""


@pytest.mark.parametrize("family", FAMILIES)
async def test_the_oracle_solves_each_family(backend, family):
    for seed in range(SEEDS):
        await check_family(backend, task(family, seed))


@pytest.mark.parametrize("family", FAMILIES)
async def test_phones_keep_the_contract(backend, family):
    await conformance.check(backend, task(family, 3))


KEYS = {29: "a", 61: "tab", 66: "enter"}
"""Android's key codes."""
MODIFIERS = {bits: name for name, bits in gestures.MODIFIERS.items()}


def in_words(noted: list[list[Any]]) -> list[Received]:
    """Return what the probe noted in the words of the contract; modifiers are held while events have them.

    A touch that stays as long as a long press is one of the right button.
    """
    words: list[Received] = []
    held = ""
    for before, (kind, *rest, state), after in zip([[""], *noted], noted, [*noted[1:], [""]], strict=False):
        if (now := MODIFIERS.get(state, "")) != held:
            words += [["up", held]] * bool(held) + [["down", now]] * bool(now)
            held = now
        if kind == "text":
            words += make_strokes(*rest[0])
        elif kind in {"down", "up"}:
            words.append([kind, KEYS[rest[0]]])
        else:
            *place, ms = rest
            stays = [ms - before[3]] if before[0] == "press" else [after[3] - ms] if after[0] == "release" else [0]
            button = "right" if kind != "move" and stays[0] >= gestures.LONG_PRESS_MS else "left"
            words.append([kind, *([] if kind == "move" else [button]), *place, *([1] if kind == "press" else [])])
    return normalize_inputs(words + [["up", held]] * bool(held))


def on_a_phone(sequence: Sequence[Action], wanted: list[Received]) -> list[Received]:
    """Return what a phone receives of a line of the contract: it has one finger, and no pointer."""
    match sequence[0]:
        case Move() | Click(button="middle") | Drag(button="middle" | "right") | MouseDown(button="middle" | "right"):
            return []
        case Scroll(x, y, direction, int(amount)):
            end = gestures.input_events(Scroll(x, y, direction, amount), frozenset())[-1]
            return [["press", "left", x, y, 1], ["release", "left", *end[1:]]]
    return [[*one[:4], 1] if one[0] == "press" else one for one in wanted]


class ProbePhone(PhoneEnvironment):
    """A phone with the applications of ProbeEpisode.java."""

    async def received(self) -> list[Any]:
        """Return what was noted since the last call."""
        notes = self.phone._folder / "noted"
        lines = notes.read_text().splitlines() if notes.exists() else []
        notes.unlink(missing_ok=True)
        return [json.loads(line) for line in lines]

    async def leave(self) -> None:
        """Write everything, and find it in each place."""
        await perform(self, Call("open_app", {"app_name": "Leave"}))
        assert len(left := await self.left()) == 19, " ".join(left)

    async def left(self) -> list[str]:
        """Return the places where something is left."""
        await self.received()
        await perform(self, Call("open_app", {"app_name": "Look"}))
        return (await self.received())[-1]


@pytest_asyncio.fixture(loop_scope="session")
async def probed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[PhoneBackend]:
    """A backend with the probe's applications, as the family ``probe``."""
    await asyncio.to_thread(ensure_built)
    path = list(class_path())
    compiler = next(jar_folder("phone", SHARED_JARS).glob("ecj-*.jar"))
    words = [find_java(), "-jar", compiler, *COMPILER, "-d", tmp_path, "-cp", ":".join(map(str, path)), SOURCE]
    await asyncio.to_thread(subprocess.run, words, check=True, timeout=COMPILE_S)
    monkeypatch.setattr(process, "class_path", lambda: [tmp_path, *path])
    confined = process.confined_command
    monkeypatch.setattr(
        process,
        "confined_command",
        lambda words, folders, own: confined([*words, "dart.phone.ProbeEpisode"], (*folders, tmp_path), own),
    )
    problem = PhoneProblem(instruction="Do anything.", app="Probe", start=make_state(), goal={}, oracle=in_turn())
    monkeypatch.setitem(FAMILIES, "probe", lambda _: problem)
    monkeypatch.setattr(backend_module, "PhoneEnvironment", ProbePhone)
    made = PhoneBackend(config())
    yield made
    await made.stop()


async def test_an_app_receives_what_the_contract_says(probed):
    async with playing(probed, task("probe")) as environment:
        wrong = []
        for sequence, wanted in CONTRACT:
            await environment.received()
            await perform(environment, *sequence)
            if (seen := in_words(await environment.received())) != on_a_phone(sequence, wanted):
                wrong.append((sequence, seen))
        assert wrong == []


async def test_nothing_that_an_app_writes_is_left(probed, monkeypatch):
    async def find_none(_: object) -> list[str]:
        return []

    monkeypatch.setattr(conformance, "find_violations", find_none)  # A phone has its own words: see above.
    await conformance.check_probe(probed, task("probe"))


@pytest.mark.parametrize("family", FAMILIES)
async def test_an_app_that_kept_something_else_too_is_worth_nothing(backend, family):
    chosen = task(family)
    async with playing(backend, chosen) as environment:
        await perform(environment, Call("open_app", {"app_name": "Notes"}))
        await press(environment, "Button", "New note")
        await perform(environment, Type("more"))
        await press(environment, "Button", "Save")
        await perform(environment, Call("open_app", {"app_name": environment.problem.app}))
        assert (await state_of(environment))["notes"][-1] == "more"
        async for action in environment.demonstrate(chosen):
            await perform(environment, action)
            if (await state_of(environment)) != dict(environment.problem.start):
                break
        assert await environment.evaluate() == 0


async def test_nothing_of_a_solved_family_is_left_in_the_next(backend):
    """One phone plays all families twice: untouched, so that each shows its start, and solved."""
    families = list(FAMILIES)
    environment = await backend.open(task(families[0]))
    starts = {family: await environment.reset(task(family)) for family in families}
    for before, family in zip([families[-1], *families], families, strict=False):
        assert conformance.same_screen(await environment.reset(task(family)), starts[family]), f"after {before}"
        assert await state_of(environment) == environment.problem.start, f"after {before}"
        assert await conformance.solve(environment, task(family))
    assert await environment.evaluate() == 1
    await environment.close()


async def test_a_phone_keeps_nothing_of_its_episodes(backend):
    environment = await backend.open(task("note"))
    phone, kept = psutil.Process(environment.phone.process.pid), []
    assert os.getsid(phone.pid) == phone.pid, "so its priority is that of its own session"
    for seed in range(6):
        await environment.reset(task("note", seed))
        assert await conformance.solve(environment, task("note", seed))
        kept.append((len(await files_of(environment)), phone.num_fds()))
    assert kept[-1] == kept[1], "files and descriptors after the second episode and after the sixth"
    await environment.close()


async def test_the_keyboard_types_what_it_types_into_a_page(backend):
    async with playing(backend, task("note")) as environment:
        for sequence, text in TYPED:
            await perform(environment, Hotkey(("home",)), Call("open_app", {"app_name": "Notes"}))
            await press(environment, "Button", "New note")
            await perform(environment, *sequence)
            [field] = [element for element in await elements_of(environment) if element.role == "EditText"]
            assert field.text == text, sequence


async def test_a_text_of_several_lines_is_typed_and_replaced(backend):
    async with playing(backend, task("note")) as environment:
        await press(environment, "Button", "New note")
        await perform(environment, Type("<a>&é€ß😀 中\nsecond"), Hotkey(("backspace",)))
        assert find(await elements_of(environment), "EditText").text == "<a>&é€ß😀 中\nsecon"
        await perform(environment, Call("set_text", {"text": "new"}), Type("er"))
        assert find(await elements_of(environment), "EditText").text == "newer"


async def test_home_back_and_icons_lead_from_page_to_page(backend):
    async with playing(backend, task("contact")) as environment:
        await press(environment, "Button", "Add contact")
        assert await title_of(environment) == "New contact"
        await perform(environment, Hotkey(("back",)))
        assert await title_of(environment) == "Contacts"
        await perform(environment, Hotkey(("home",)))
        assert await title_of(environment) == "Home"
        await press(environment, "TextView", "Clock")
        assert await title_of(environment) == "Clock"
        await perform(environment, Hotkey(("escape",)), Hotkey(("escape",)))
        assert await title_of(environment) == "Home"
        await perform(environment, Call("open_app", {"app_name": "no such app"}))
        assert await title_of(environment) == "Home"


async def test_a_list_follows_a_finger_and_scrolls(backend):
    async with playing(backend, task("search")) as environment:
        shown = await elements_of(environment)
        [rows] = [element for element in shown if element.role == "ListView"]
        middle = rows.click()

        async def first_row() -> str:
            found = [one for one in await elements_of(environment) if ": " in one.text and one.box[3] > 0]
            return found[0].text

        top = await first_row()
        await perform(environment, Drag(middle.x, middle.y, middle.x, middle.y - 100))
        assert await first_row() != top
        await perform(environment, Scroll(middle.x, middle.y, "up", 10))
        assert await first_row() == top
        await perform(environment, MouseDown(middle.x, middle.y), Move(middle.x, middle.y - 50))
        await perform(environment, MouseUp(middle.x, middle.y - 100))
        assert await first_row() != top


async def test_held_keys_and_a_held_finger_end_with_the_episode(backend):
    await check_held_ends(backend, task("note"))


@pytest.fixture
def started(monkeypatch) -> list[PhoneProcess]:
    """Phones that begin to start."""
    phones: list[PhoneProcess] = []
    start = PhoneProcess.start

    async def note_start(phone: PhoneProcess) -> None:
        phones.append(phone)
        await start(phone)

    monkeypatch.setattr(PhoneProcess, "start", note_start)
    return phones


async def test_a_start_that_outlasts_its_episode_serves_the_next(started):
    own = PhoneBackend(config())
    opening = asyncio.create_task(own.open(task("setting")))
    await asyncio.to_thread(wait_until, lambda: started and started[0].alive)
    opening.cancel()
    with pytest.raises(asyncio.CancelledError):
        await opening
    async with playing(own, task("setting")) as environment:
        assert [environment.phone] == started
    await own.stop()
    assert not started[0].alive


async def test_phones_start_with_their_backend_and_end_with_it(started):
    own = PhoneBackend(config())
    await own.start()
    await asyncio.to_thread(wait_until, lambda: len(started) == 2 and all(phone.alive for phone in started))
    await own.stop()
    assert not any(phone.alive for phone in started)


async def test_a_killed_phone_is_a_fault_of_one_episode(backend):
    chosen = task("setting")
    environment = await backend.open(chosen)
    await environment.reset(chosen)
    os.kill(environment.phone.process.pid, signal.SIGKILL)
    with pytest.raises(EnvironmentFault, match="the phone has ended"):
        await environment.step(Click(1, 1), "after")
    folder = environment.phone._folder
    await environment.close()
    assert not folder.exists()
    async with playing(backend, chosen) as another:
        assert await conformance.solve(another, chosen)
        assert await another.evaluate() == 1


async def test_a_hanging_phone_is_a_fault_and_is_ended(backend):
    environment = await backend.open(task("setting"))
    await environment.reset(task("setting"))
    process = psutil.Process(environment.phone.process.pid)
    process.suspend()
    environment.phone.call_timeout_s = 0.5
    with pytest.raises(EnvironmentFault, match="did not answer 'step' within"):
        await environment.step(Click(1, 1), "hangs")
    await environment.close()
    assert not process.is_running()


async def test_what_java_logs_is_no_answer(tmp_path, monkeypatch):
    """Java warns of a full code cache after a hundred episodes, on standard output by default."""
    monkeypatch.setenv("JAVA_TOOL_OPTIONS", "-Xlog:gc*,safepoint*:stdout")
    phone = PhoneProcess(120.0)
    try:
        await phone.start()
        screen = {"qualifiers": config().env.phone.qualifiers, "app": "Settings", "state": make_state()}
        assert (await phone.request("start", 300.0, **screen))["image"]
        assert (await phone.request("state"))["state"] == make_state()
    finally:
        await phone.stop()


async def test_a_line_that_is_no_answer_is_a_fault_that_quotes_it(backend):
    environment = await backend.open(task("setting"))
    await environment.reset(task("setting"))
    environment.phone.process.stdout.feed_data(b"[119.003s][warning][codecache] CodeCache is full.\n")
    with pytest.raises(EnvironmentFault, match=r"no answer to 'step': b'\[119.*CodeCache is full"):
        await environment.step(Click(1, 1), "unread")
    assert environment.faulty
    await environment.close()
    assert not environment.phone.alive


async def test_a_phone_ends_with_its_standard_input(backend):
    """So it does not outlive a worker that was killed."""
    environment = await backend.open(task("note"))
    await environment.reset(task("note"))
    process, folder = environment.phone.process, environment.phone._folder
    status = await asyncio.to_thread(Path(f"/proc/{process.pid}/status").read_text)
    assert "Seccomp:\t2" in status and "NoNewPrivs:\t1" in status, "it is confined"
    process.stdin.close()
    await asyncio.wait_for(process.wait(), 300)
    assert [path.name for path in await asyncio.to_thread(lambda: list(folder.iterdir()))] == ["log"]
    environment.faulty = True
    await environment.close()
    assert not folder.exists()
