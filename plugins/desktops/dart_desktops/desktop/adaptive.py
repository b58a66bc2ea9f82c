"""Families of tasks on adaptive GNOME applications, which fit a phone's screen; a seed determines each task.

The file manager Portfolio, and the settings of dconf Editor. Both use GTK 3, whose accessibility tree has places.
"""

import configparser
import random
from collections.abc import Callable
from typing import Any

from dart_desktops.desktop import office
from dart_desktops.desktop.problem import PHONE, Content, Elements, Problem, SessionOutcome, find, in_turn, press
from dart_streams.actions import Action, Click, Hotkey, Type
from workers.env.environment import Size

LEAST: Size = PHONE
FOLDER = "files"
TRASH = ".local/share/Trash/files"
SETTINGS = ".config/glib-2.0/settings/keyfile"
"""File of all settings: the backend of GSettings that writes text."""
OWN_GROUP = "ca/desrt/dconf-editor"
"""Settings of the editor itself. It saves each change at once, and shows no warning."""
STYLE = {
    ".config/gtk-3.0/settings.ini": """[Settings]
gtk-font-name=Sans 9
gtk-cursor-blink=false
gtk-enable-animations=false
gtk-double-click-time=250
gtk-long-press-time=40
gtk-overlay-scrolling=false
gtk-recent-files-enabled=false
gtk-decoration-layout=:
""",
    ".config/gtk-3.0/gtk.css": """scrollbar, scrollbar * {
    min-width: 0; min-height: 0; margin: 0; padding: 0; border: none;
}
""",
    ".config/mimeapps.list": "[Default Applications]\ntext/plain=org.xfce.mousepad.desktop\n",
}
"""Style of a phone: no buttons of windows and no scroll bars, which make Portfolio wider than the screen. Overlaid ones
would fade with time. A long press is short, as the screen waits for it. A tapped file opens in a small editor."""
OF_PHONE: dict[str, Any] = {"phone": True, "least": LEAST, "quiet_s": 0.3}
LINE = "A note on {}.\n"
FILES = 4
FIRST_TOOL = 2
"""Number of the first tool of a selection, from the left: two buttons before it select all or nothing."""
DELETE, RENAME = FIRST_TOOL, FIRST_TOOL + 1
SWITCHES = {
    "lockdown": (
        *("disable-application-handlers", "disable-command-line", "disable-lock-screen", "disable-log-out"),
        *("disable-print-setup", "disable-printing", "disable-save-to-disk", "disable-show-password"),
    ),
    "media-handling": ("automount", "automount-open", "autorun-never"),
    "sound": ("allow-volume-above-100-percent", "event-sounds", "input-feedback-sounds"),
}
"""Settings that are true or false, by the last part of their folder; each is shown without scrolling."""
NUMBERS = (
    ("background", "picture-opacity"),
    ("privacy", "old-files-age"),
    ("screensaver", "lock-delay"),
    ("session", "idle-delay"),
)
"""Settings that are numbers."""
CHOICES = (
    ("background", "picture-options", ("none", "wallpaper", "centered", "scaled", "stretched", "zoom", "spanned")),
    ("background", "color-shading-type", ("horizontal", "vertical", "solid")),
    ("screensaver", "color-shading-type", ("horizontal", "vertical", "solid")),
)
"""Settings with a value of several."""


def make_folder(rng: random.Random) -> Problem:
    """Make a folder of files, in which a folder is to be made."""
    names, _, target = make_names(rng)
    path = f"{FOLDER}/{target}"
    return browse_files(
        f'Make a folder "{target}".',
        names,
        expected={FOLDER: sorted([*names, target]), path: []},
        oracle=in_turn(press_tool(-1), Type(f"{target}\n")),
    )


def rename(rng: random.Random) -> Problem:
    """Make a folder of files, of which one is to be renamed."""
    names, chosen, word = make_names(rng)
    target = f"{word.lower()}.txt"
    return browse_files(
        f"Rename {chosen} to {target}.",
        names,
        expected={FOLDER: sorted({*names, target} - {chosen}), f"{FOLDER}/{target}": LINE.format(chosen)},
        oracle=in_turn(hold(chosen), press_tool(RENAME), Hotkey(("ctrl", "a")), Type(f"{target}\n")),
    )


def delete_file(rng: random.Random) -> Problem:
    """Make a folder of files, of which one is to be deleted, without the trash."""
    names, chosen, _ = make_names(rng)
    return browse_files(
        f"Delete {chosen} permanently.",
        names,
        expected={FOLDER: sorted(set(names) - {chosen})},
        unexpected=TRASH,
        oracle=in_turn(hold(chosen), press_tool(DELETE), press("push button")),
    )


def switch(rng: random.Random) -> Problem:
    """Make a folder of settings, of which one is to be true or false."""
    folder = rng.choice(list(SWITCHES))
    key = rng.choice(SWITCHES[folder])
    target = rng.choice(("true", "false"))
    others = {other: rng.choice(("true", "false")) for other in SWITCHES[folder]}
    before = {**others, key: "false" if target == "true" else "true"}
    choose = press("toggle button", target.title())
    return edit_settings(f"Set {key} to {target}.", folder, before, {key: target}, in_turn(open_row(key), choose))


