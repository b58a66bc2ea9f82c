"""Solutions of single tasks by keys and pointer, or by commands in a terminal.

Most tasks of documents compare the result with a finished document. Finished placeholders (``placeholders``) begin
with one more word, so one solution fits all of them.
"""

import shlex
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial

import msgspec

from dart_desktops.osworld.machine import Machine, run_command, try_command
from dart_desktops.osworld.pyautogui_programs import build_program
from dart_desktops.osworld.settling import require_idle, wait_until
from dart_desktops.osworld.tasks import CLOUD, OsworldTask
from dart_streams.actions import Action, Hotkey, Type, Wait

WORD = "Pear"
"""First word of finished placeholder documents."""
REST_S = 60.0
"""Time limit for the machine to be at rest, before each action and at the end."""
OFFICE = frozenset({"libreoffice_calc", "libreoffice_writer"})
COMPARISONS = frozenset({"compare_table", "compare_docx_files", "compare_docx_files_and_ignore_new_lines"})
"""Metrics that consider a placeholder equal to a document saved by LibreOffice."""
TERMINAL = Hotkey(("ctrl", "alt", "t"))
"""Keys that open a terminal in OSWorld's image."""
HAS_TERMINAL = "wmctrl -lx | awk '{print $3}' | grep -qi term"
"""Shell command that succeeds while a window of a terminal is open."""
OPEN_S, COMMANDS_S = 45.0, 120.0
"""Time limits for a terminal to open, and for the commands in it to end."""
EFFECT_S = 60.0
"""Time limit for a solution to have its effect after the last action."""
END_S = 30
"""Time limit for an application to end after it was asked to."""
Holds = Callable[[str], Awaitable[bool]]
"""Returns whether a shell command succeeds on the machine."""


class Solution(msgspec.Struct, frozen=True):
    """A solution by input actions or by shell commands.

    ``effect`` is a shell command that succeeds once the solution is complete: a file is written, or a tab is open.
    """

    actions: tuple[Action, ...] = ()
    commands: tuple[str, ...] = ()
    effect: str = ""

    async def solve(self, machine: Machine) -> None:
        """Execute the solution: each action when the machine is idle, commands without a terminal."""
        for action in self.actions:
            await require_idle(machine, REST_S, f"before the oracle's {action}")
            await run_command(machine, ["python", "-c", build_program(action) or ""], f"the oracle's {action}")
        for command in self.commands:
            await run_command(machine, command, f"the oracle's {command!r}", shell=True)
        await self.require_effect(partial(try_command, machine))
        await require_idle(machine, REST_S, "after the oracle")

    async def demonstrate(self, holds: Holds) -> AsyncIterator[Action]:
        """Yield the solution as actions, commands in a terminal that closes when all have succeeded."""
        for action in self.actions:
            yield action
        if self.commands:
            yield TERMINAL
            async for action in await_terminal(holds, opened=True):
                yield action
            yield Type(" && ".join((*self.commands, "exit")) + "\n")
            async for action in await_terminal(holds, opened=False):
                yield action
        await self.require_effect(holds)

    async def require_effect(self, holds: Holds) -> None:
        """Wait until the effect is there; raise EnvironmentFault without it."""
        if self.effect:
            await wait_until(lambda: holds(self.effect), EFFECT_S, f"the oracle has no effect ({self.effect})")


async def await_terminal(holds: Holds, *, opened: bool) -> AsyncIterator[Action]:
    """Wait until a terminal is open, or none is; raise EnvironmentFault past the limit.

    Yields one pause if the last screen does not show it yet.
    """

    async def shown() -> bool:
        return await holds(HAS_TERMINAL) == opened

    if await shown():
        return
    limit_s, failure = (
        (OPEN_S, "the terminal does not open") if opened else (COMMANDS_S, "the commands in the terminal do not end")
    )
    await wait_until(shown, limit_s, failure)
    yield Wait()


def shell_solution(*commands: str) -> Solution:
    """Return a solution by shell commands."""
    return Solution(commands=commands)


def end_program(name: str) -> str:
    """Return a command that ends all processes of a name, and fails with the reason if one does not end.

    ``pidwait`` returns after the first of them. Ended ones that their parent has not collected are left out.
    """
    waits = f"while pidwait -r R,S,D,T {name}; do :; done"
    late = f"{name} does not end within {END_S} s"
    return f"pkill {name}; timeout {END_S} sh -c '{waits}' || (echo {late} >&2; exit 1)"


ENTER = Hotkey(("enter",))
SAVED = (
    'lock=$(find ~ -maxdepth 2 -name ".~lock.*#" | head -n 1); '
    'find ~ -maxdepth 2 -name "[!.]*.[dx][lo][cs]x" -newer "$lock" | grep -q .'
)
"""Succeeds once a document is newer than LibreOffice's lock file, which was written when the document was opened."""
BEGIN_DOCUMENT = Solution((Hotkey(("ctrl", "home")), Type(WORD), ENTER, Hotkey(("ctrl", "s")), ENTER), effect=SAVED)
"""Types the word at the beginning of the open document and saves it."""


