"""Solutions of single tasks by keys and pointer, or by commands in a terminal.

Most tasks of documents compare the result with a finished document. Finished placeholders (``placeholders``) begin
with one more word, so one solution fits all of them.
"""

import shlex
from collections.abc import AsyncIterator, Awaitable, Callable

import msgspec

from dart_streams.actions import Action, Hotkey, Type, Wait
from workers.env.backends.osworld.machine import Machine, run_command
from workers.env.backends.osworld.pyautogui_programs import build_program
from workers.env.backends.osworld.settling import wait_idle
from workers.env.backends.osworld.tasks import CLOUD, OsworldTask
from workers.env.environment import EnvironmentFault

WORD = "Pear"
"""First word of finished placeholder documents."""
REST_S = 15.0
OFFICE = frozenset({"libreoffice_calc", "libreoffice_writer"})
COMPARISONS = frozenset({"compare_table", "compare_docx_files", "compare_docx_files_and_ignore_new_lines"})
"""Metrics that consider a placeholder equal to a document saved by LibreOffice."""
TERMINAL = Hotkey(("ctrl", "alt", "t"))
"""Keys that open a terminal in OSWorld's image."""
MAX_WAITS = 20
"""Maximum number of pauses until the terminal opens or closes."""
HasTerminal = Callable[[], Awaitable[bool]]
"""Returns whether a terminal window is open."""


class Solution(msgspec.Struct, frozen=True):
    """A solution by input actions or by shell commands."""

    actions: tuple[Action, ...] = ()
    commands: tuple[str, ...] = ()

    async def solve(self, machine: Machine) -> None:
        """Execute the solution: each action when the machine is idle, commands without a terminal."""
        for action in self.actions:
            await wait_idle(machine, REST_S)
            await run_command(machine, ["python", "-c", build_program(action) or ""], f"the oracle's {action}")
        for command in self.commands:
            await run_command(machine, command, f"the oracle's {command!r}", shell=True)
        await wait_idle(machine, REST_S)

    async def demonstrate(self, has_terminal: HasTerminal) -> AsyncIterator[Action]:
        """Yield the solution as actions, commands in a terminal that is closed afterwards."""
        for action in self.actions:
            yield action
        if not self.commands:
            return
        yield TERMINAL
        async for action in wait_for_terminal(has_terminal, expected=True):
            yield action
        for command in self.commands:
            yield Type(f"{command}\n")
        yield Type("exit\n")
        async for action in wait_for_terminal(has_terminal, expected=False):
            yield action


async def wait_for_terminal(has_terminal: HasTerminal, *, expected: bool) -> AsyncIterator[Action]:
    """Yield pauses until a terminal is open, or none is; raise EnvironmentFault after too many."""
    for _ in range(MAX_WAITS):
        if await has_terminal() == expected:
            return
        yield Wait()
    raise EnvironmentFault("the terminal does not open" if expected else "the commands in the terminal do not end")


def shell_solution(*commands: str) -> Solution:
    """Return a solution by shell commands."""
    return Solution(commands=commands)


ENTER = Hotkey(("enter",))
BEGIN_DOCUMENT = Solution((Hotkey(("ctrl", "home")), Type(WORD), ENTER, Hotkey(("ctrl", "s")), ENTER))
"""Types the word at the beginning of the open document and saves it."""


def setting_solution(schema: str, key: str, value: str) -> Solution:
    """Return a solution that sets a key of the desktop's settings."""
    return shell_solution(f"gsettings set {schema} {key} {value}")


def vlc_key(line: str) -> Solution:
    """Return a solution that sets a key of VLC's configuration, with VLC closed."""
    file = "~/.config/vlc/vlcrc"
    name = line.partition("=")[0]
    return shell_solution("pkill vlc; sleep 1; true", f"sed -i '/^{name}=/d' {file} && echo '{line}' >> {file}")