def number(rng: random.Random) -> Problem:
    """Make a folder of settings, of which one is to be a number."""
    folder, key = rng.choice(NUMBERS)
    before, target = rng.sample(range(10, 100), 2)
    return edit_settings(
        f"Set {key} to {target}.",
        folder,
        {key: str(before)},
        {key: str(target)},
        in_turn(open_row(key), press("spin button"), Hotkey(("ctrl", "a")), Type(f"{target}\n")),
    )


def choose_value(rng: random.Random) -> Problem:
    """Make a folder of settings, of which one is to be a named value."""
    folder, key, values = rng.choice(CHOICES)
    before, target = rng.sample(values, 2)
    return edit_settings(
        f"Set {key} to {target}.",
        folder,
        {key: f"'{before}'"},
        {key: f"'{target}'"},
        in_turn(open_row(key), press("toggle button", f"'{before}'"), press("radio button", f"'{target}'")),
    )


FAMILIES: dict[str, Callable[[random.Random], Problem]] = {
    "folder": make_folder,
    "rename": rename,
    "discard": delete_file,
    "switch": switch,
    "number": number,
    "choice": choose_value,
}


def make_names(rng: random.Random) -> tuple[list[str], str, str]:
    """Return names of files, the one that the task may be about, and a further title."""
    *titles, further = rng.sample(office.TITLES, FILES + 1)
    names = [f"{title.lower()}.txt" for title in titles]
    return names, rng.choice(names), further


def browse_files(
    instruction: str, names: list[str], *, expected: dict[str, Content], unexpected: str = "", **keywords: Any
) -> Problem:
    """Return a task of the file manager, which is solved if paths have the ``expected`` names or texts."""

    def solved(outcome: SessionOutcome, _: Elements) -> bool:
        found = {
            path: outcome.text(path) if isinstance(content, str) else outcome.state.get(path)
            for path, content in expected.items()
        }
        return found == expected and not outcome.state.get(unexpected)

    return Problem(
        instruction=instruction,
        command=("dev.tchx84.Portfolio", FOLDER),
        programs=("dev.tchx84.Portfolio",),
        files={**STYLE, **{f"{FOLDER}/{name}": LINE.format(name) for name in names}},
        watched=(*expected, *([unexpected] if unexpected else [])),
        solved=solved,
        **keywords,
        **OF_PHONE,
    )


def edit_settings(
    instruction: str, folder: str, before: dict[str, str], changes: dict[str, str], oracle: Any
) -> Problem:
    """Return a task of the settings' editor, which is solved by the ``changes`` and no other."""
    group = f"org/gnome/desktop/{folder}"
    own = {"behaviour": "'unsafe'", "show-warning": "false", "restore-view": "false"}
    return Problem(
        instruction=instruction,
        command=("env", "GSETTINGS_BACKEND=keyfile", "dconf-editor", f"/{group}/"),
        programs=("dconf-editor",),
        files={**STYLE, SETTINGS: write_settings({group: before, OWN_GROUP: own})},
        watched=(SETTINGS,),
        solved=lambda outcome, _: read_settings(outcome.text(SETTINGS) or "") == {group: {**before, **changes}},
        oracle=oracle,
        **OF_PHONE,
    )


def write_settings(groups: dict[str, dict[str, str]]) -> str:
    """Return the text of a file of settings by group and key."""
    lines = [(f"[{group}]", *(f"{key}={value}" for key, value in values.items())) for group, values in groups.items()]
    return "".join(f"{line}\n" for group in lines for line in group)


def read_settings(text: str) -> dict[str, dict[str, str]]:
    """Return the settings of a file by group and key, without the editor's own; none if it is damaged."""
    parser = configparser.RawConfigParser(delimiters=("=",), comment_prefixes=("#",), strict=False)
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    try:
        parser.read_string(text)
    except configparser.Error:
        return {}
    return {group: dict(parser[group]) for group in parser.sections() if group != OWN_GROUP}


def hold(name: str) -> Callable[[Elements], Action]:
    """Return a function that presses long on a file."""

    def action(elements: Elements) -> Action:
        click = find(elements, "table cell", name).click()
        return Click(click.x, click.y, "right")

    return action


def press_tool(place: int) -> Callable[[Elements], Action]:
    """Return a function that presses a tool below the files, numbered from the left, or from the right if negative."""

    def action(elements: Elements) -> Action:
        buttons = [element for element in elements if element.role == "push button" and element.box[1] > PHONE[1] // 2]
        lowest = max((element.box[1] for element in buttons), default=0)
        shown = sorted((element for element in buttons if element.box[1] == lowest), key=lambda element: element.box[0])
        return shown[place].click()

    return action


def open_row(key: str) -> Callable[[Elements], Action]:
    """Return a function that opens a setting of the list."""
    return press("label", key)