def setting_solution(schema: str, key: str, value: str) -> Solution:
    """Return a solution that sets a key of the desktop's settings."""
    return shell_solution(f"gsettings set {schema} {key} {value}")


def vlc_key(line: str) -> Solution:
    """Return a solution that sets a key of VLC's configuration, with VLC closed."""
    file = "~/.config/vlc/vlcrc"
    name = line.partition("=")[0]
    return shell_solution(end_program("vlc"), f"sed -i '/^{name}=/d' {file} && echo '{line}' >> {file}")


def gimp_line(file: str, line: str) -> Solution:
    """Return a solution that adds a line to one of GIMP's files, with GIMP closed."""
    folder = "~/.config/GIMP/2.10"
    return shell_solution(end_program("gimp"), f"mkdir -p {folder} && echo '{line}' >> {folder}/{file}")


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
    return shell_solution(end_program("chrome"), f"python3 -c {shlex.quote(program)}")


def thunderbird_pref(name: str, value: str) -> Solution:
    """Return a solution that sets a preference, a value of JavaScript, of the closed Thunderbird's profile."""
    file = "~/.thunderbird/t5q2a5hp.default-release/prefs.js"
    line = shlex.quote(f'user_pref("{name}", {value});')
    return shell_solution(end_program("thunderbird"), f"sed -i '/{name}/d' {file} && printf '%s\\n' {line} >> {file}")


def office_setting(path: str, name: str, value: str) -> Solution:
    """Return a solution that sets a key of LibreOffice's configuration, with LibreOffice closed."""
    file = "~/.config/libreoffice/4/user/registrymodifications.xcu"
    item = f'<item oor:path="{path}"><prop oor:name="{name}" oor:op="fuse"><value>{value}</value></prop></item>'
    return shell_solution(
        end_program("soffice"), f"sed -i -e '/{name}/d' -e 's#</oor:items>#{item}</oor:items>#' {file}"
    )


VSCODE_FOLDER = "~/.config/Code/User"


def vscode_file(command: str, file: str, text: str, place: int = 0) -> Solution:
    """Return a solution that replaces a file of the user's, which a command of VS Code's palette opens.

    ``place`` is the command's place in the list that the palette offers.
    """
    down: list[Action] = [Hotkey(("down",))] * place
    chosen = (Type(command), *down, ENTER)
    # A bracket that is typed over a selection would surround it.
    written = (Hotkey(("ctrl", "a")), Hotkey(("delete",)), Type(text), Hotkey(("ctrl", "s")))
    effect = f"grep -qxF {shlex.quote(text.strip())} {file}"
    return Solution((Hotkey(("ctrl", "shift", "p")), *chosen, *written), effect=effect)


def vscode_setting(text: str) -> Solution:
    """Return a solution that writes VS Code's settings."""
    return vscode_file("Preferences: Open User Settings (JSON)", f"{VSCODE_FOLDER}/settings.json", text)


def vscode_shortcut(text: str) -> Solution:
    """Return a solution that writes VS Code's keyboard shortcuts."""
    return vscode_file(
        "Preferences: Open Keyboard Shortcuts (JSON)", f"{VSCODE_FOLDER}/keybindings.json", text, place=1
    )


NEW_FILE = Solution(
    (
        *(Hotkey(("ctrl", "shift", "p")), Type("File: New Untitled Text File"), ENTER),
        *(Hotkey(("ctrl", "s")), Hotkey(("ctrl", "a")), Type("/home/user/Desktop/test.py"), ENTER),
    ),
    effect="[ -e ~/Desktop/test.py ]",
)
"""Saves an empty file by VS Code."""


def tab_is_open(address: str) -> str:
    """Return a command that succeeds once DevTools lists a tab with a part of an address."""
    program = "import urllib.request as web; print(web.urlopen('http://localhost:1337/json').read().decode())"
    return f'python3 -c "{program}" | grep -qF {shlex.quote(address)}'


