"""Families of small tasks on the phone's applications; a seed determines each task."""

import random
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from dart_desktops.desktop.families import NAMES, WORDS
from dart_desktops.desktop.problem import Elements, MissingElement, Next, find, in_turn, press
from dart_streams.actions import Action, Click, Drag, Type
from workers.env.environment import EnvironmentFault

State = Mapping[str, Any]
"""What the applications keep, by application, as ``Storage.java`` reads it."""
SETTINGS = ("Wi-Fi", "Bluetooth", "Airplane mode", "Location", "Hotspot")
SIZES = ("Small", "Medium", "Large")
GREETINGS = ("Hello", "Call me", "See you", "Thanks", "On my way")
FEW, MANY = 5, 8
"""Messages that fit a screen, and those of the longest list."""


class PhoneProblem(msgspec.Struct, frozen=True, kw_only=True):
    """One task: an application, the state that all begin with, and the only one that is worth 1."""

    instruction: str
    app: str
    start: State
    goal: State
    oracle: Next


def make_state(**kept: Any) -> State:
    """Return the state of applications that keep nothing else."""
    settings = dict.fromkeys(SETTINGS, False)
    return {"settings": settings, "contacts": [], "alarms": [], "messages": [], "notes": [], "survey": None, **kept}


def switch_setting(rng: random.Random) -> PhoneProblem:
    """Make settings, of which one is to be switched."""
    before = {name: rng.random() < 0.5 for name in SETTINGS}
    target = rng.choice(SETTINGS)
    return PhoneProblem(
        instruction=f"Turn {target} {'off' if before[target] else 'on'}.",
        app="Settings",
        start=make_state(settings=before),
        goal=make_state(settings={**before, target: not before[target]}),
        oracle=in_turn(press("Switch", target)),
    )


def add_contact(rng: random.Random) -> PhoneProblem:
    """Make contacts, to which one is to be added."""
    *others, name = rng.sample(NAMES, 3)
    before = [[other, make_number(rng)] for other in others]
    phone = make_number(rng)
    return PhoneProblem(
        instruction=f"Add the contact {name} with phone {phone}.",
        app="Contacts",
        start=make_state(contacts=before),
        goal=make_state(contacts=[*before, [name, phone]]),
        oracle=in_turn(
            press("Button", "Add contact"), Type(name), press("EditText", "Phone"), Type(phone), press("Button", "Save")
        ),
    )


def set_alarm(rng: random.Random) -> PhoneProblem:
    """Make alarms, to which one is to be added."""
    first, target = rng.sample([f"{hour:02d}:{minute:02d}" for hour in range(24) for minute in range(0, 60, 5)], 2)
    before = [[first, rng.choice(("on", "off"))]]
    hour, minute = target.split(":")
    return PhoneProblem(
        instruction=f"Set an alarm at {target}.",
        app="Clock",
        start=make_state(alarms=before),
        goal=make_state(alarms=[*before, [target, "on"]]),
        oracle=in_turn(
            press("Button", "Add alarm"), Type(hour), press("EditText", "Minute"), Type(minute), press("Button", "Save")
        ),
    )


def write_note(rng: random.Random) -> PhoneProblem:
    """Make notes, to which one is to be added."""
    *before, target = rng.sample(WORDS, 3)
    return PhoneProblem(
        instruction=f'Write the note "{target}" and save it.',
        app="Notes",
        start=make_state(notes=before),
        goal=make_state(notes=[*before, target]),
        oracle=in_turn(press("Button", "New note"), Type(target), press("Button", "Save")),
    )


def fill_survey(rng: random.Random) -> PhoneProblem:
    """Make a form with a field, a choice and a box."""
    name, size, news = rng.choice(NAMES), rng.choice(SIZES), rng.random() < 0.5
    box = [press("CheckBox", "Newsletter")] if news else []
    return PhoneProblem(
        instruction=f"Send: {name}, {size}, {'with' if news else 'no'} newsletter.",
        app="Survey",
        start=make_state(),
        goal=make_state(survey={"name": name, "size": size, "newsletter": news}),
        oracle=in_turn(Type(name), press("RadioButton", size), *box, press("Button", "Send")),
    )


def delete_message(rng: random.Random) -> PhoneProblem:
    """Make a list that fits the screen, of which one row is to be deleted by its menu."""
    names = rng.sample(NAMES, FEW)
    return make_deletion(rng, names, rng.choice(names))


def find_message(rng: random.Random) -> PhoneProblem:
    """Make a list that does not fit the screen; the row to be deleted is below it."""
    names = rng.sample([f"{name} {word}" for name in NAMES for word in WORDS], 3 * MANY)
    return make_deletion(rng, names, rng.choice(names[-MANY:]))


def make_deletion(rng: random.Random, names: list[str], target: str) -> PhoneProblem:
    """Make a list of messages, of which that of ``target`` is to be deleted."""
    before = [[name, rng.choice(GREETINGS)] for name in names]
    [row] = [": ".join(message) for message in before if message[0] == target]
    return PhoneProblem(
        instruction=f"Delete the message of {target}.",
        app="Messages",
        start=make_state(messages=before),
        goal=make_state(messages=[message for message in before if message[0] != target]),
        oracle=lambda _, elements: delete_row(row, elements),
    )


def delete_row(row: str, elements: Elements) -> Action | None:
    """Return the next action that deletes a row: a swipe until it is shown, a long press, its menu."""
    if any(element.name == "Delete" for element in elements):
        return find(elements, "TextView", "Delete").click()
    rows = [element for element in elements if element.role == "ListView"]
    shown = [element for element in elements if element.name == row and element.box[3] > 0]
    if shown:
        place = shown[0].click()
        return Click(place.x, place.y, "right")
    if not rows:
        raise MissingElement(f"no list with {row!r} is shown")
    left, top, width, height = rows[0].box
    middle = left + width // 2
    return Drag(middle, top + height * 9 // 10, middle, top + height // 10)


FAMILIES: dict[str, Callable[[random.Random], PhoneProblem]] = {
    "setting": switch_setting,
    "contact": add_contact,
    "alarm": set_alarm,
    "note": write_note,
    "survey": fill_survey,
    "message": delete_message,
    "search": find_message,
}


def make_number(rng: random.Random) -> str:
    """Make a phone number."""
    return f"555{rng.randrange(100, 1000)}"


def problem_of(family: str, seed: int) -> PhoneProblem:
    """Return the problem of a family and a seed; raise EnvironmentFault for an unknown family."""
    if family not in FAMILIES:
        raise EnvironmentFault(f"no phone family {family!r}: there are {', '.join(FAMILIES)}")
    return FAMILIES[family](random.Random(f"{family}#{seed}"))
