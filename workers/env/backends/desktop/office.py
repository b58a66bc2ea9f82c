"""Families of tasks on LibreOffice, each a problem of its seed: a spreadsheet, a text, a presentation.

The oracle plays keys only: to take Calc's accessible elements costs seven core-seconds, more than four resets.
"""

import random

from dart_streams.actions import Hotkey, Type
from workers.env.backends.desktop import documents
from workers.env.backends.desktop.problem import Problem, act, in_turn
from workers.env.environment import Size

LEAST: Size = (1024, 700)
"""The smallest screen on which all of its toolbars are shown."""
PROGRAMS = ("localc", "lowriter", "loimpress")
"""What ``make desktop`` installs, as far as a program says it."""
OFFICE = (
    *("env", "GDK_RENDERING=image", "SAL_USE_VCLPLUGIN=gtk3", "/usr/lib/libreoffice/program/soffice.bin"),
    *("--norestore", "--nologo", "--nolockcheck"),
)
"""The program itself, for its launcher looks for Java first. It draws by itself, not by the X server: 70 MB less."""
QUIET_S = 0.6
"""It updates toolbars, rulers and the sidebar by timers, of 0.3 s at first: until then its window is not finished."""
GOODS = ("Apples", "Bread", "Cheese", "Eggs", "Flour", "Honey", "Milk", "Rice", "Salt", "Tea")
DAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday")
LINES = tuple(
    text.format(day)
    for day in DAYS
    for text in ("We meet on {}.", "The parcel comes on {}.", "Please call me on {}.", "The shop is closed on {}.")
)
TITLES = ("Rivers", "Mountains", "Forests", "Islands", "Deserts", "Lakes", "Coasts", "Valleys")
SAVE = act(Hotkey(("ctrl", "s")))


def edit_sheet(chance: random.Random) -> Problem:
    """A spreadsheet of goods and numbers: a number is to be put into a cell, or a sum."""
    path = "goods.ods"
    goods = chance.sample(GOODS, chance.randrange(3, 7))
    numbers = [chance.randrange(2, 100) for _ in goods]
    end = len(goods) + 1
    if chance.random() < 0.5:
        place, typed, wanted = f"B{end}", f"=SUM(B1:B{len(goods)})", float(sum(numbers))
        instruction = f"Put the sum of B1 to B{len(goods)} into {place} and save the file."
    else:
        place = f"{chance.choice('CDEF')}{chance.randrange(1, 9)}"
        wanted = float(chance.randrange(100, 1000))
        typed = f"{wanted:g}"
        instruction = f"Put {typed} into the cell {place} and save the file."
    before = documents.write_spreadsheet(list(zip(goods, map(float, numbers), strict=True)))
    expected = documents.cells_of(before) | {place: wanted}
    go = act(Hotkey(("ctrl", "shift", "t")))  # to the box with the cell's name
    return Problem(
        instruction=instruction,
        command=(*OFFICE, "--calc", path),
        files={path: before},
        watched=(path,),
        solved=lambda outcome, _: documents.cells_of(outcome.bytes(path)) == expected,
        oracle=in_turn(go, act(Type(f"{place}\n")), act(Type(f"{typed}\n")), SAVE),
        least=LEAST,
        accessible=False,
        quiet_s=QUIET_S,
        programs=PROGRAMS,
    )


def edit_document(chance: random.Random) -> Problem:
    """A text to which a line is to be added."""
    path = "letter.odt"
    *before, wanted = chance.sample(LINES, chance.randrange(2, 5))
    return Problem(
        instruction=f'Add the line "{wanted}" at the end and save the file.',
        command=(*OFFICE, "--writer", path),
        files={path: documents.write_text_document(before)},
        watched=(path,),
        solved=lambda outcome, _: documents.paragraphs_of(outcome.bytes(path)) == [*before, wanted],
        oracle=in_turn(act(Hotkey(("ctrl", "end"))), act(Type(f"\n{wanted}")), SAVE),
        least=LEAST,
        accessible=False,
        quiet_s=QUIET_S,
        programs=PROGRAMS,
    )


def edit_slide(chance: random.Random) -> Problem:
    """A presentation whose title is to be replaced."""
    path = "talk.odp"
    before, wanted = chance.sample(TITLES, 2)
    return Problem(
        instruction=f'Change the title to "{wanted}" and save the file.',
        command=(*OFFICE, "--impress", path),
        files={path: documents.write_presentation(before)},
        watched=(path,),
        solved=lambda outcome, _: documents.paragraphs_of(outcome.bytes(path)) == [wanted],
        oracle=in_turn(
            act(Hotkey(("tab",))),
            act(Hotkey(("f2",))),
            act(Hotkey(("ctrl", "a"))),
            act(Type(wanted)),
            act(Hotkey(("escape",))),
            SAVE,
        ),
        least=LEAST,
        accessible=False,
        quiet_s=QUIET_S,
        programs=PROGRAMS,
    )