def visit_page(url: str) -> Solution:
    """Return a solution that types an address into the browser's bar."""
    return Solution((Hotkey(("ctrl", "l")), Type(url), ENTER), effect=tab_is_open(url))


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
    "d06f0d4d-2cd5-4ede-8de9-598629438c6e": vlc_key("qt-slider-colours=20;20;20;30;30;30;40;40;40;50;50;50"),
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
    "930fdb3b-11a8-46fe-9bac-577332e2640e": vscode_shortcut(
        '[{"key": "ctrl+j", "command": "workbench.action.focusActiveEditorGroup", "when": "terminalFocus"}]'
    ),
    "ea98c5d7-3cf9-4f9b-8ad3-366b58e0fcae": vscode_shortcut(
        '[{"key": "ctrl+f", "command": "-list.find", "when": "listFocus && listSupportsFind"}]'
    ),
    "70745df8-f2f5-42bd-8074-fbc10334fcc5": vscode_setting(
        '{"files.autoSave": "afterDelay", "files.autoSaveDelay": 500}'
    ),
    "9439a27b-18ae-42d8-9778-5f68f891805e": vscode_setting('{"debug.focusEditorOnBreak": false}'),
    "982d12a5-beab-424f-8d38-d2a48429e511": vscode_setting('{"workbench.colorTheme": "Visual Studio Dark"}\n'),
    "9d425400-e9b2-4424-9a4b-d4c7abac4140": vscode_setting('{"workbench.editor.wrapTabs": true}'),
    "c6bf789c-ba3a-4209-971d-b63abf0ab733": vscode_setting('{"files.exclude": {"**/__pycache__": true}}'),
    "e2b5e914-ffe1-44d2-8e92-58f8c5d92bb2": vscode_setting(
        '{"python.analysis.diagnosticSeverityOverrides": {"reportMissingImports": "none"}}'
    ),
    "6ed0a554-cbee-4b44-84ea-fd6c042f4fe1": vscode_file(
        "Workspaces: Open Workspace Configuration File",
        "~/project.code-workspace",
        '{"folders": [{"path": "project"}, {"path": "data1"}, {"path": "data2"}]}',
    ),
    "57242fad-77ca-454f-b71b-f187181a9f23": NEW_FILE,
    "030eeff7-b492-4218-b312-701ec99ee0cc": chrome_file("Preferences", 'data["enable_do_not_track"] = True'),
    "9656a811-9b5b-4ddf-99c7-5117bcef0626": chrome_file(
        "Preferences", 'data.setdefault("safebrowsing", {})["enabled"] = True'
    ),
    "3299584d-8f11-4457-bf4c-ce98f7600250": chrome_file("Preferences", 'data["session"] = {"restore_on_startup": 5}'),
    "5ea617a3-0e86-4ba6-aab2-dac9aa2e8d57": shell_solution(
        "mv ~/.local/share/Trash/files/poster_party_night.webp ~/Desktop"
    ),
    "23393935-50c7-4a86-aeea-2b78fd089c5c": shell_solution(
        "find ~/Desktop/photos -name '*.jpg' -exec cp {} ~/Desktop/cpjpg ';'"
    ),
    "77b8ab4d-994f-43ac-8930-8ca087d7c4b4": shell_solution(
        "cp ~/Desktop/The_Lost_River_Of_Dreams.jpg ~/Desktop/export.jpg"
    ),
    "5ac2891a-eacd-4954-b339-98abba077adb": vlc_key("play-and-exit=0"),
    "f201fbc3-44e6-46fc-bcaa-432f9815454c": thunderbird_pref("mail.identity.id1.auto_quote", "false"),
    "3f28fe4f-5d9d-4994-a456-efd78cfae1a3": thunderbird_pref("mail.identity.id1.htmlSigText", '"Anonym\\nXYZ Lab"'),
    "10a730d5-d414-4b40-b479-684bed1ae522": thunderbird_pref(
        "extensions.activeThemeID", '"thunderbird-compact-dark@mozilla.org"'
    ),
    "c1fa57f3-c3db-4596-8f09-020701085416": visit_page("https://www.united.com/en/us/checked-bag-fee-calculator"),
    "f5d96daf-83a8-4c86-9686-bada31fc66ab": visit_page(
        "https://www.apple.com/iphone/compare/?modelList=iphone-15-pro-max,iphone-14-pro-max,iphone-13-pro-max"
    ),
    "82279c77-8fc6-46f6-9622-3ba96f61b477": visit_page(
        "https://www.cars.com/shopping/results/?list_price_max=50000&maximum_distance=50&zip=10001&fuel_slugs[]=electric"
    ),
    "a728a36e-8bf1-4bb6-9a03-ef039a5233f0": visit_page(
        "https://www.dmv.virginia.gov/licenses-ids/license/applying/eligibility"
    ),
    "b070486d-e161-459b-aa2b-ef442d973b92": visit_page("https://www.drugs.com/tamiflu.html#side-effects"),
    "0d8b7de3-e8de-4d86-b9fd-dd2dce58a217": visit_page("https://www.drugs.com/npc/"),
    "59155008-fe71-45ec-8a8f-dc35497b6aa8": visit_page("https://www.babycenter.com/baby-names/details/carl-853"),
    "9f935cce-0a9f-435f-8007-817732bfc0a5": visit_page(
        "https://www.justice.gov/forms?title=&field_component_target_id=431"
    ),
    "f0b971a1-6831-4b9b-a50e-22a6e47f45ba": visit_page("https://www.nfl.com/scores/2019/post4"),
    "12086550-11c0-466b-b367-1d9e75b3910e": visit_page("chrome://password-manager/passwords"),
    "06fe7178-4491-4589-810f-2e2bc9502122": Solution(
        (Hotkey(("ctrl", "shift", "t")),), effect=tab_is_open("tripadvisor")
    ),
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
