"""VS Code on a real desktop: a file is edited and saved by keys, and settings are where evaluators read them."""

from pathlib import Path

import pytest

from dart_desktops.desktop.sandbox import vscode_folder
from dart_desktops.osworld.machine import FileMissing, Machine
from dart_desktops.osworld.oracles import Solution, vscode_setting
from dart_streams.actions import Action, Hotkey, Type
from plugins.desktops.tests.served_desktops import served, wait_for_window
from tests.waiting import until

pytestmark = [
    pytest.mark.asyncio,
    pytest.mark.skipif(not vscode_folder(), reason="needs VS Code's server: run `make osworld`"),
]
FILE, SETTINGS = "/home/user/Desktop/note.txt", "/home/user/.config/Code/User/settings.json"


async def content(machine: Machine, path: str) -> str:
    try:
        return (await machine.file(path)).decode()
    except FileMissing:
        return ""


async def test_a_file_and_the_settings_are_changed_by_keys(tmp_path: Path):
    edit: tuple[Action, ...] = (Hotkey(("ctrl", "end")), Type(" and pears"), Hotkey(("ctrl", "s")))
    async with served(tmp_path, (1280, 800), slots=1, lease_s=600.0) as desktops, desktops.machine() as machine:
        listed = await machine.execute(["code", "--list-extensions", "|", "grep", "x.y"])
        assert (listed["output"], listed["returncode"]) == ("", 0), listed["error"]
        await machine.upload(FILE, b"apples")
        await machine.launch(["code", FILE])
        await wait_for_window(machine, "note.txt - Visual Studio Code")
        await Solution(edit).solve(machine)
        await until(lambda: saved(machine, FILE, "apples and pears"))
        await vscode_setting('{"editor.wordWrapColumn": 50}').solve(machine)
        await until(lambda: saved(machine, SETTINGS, '{"editor.wordWrapColumn": 50}'))


async def saved(machine: Machine, path: str, text: str) -> bool:
    return await content(machine, path) == text
