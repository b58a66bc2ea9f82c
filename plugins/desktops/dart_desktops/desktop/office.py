"""Families of tasks on LibreOffice: a spreadsheet, a text, a presentation; a seed determines each task.

The oracle plays keys only: Calc's accessible elements cost seven core-seconds, more than four resets.
"""

import random
from typing import Any

from dart_desktops.desktop import documents
from dart_desktops.desktop.problem import Problem, in_turn
from dart_streams.actions import Hotkey, Type
from workers.env.environment import Size

LEAST: Size = (1024, 700)
"""Smallest screen that shows all toolbars."""
PROGRAMS = ("localc", "lowriter", "loimpress")
"""Programs that ``make desktop`` installs."""
OFFICE = (
    *("env", "GDK_RENDERING=image", "SAL_USE_VCLPLUGIN=gtk3", "/usr/lib/libreoffice/program/soffice.bin"),
    *("--norestore", "--nologo", "--nolockcheck"),
)
"""The program without its launcher, which looks for Java first. Client-side drawing takes 70 MB less."""
QUIET_S = 0.6
"""Timers of 0.3 s update toolbars, rulers and the sidebar; the window is unfinished before."""
OFFICE_SETTINGS: dict[str, Any] = {"least": LEAST, "accessible": False, "quiet_s": QUIET_S, "programs": PROGRAMS}
GOODS = ("Apples", "Bread", "Cheese", "Eggs", "Flour", "Honey", "Milk", "Rice", "Salt", "Tea")
DAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday")
LINES = tuple(
    text.format(day)
    for day in DAYS
    for text in ("We meet on {}.", "The parcel comes on {}.", "Please call me on {}.", "The shop is closed on {}.")
)
TITLES = ("Rivers", "Mountains", "Forests", "Islands", "Deserts", "Lakes", "Coasts", "Valleys")
SAVE = Hotkey(("ctrl", "s"))


def edit_sheet(rng: random.Random) -> Problem:
    """Make a spreadsheet of goods and numbers, into which a number or a sum is to be put."""
    path = "goods.ods"
    goods = rng.sample(GOODS, rng.randrange(3, 7))
    numbers = [rng.randrange(2, 100) for _ in goods]
    end = len(goods) + 1
    if rng.random() < 0.5:
        place, typed, target = f"B{end}", f"=SUM(B1:B{len(goods)})", float(sum(numbers))
        instruction = f"Put the sum of B1 to B{len(goods)} into {place} and save the file."
    else:
        place = f"{rng.choice('CDEF')}{rng.randrange(1, 9)}"
        target = float(rng.randrange(100, 1000))
        typed = f"{target:g}"
        instruction = f"Put {typed} into the cell {place} and save the file."
    before = documents.write_spreadsheet(list(zip(goods, map(float, numbers), strict=True)))
    expected = documents.cells_of(before) | {place: target}
    go = Hotkey(("ctrl", "shift", "t"))  # Moves the focus to the name box.
    return Problem(
        instruction=instruction,
        command=(*OFFICE, "--calc", path),
        office="calc",
        files={path: before},
        watched=(path,),
        solved=lambda outcome, _: documents.cells_of(outcome.bytes(path)) == expected,
        oracle=in_turn(go, Type(f"{place}\n"), Type(f"{typed}\n"), SAVE),
        **OFFICE_SETTINGS,
    )


def edit_document(rng: random.Random) -> Problem:
    """Make a text, to which a line is to be added."""
    path = "letter.odt"
    *before, target = rng.sample(LINES, rng.randrange(2, 5))
    return Problem(
        instruction=f'Add the line "{target}" at the end and save the file.',
        command=(*OFFICE, "--writer", path),
        office="writer",
        files={path: documents.write_text_document(before)},
        watched=(path,),
        solved=lambda outcome, _: documents.paragraphs_of(outcome.bytes(path)) == [*before, target],
        oracle=in_turn(Hotkey(("ctrl", "end")), Type(f"\n{target}"), SAVE),
        **OFFICE_SETTINGS,
    )


def edit_slide(rng: random.Random) -> Problem:
    """Make a presentation, whose title is to be replaced."""
    path = "talk.odp"
    before, target = rng.sample(TITLES, 2)
    return Problem(
        instruction=f'Change the title to "{target}" and save the file.',
        command=(*OFFICE, "--impress", path),
        office="impress",
        files={path: documents.write_presentation(before)},
        watched=(path,),
        solved=lambda outcome, _: documents.paragraphs_of(outcome.bytes(path)) == [target],
        oracle=in_turn(
            Hotkey(("tab",)), Hotkey(("f2",)), Hotkey(("ctrl", "a")), Type(target), Hotkey(("escape",)), SAVE
        ),
        **OFFICE_SETTINGS,
    )
