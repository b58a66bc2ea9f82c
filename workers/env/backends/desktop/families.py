"""Families of small tasks on real applications, each a problem of its seed: dialogs, forms, lists, an editor, ..."""

import random
from collections.abc import Callable

from dart_streams.actions import Hotkey, Type
from workers.env.backends.desktop import office
from workers.env.backends.desktop.problem import Problem, SessionOutcome, act, in_turn, press
from workers.env.environment import EnvironmentFault

ANSWERS = (("Yes", "No"), ("Save", "Discard"), ("Accept", "Decline"), ("Keep", "Delete"), ("Start", "Cancel"))
WORDS = ("Apple", "Pear", "Plum", "Fig", "Lemon", "Cherry", "Grape", "Melon", "Olive", "Quince")
NAMES = ("Ann", "Bob", "Eve", "Ida", "Kim", "Leo", "Max", "Uma")
TOWNS = ("Rome", "Oslo", "Bern", "Lima", "Kyiv", "Pune", "Faro", "Graz")
ROWS = 4


def answer(chance: random.Random) -> Problem:
    """A question with two buttons, of which one is named."""
    names = list(chance.choice(ANSWERS))
    chance.shuffle(names)
    wanted = chance.randrange(2)
    labels = ("--ok-label", names[0], "--cancel-label", names[1])
    return Problem(
        instruction=f'Press "{names[wanted]}".',
        command=("zenity", "--question", "--no-wrap", "--text", "What now?", *labels),
        solved=lambda outcome, _: outcome.exit_code == wanted,
        oracle=in_turn(press("push button", names[wanted])),
    )


def choose(chance: random.Random) -> Problem:
    """A list, one row of which is to be selected and confirmed."""
    rows = chance.sample(WORDS, ROWS)
    wanted = chance.choice(rows)
    return Problem(
        instruction=f'Select "{wanted}" and press OK.',
        command=("zenity", "--list", "--hide-header", "--text", "", "--column", "Fruit", *rows),
        solved=lambda outcome, _: printed_line(outcome, wanted),
        oracle=in_turn(press("table cell", wanted), press("push button", "OK")),
    )


def tick(chance: random.Random) -> Problem:
    """A list of boxes, two of which are to be ticked."""
    rows = chance.sample(WORDS, ROWS)
    boxes = sorted(chance.sample(range(ROWS), 2))
    wanted = [rows[box] for box in boxes]
    cells = [argument for row in rows for argument in ("FALSE", row)]
    columns = ("--column", "", "--column", "")
    return Problem(
        instruction=f"Tick {wanted[0]} and {wanted[1]} and press OK.",
        command=("zenity", "--list", "--checklist", "--hide-header", "--text", "", *columns, *cells),
        solved=lambda outcome, _: printed_line(outcome, "|".join(wanted)),
        oracle=in_turn(*(press("table cell", number=2 * box) for box in boxes), press("push button", "OK")),
    )


def enter(chance: random.Random) -> Problem:
    """A field for a word."""
    wanted = chance.choice(WORDS).lower()
    return Problem(
        instruction=f'Type "{wanted}" and press OK.',
        command=("zenity", "--entry", "--text", "Your word"),
        solved=lambda outcome, _: printed_line(outcome, wanted),
        oracle=in_turn(act(Type(wanted)), press("push button", "OK")),
    )


def fill_form(chance: random.Random) -> Problem:
    """Two fields, each for its own text."""
    name, town = chance.choice(NAMES), chance.choice(TOWNS)
    return Problem(
        instruction=f"Name: {name}, town: {town}. Press OK.",
        command=("zenity", "--forms", "--text", "", "--add-entry", "Name", "--add-entry", "Town"),
        solved=lambda outcome, _: printed_line(outcome, f"{name}|{town}"),
        oracle=in_turn(
            press("text", number=0),
            act(Type(name)),
            press("text", number=1),
            act(Type(town)),
            press("push button", "OK"),
        ),
    )


def edit(chance: random.Random) -> Problem:
    """A text in an editor, to which a word is to be added."""
    first, wanted = chance.sample(WORDS, 2)
    path = "note.txt"
    return Problem(
        instruction=f'Put the word "{wanted}" before the text and save it.',
        command=("mousepad", "--disable-server", path),
        files={path: f"{first}\n"},
        watched=(path,),
        solved=lambda outcome, _: outcome.text(path) == f"{wanted}{first}\n",
        oracle=in_turn(act(Type(wanted)), act(Hotkey(("ctrl", "s")))),
    )


def remove(chance: random.Random) -> Problem:
    """A folder in a file manager, of which one file is to be deleted."""
    names = [f"{word.lower()}.txt" for word in chance.sample(WORDS, ROWS)]
    wanted = chance.choice(names)
    left = sorted(set(names) - {wanted})
    return Problem(
        instruction=f"Delete {wanted}.",
        command=("pcmanfm", "--no-desktop", "files"),
        files={f"files/{name}": "" for name in names},
        watched=("files",),
        solved=lambda outcome, _: outcome.state["files"] == left,
        oracle=in_turn(
            act(Type(wanted)), act(Hotkey(("escape",))), act(Hotkey(("shift", "delete"))), act(Hotkey(("enter",)))
        ),
    )


def calculate(chance: random.Random) -> Problem:
    """A calculator that is to show a product; not all of its buttons are on a small screen, but it takes keys too."""
    one, other = chance.randrange(2, 10), chance.randrange(10, 100)
    return Problem(
        instruction=f"Calculate {one}*{other}.",
        command=("galculator",),
        solved=lambda _, elements: any(element.text.strip() == str(one * other) for element in elements),
        oracle=in_turn(act(Type(f"{one}*{other}")), act(Hotkey(("enter",)))),
        reads_elements=True,
    )


FAMILIES: dict[str, Callable[[random.Random], Problem]] = {
    "answer": answer,
    "choose": choose,
    "tick": tick,
    "enter": enter,
    "form": fill_form,
    "edit": edit,
    "remove": remove,
    "calculate": calculate,
    "sheet": office.edit_sheet,
    "document": office.edit_document,
    "slide": office.edit_slide,
}


def printed_line(outcome: SessionOutcome, wanted: str) -> bool:
    """Return whether the application was confirmed, and wrote this line."""
    return outcome.exit_code == 0 and outcome.output.rstrip("\n") == wanted


def problem_of(family: str, seed: int) -> Problem:
    """Return the problem of a family with a seed; raise EnvironmentFault if there is no such family."""
    if family not in FAMILIES:
        raise EnvironmentFault(f"no desktop family {family!r}: there are {', '.join(FAMILIES)}")
    return FAMILIES[family](random.Random(f"{family}#{seed}"))