def gimp_line(file: str, line: str) -> Solution:
    """Return a solution that adds a line to one of GIMP's files, with GIMP closed."""
    folder = "~/.config/GIMP/2.10"
    return shell_solution("pkill gimp; sleep 1; true", f"mkdir -p {folder} && echo '{line}' >> {folder}/{file}")


def chrome_file(name: str, statement: str) -> Solution:
    """Return a solution that changes ``data`` of a JSON file in the closed browser's profile."""
    program = f"""
import json, os
path = os.path.expanduser("~/.config/google-chrome/Default/{name}")
data = json.load(open(path)) if os.path.exists(path) else {{}}
{statement}
os.makedirs(os.path.dirname(path), exist_ok=True)
json.dump(data, open(path, "w"))
"""
    return shell_solution("pkill chrome; sleep 2; true", f"python3 -c {shlex.quote(program)}")


def office_setting(path: str, name: str, value: str) -> Solution:
    """Return a solution that sets a key of LibreOffice's configuration, with LibreOffice closed."""
    file = "~/.config/libreoffice/4/user/registrymodifications.xcu"
    item = f'<item oor:path="{path}"><prop oor:name="{name}" oor:op="fuse"><value>{value}</value></prop></item>'
    return shell_solution(
        "pkill soffice; sleep 2; true", f"sed -i '/{name}/d' {file}; sed -i 's#</oor:items>#{item}</oor:items>#' {file}"
    )


def vscode_file(command: str, text: str, place: int = 0) -> Solution:
    """Return a solution that replaces a file of the user's, which a command of VS Code's palette opens.

    ``place`` is the command's place in the list that the palette offers.
    """
    down: list[Action] = [Hotkey(("down",))] * place
    chosen = (Type(f"Preferences: Open {command}"), *down, ENTER)
    # A bracket that is typed over a selection would surround it.
    written = (Hotkey(("ctrl", "a")), Hotkey(("delete",)), Type(text), Hotkey(("ctrl", "s")))
    return Solution((Hotkey(("ctrl", "shift", "p")), *chosen, *written))


def vscode_setting(text: str) -> Solution:
    """Return a solution that writes VS Code's settings."""
    return vscode_file("User Settings (JSON)", text)


