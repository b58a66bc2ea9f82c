"""Windows of the session by wmctrl, which OSWorld's server calls too, so that names match the same windows."""

from pathlib import PurePath

from dart_desktops.desktop.guest import commands

FRAMELESS = "/opt/frameless.xml"
"""Configuration of the window manager by which windows fill the screen without frames, as on a phone."""
LIMIT_S = 20.0
OPEN_S = 60.0
"""Time limit for the window of an opened file; OSWorld's server waits for half an hour."""
POLL_INTERVAL_S = 0.2


def list_windows() -> "list[tuple[str, str]]":
    """Return id and line (id, desktop, host, title) of each window that the window manager lists."""
    listed = commands.run(["wmctrl", "-l"], LIMIT_S).output
    return [(line.split()[0], line) for line in listed.splitlines() if line.strip()]


def activate_file_window(name: str) -> bool:
    """Activate the window with a file's name or stem in its title; return False if there is none."""
    for identifier, line in list_windows():
        if name in line or PurePath(name).stem in line:
            return commands.run(["wmctrl", "-i", "-a", identifier], LIMIT_S).returncode == 0
    return False


def act_on_window(letter: str, name: str, strict: bool, by_class: bool) -> None:
    """Activate (``a``) or close (``c``) the first window of a name, if any.

    Without ``strict``, a part of the name matches, ignoring case.
    """
    flags = f"-{'x' if by_class else ''}{'F' if strict else ''}{letter}"
    commands.run(["wmctrl", flags, name], LIMIT_S)
