"""Families of small tasks on real applications (dialogs, forms, lists, an editor); a seed determines each task."""

import random
from collections.abc import Callable

from dart_desktops.desktop import adaptive, office
from dart_desktops.desktop.problem import Problem, SessionOutcome, in_turn, press
from dart_streams.actions import Hotkey, Type
from workers.env.environment import EnvironmentFault

ANSWERS = (("Yes", "No"), ("Save", "Discard"), ("Accept", "Decline"), ("Keep", "Delete"), ("Start", "Cancel"))
WORDS = ("Apple", "Pear", "Plum", "Fig", "Lemon", "Cherry", "Grape", "Melon", "Olive", "Quince")
NAMES = ("Ann", "Bob", "Eve", "Ida", "Kim", "Leo", "Max", "Uma")
TOWNS = ("Rome", "Oslo", "Bern", "Lima", "Kyiv", "Pune", "Faro", "Graz")
ROWS = 4


def answer(rng: random.Random) -> Problem:
    """Make a question with two buttons, which print their names; the instruction names one."""
    names = list(rng.choice(ANSWERS))
    rng.shuffle(names)
    target = names[rng.randrange(2)]
    buttons = [argument for name in names for argument in ("--extra-button", name)]
    return Problem(
        instruction=f'Press "{target}".',
        command=("zenity", "--question", "--no-wrap", "--text", "What now?", "--switch", *buttons),
        solved=lambda outcome, _: outcome.output.rstrip("\n") == target,
        oracle=in_turn(press("push button", target)),
    )


def choose(rng: random.Random) -> Problem:
    """Make a list, of which one row is to be selected and confirmed."""
    rows = rng.sample(WORDS, ROWS)
    target = rng.choice(rows)
    return Problem(
        instruction=f'Select "{target}" and press OK.',
        command=("zenity", "--list", "--hide-header", "--text", "", "--column", "Fruit", *rows),
        solved=lambda outcome, _: printed_line(outcome, target),
        oracle=in_turn(press("table cell", target), press("push button", "OK")),
    )


def tick(rng: random.Random) -> Problem:
    """Make a list of boxes, of which two are to be ticked."""
    rows = rng.sample(WORDS, ROWS)
    boxes = sorted(rng.sample(range(ROWS), 2))
    target = [rows[box] for box in boxes]
    cells = [argument for row in rows for argument in ("FALSE", row)]
    columns = ("--column", "", "--column", "")
    return Problem(
        instruction=f"Tick {target[0]} and {target[1]} and press OK.",
        command=("zenity", "--list", "--checklist", "--hide-header", "--text", "", *columns, *cells),
        solved=lambda outcome, _: printed_line(outcome, "|".join(target)),
        oracle=in_turn(*(press("table cell", number=2 * box) for box in boxes), press("push button", "OK")),
    )


def enter(rng: random.Random) -> Problem:
    """Make a field, into which a word is to be typed."""
    target = rng.choice(WORDS).lower()
    return Problem(
        instruction=f'Type "{target}" and press OK.',
        command=("zenity", "--entry", "--text", "Your word"),
        solved=lambda outcome, _: printed_line(outcome, target),
        oracle=in_turn(Type(target), press("push button", "OK")),
    )


def fill_form(rng: random.Random) -> Problem:
    """Make a form with two fields."""
    name, town = rng.choice(NAMES), rng.choice(TOWNS)
    return Problem(
        instruction=f"Name: {name}, town: {town}. Press OK.",
        command=("zenity", "--forms", "--text", "", "--add-entry", "Name", "--add-entry", "Town"),
        solved=lambda outcome, _: printed_line(outcome, f"{name}|{town}"),
        oracle=in_turn(
            press("text", number=0), Type(name), press("text", number=1), Type(town), press("push button", "OK")
        ),
    )


def edit(rng: random.Random) -> Problem:
    """Make a text in an editor, to which a word is to be added."""
    first, target = rng.sample(WORDS, 2)
    path = "note.txt"
    return Problem(
        instruction=f'Put the word "{target}" before the text and save it.',
        command=("mousepad", "--disable-server", path),
        files={path: f"{first}\n"},
        watched=(path,),
        solved=lambda outcome, _: outcome.text(path) == f"{target}{first}\n",
        oracle=in_turn(Type(target), Hotkey(("ctrl", "s"))),
    )


def remove(rng: random.Random) -> Problem:
    """Make a folder in a file manager, of which one file is to be deleted or put into the trash."""
    names = [f"{word.lower()}.txt" for word in rng.sample(WORDS, ROWS)]
    target = rng.choice(names)
    left, copies = sorted(set(names) - {target}), f"copies of {target}"
    return Problem(
        instruction=f"Delete {target}.",
        command=("pcmanfm", "--no-desktop", "files"),
        files={f"files/{name}": name for name in names},
        watched=("files", copies),
        solved=lambda outcome, _: (outcome.state["files"], outcome.state[copies]) == (left, []),
        oracle=in_turn(Type(target), Hotkey(("escape",)), Hotkey(("shift", "delete")), Hotkey(("enter",))),
    )


def calculate(rng: random.Random) -> Problem:
    """Make a calculator that is to show a product; it takes keys, as a small screen lacks some of its buttons."""
    left_factor, right_factor = rng.randrange(2, 10), rng.randrange(10, 100)
    return Problem(
        instruction=f"Calculate {left_factor}*{right_factor}.",
        command=("galculator",),
        solved=lambda _, elements: any(element.text.strip() == str(left_factor * right_factor) for element in elements),
        oracle=in_turn(Type(f"{left_factor}*{right_factor}"), Hotkey(("enter",))),
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


def printed_line(outcome: SessionOutcome, target: str) -> bool:
    """Return whether the application was confirmed and printed this line."""
    return outcome.exit_code == 0 and outcome.output.rstrip("\n") == target


def problem_of(family: str, seed: int) -> Problem:
    """Return the problem of a family and a seed, also of a phone; raise EnvironmentFault for an unknown family."""
    known = {**FAMILIES, **adaptive.FAMILIES}
    if family not in known:
        raise EnvironmentFault(f"no desktop family {family!r}: there are {', '.join(known)}")
    return known[family](random.Random(f"{family}#{seed}"))
