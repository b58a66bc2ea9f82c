"""Solutions of single tasks: which task has one, and what they change."""

import json
from pathlib import Path
from unittest.mock import AsyncMock

import pytest

from dart_streams.actions import Type, Wait
from tests.unit.workers.env.backends.osworld.machines import LocalMachine
from tests.unit.workers.env.backends.osworld.parsed_tasks import comparison, parse_task
from workers.env.backends.osworld import oracles, pyautogui_programs, tasks
from workers.env.backends.osworld.oracles import BEGIN_DOCUMENT, oracle_of, shell_solution
from workers.env.environment import EnvironmentFault


def compared(app: str, metric: str, getter: str = tasks.CLOUD) -> tasks.OsworldTask:
    return parse_task(comparison(metric, "https://a.example/a", getter), app=app)


@pytest.mark.parametrize(
    ("task", "made", "found"),
    [
        (compared("libreoffice_calc", "compare_table"), True, BEGIN_DOCUMENT),
        (compared("libreoffice_writer", "compare_docx_files"), True, BEGIN_DOCUMENT),
        (compared("libreoffice_calc", "compare_table"), False, None),
        (compared("libreoffice_impress", "compare_table"), True, None),
        (compared("libreoffice_calc", "compare_csv"), True, None),
        (compared("libreoffice_calc", "compare_table", "rule"), True, None),
    ],
)
def test_placeholder_documents_share_one_solution(task, made, found):
    assert oracle_of(task, made) is found


def test_a_task_with_a_solution_of_its_own_has_it_whatever_its_files():
    name = next(iter(oracles.ORACLES))
    assert oracle_of(parse_task(task_id=name), made=False) is oracles.ORACLES[name]


async def test_keys_are_pressed_one_after_the_other_each_at_rest(tmp_path):
    machine = LocalMachine(tmp_path)
    await BEGIN_DOCUMENT.solve(machine)
    pressed = [command[2] for command in machine.programs if command[0] == "python"]
    assert [line.splitlines()[-1].removeprefix("pyautogui.") for line in pressed] == [
        "hotkey('ctrl', 'home')",
        "typewrite('Pear')",
        "hotkey('enter')",
        "hotkey('ctrl', 's')",
        "hotkey('enter')",
    ]
    assert [command[0] == "python" for command in machine.programs] == [False, True] * 5 + [False]


@pytest.mark.parametrize("oracle", [shell_solution("exit 3"), BEGIN_DOCUMENT])
async def test_a_solution_that_fails_is_a_fault_with_its_step(tmp_path, oracle):
    machine = LocalMachine(tmp_path)
    machine.returncode = 1
    with pytest.raises(EnvironmentFault):
        await oracle.solve(machine)


async def test_commands_are_typed_into_an_open_terminal_which_then_closes():
    has_terminal = AsyncMock(side_effect=[False, False, True, True, False])
    found = [action async for action in shell_solution("a", "b").demonstrate(has_terminal)]
    assert found == [
        *(oracles.TERMINAL, Wait(), Wait()),
        *(Type("a\n"), Type("b\n"), Type("exit\n"), Wait()),
    ]


async def test_a_terminal_that_never_opens_is_a_fault():
    with pytest.raises(EnvironmentFault, match="does not open"):
        assert [action async for action in shell_solution("a").demonstrate(AsyncMock(return_value=False))]


async def test_what_is_demonstrated_in_an_application_is_what_is_checked():
    has_terminal = AsyncMock(side_effect=AssertionError("there is nothing to type into it"))
    found = [action async for action in BEGIN_DOCUMENT.demonstrate(has_terminal)]
    assert found == list(BEGIN_DOCUMENT.actions)
    assert all(pyautogui_programs.build_program(action) for action in found)


async def solved(folder: Path, name: str, path: str, content: str) -> str:
    """Return what a solution makes of a file of the home's settings."""
    file = folder / ".config" / path
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(content)
    await oracles.ORACLES[name].solve(LocalMachine(folder))
    return file.read_text()


@pytest.mark.parametrize(
    ("name", "path", "before", "after"),
    [
        (
            "9195653c-f4aa-453d-aa95-787f6ccfaae9",
            "vlc/vlcrc",
            "[core]\nqt-max-volume=125\nother=1\n",
            "[core]\nother=1\nqt-max-volume=200\n",
        ),
        ("7b7617bd-57cc-468e-9c91-40c4ec2bcb3d", "GIMP/2.10/gimprc", "# gimp\n", "# gimp\n(undo-levels 100)\n"),
    ],
)
async def test_a_setting_of_a_line_replaces_the_one_before(tmp_path, name, path, before, after):
    assert await solved(tmp_path, name, path, before) == after


async def test_a_setting_of_the_browser_keeps_the_others(tmp_path):
    name, path = "af630914-714e-4a24-a7bb-f9af687d3b91", "google-chrome/Default/Preferences"
    found = json.loads(await solved(tmp_path, name, path, '{"profile": {"name": "a"}}'))
    assert found == {"profile": {"name": "a"}, "webkit": {"webprefs": {"default_font_size": 24}}}


async def test_a_setting_of_libreoffice_is_an_item_of_its_registry(tmp_path):
    name, path = "2cd43775-7085-45d8-89fa-9e35c0a915cf", "libreoffice/4/user/registrymodifications.xcu"
    before = "<oor:items>\n<item>AutoSaveTimeIntervall old</item>\n</oor:items>\n"
    found = await solved(tmp_path, name, path, before)
    assert "<value>3</value>" in found
    assert "old" not in found
    assert found.count("</oor:items>") == 1