FAVORITES = "\"['google-chrome.desktop', 'thunderbird.desktop']\""
BOOKMARKS = """
empty = {"children": [], "type": "folder", "date_added": "0", "date_modified": "0", "guid": ""}
bar = {**empty, "id": "1", "name": "Bookmarks bar", "guid": "0bc5d13f-2cba-5d74-951f-3f233fe6c908"}
bar["children"] = [{**empty, "id": "4", "name": "Favorites", "guid": "12345678-1234-4234-8234-123456789abc"}]
other = {**empty, "id": "2", "name": "Other bookmarks", "guid": "82b081ec-3dd3-529c-8475-ab6c344590dd"}
synced = {**empty, "id": "3", "name": "Mobile bookmarks", "guid": "4cf2e351-0e85-532b-bb37-df045d8f8d0f"}
data = {"checksum": "", "roots": {"bookmark_bar": bar, "other": other, "synced": synced}, "version": 1}
"""
ORACLES: dict[str, Solution] = {
    "bedcedc4-4d72-425e-ad62-21960b11fe0d": shell_solution(
        "gsettings set org.gnome.desktop.session idle-delay 0",
        "gsettings set org.gnome.settings-daemon.plugins.power idle-dim false",
    ),
    "ec4e3f68-9ea4-4c18-a5c9-69f89d1178b3": setting_solution("org.gnome.shell", "favorite-apps", FAVORITES),
    "f9be0997-4b7c-45c5-b05c-4612b44a6118": setting_solution(
        "org.gnome.desktop.notifications", "show-banners", "false"
    ),
    "e0df059f-28a6-4169-924f-b9623e7184cc": shell_solution("mv ~/Desktop/todo_list_Jan_1 ~/Desktop/todo_list_Jan_2"),
    "3ce045a0-877b-42aa-8d2c-b4a863336ab8": setting_solution(
        "org.gnome.desktop.interface", "text-scaling-factor", "1.5"
    ),
    "a4d98375-215b-4a4d-aee9-3d4370fccc41": setting_solution("org.gnome.desktop.screensaver", "lock-enabled", "true"),
    "8ba5ae7a-5ae5-4eab-9fcc-5dd4fe3abf89": vlc_key("input-record-path=/home/user/Desktop"),
    "9195653c-f4aa-453d-aa95-787f6ccfaae9": vlc_key("qt-max-volume=200"),
    "d06f0d4d-2cd5-4ede-8de9-598629438c6e": vlc_key("qt-slider-colors=20;20;20;30;30;30;40;40;40;50;50;50"),
    "a5bbbcd5-b398-4c91-83d4-55e1e31bbb81": vlc_key("qt-minimal-view=1"),
    "f3977615-2b45-4ac5-8bba-80c17dbe2a37": vlc_key("one-instance-when-started-from-file=0"),
    "215dfd39-f493-4bc3-a027-8a97d72c61bf": vlc_key("qt-bgcone=0"),
    "d52d6308-ec58-42b7-a2c9-de80e4837b2b": gimp_line("sessionrc", "(hide-docks yes)"),
    "7b7617bd-57cc-468e-9c91-40c4ec2bcb3d": gimp_line("gimprc", "(undo-levels 100)"),
    "7767eef2-56a3-4cea-8c9f-48c070c7d65b": gimp_line("gimprc", '(theme "Light")'),
    "2ad9387a-65d8-4e33-ad5b-7580065a27ca": chrome_file("Bookmarks", BOOKMARKS),
    "af630914-714e-4a24-a7bb-f9af687d3b91": chrome_file(
        "Preferences", 'data.setdefault("webkit", {})["webprefs"] = {"default_font_size": 24}'
    ),
    "2ae9ba84-3a0d-4d4c-8338-3a1478dc5fe3": chrome_file(
        "Preferences", 'data.setdefault("profile", {})["name"] = "Thomas"'
    ),
    "99146c54-4f37-4ab8-9327-5f3291665e1e": chrome_file(
        "Preferences", 'data.setdefault("profile", {})["default_content_setting_values"] = {"cookies": 4}'
    ),
    "2cd43775-7085-45d8-89fa-9e35c0a915cf": office_setting(
        "/org.openoffice.Office.Common/Save/Document", "AutoSaveTimeIntervall", "3"
    ),
    "357ef137-7eeb-4c80-a3bb-0951f26a8aff": Solution(
        (Hotkey(("ctrl", "shift", "t")), Type("E3"), ENTER, Type("191.6667"), ENTER)
    ),
    "276cc624-87ea-4f08-ab93-f770e3790175": vscode_setting('{"editor.wordWrapColumn": 50}'),
    "930fdb3b-11a8-46fe-9bac-577332e2640e": vscode_file(
        "Keyboard Shortcuts (JSON)",
        '[{"key": "ctrl+j", "command": "workbench.action.focusActiveEditorGroup", "when": "terminalFocus"}]',
        place=1,
    ),
    "ea98c5d7-3cf9-4f9b-8ad3-366b58e0fcae": vscode_file(
        "Keyboard Shortcuts (JSON)",
        '[{"key": "ctrl+f", "command": "-list.find", "when": "listFocus && listSupportsFind"}]',
        place=1,
    ),
    "06fe7178-4491-4589-810f-2e2bc9502122": Solution((Hotkey(("ctrl", "shift", "t")),)),
}
"""By task id."""


def oracle_of(task: OsworldTask, made: bool) -> Solution | None:
    """Return a task's solution, None if there is none; ``made`` if its files are placeholders."""
    if task.task_id in ORACLES:
        return ORACLES[task.task_id]
    compares = all(
        check.metric in COMPARISONS and check.expected is not None and check.expected.name == CLOUD
        for check in task.evaluator.checks
    )
    if made and compares and task.app in OFFICE:
        return BEGIN_DOCUMENT
    return None
