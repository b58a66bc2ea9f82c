"""Our desktops keep OSWorld's HTTP API: statuses, keys and types of each endpoint.

``DART_OSWORLD_URL`` (and ``DART_OSWORLD_TOKEN``) names another server to ask instead, for instance OSWorld's own in a
virtual machine or a sandbox; what the tests write there is below ``~/dart-contract``.
"""

import io
import json
import os
import re
from collections.abc import AsyncIterator
from typing import Any
from xml.etree import ElementTree

import aiohttp
import pytest
import pytest_asyncio
from PIL import Image

from dart_desktops.osworld.machine import Machine, MachineEndpoint
from plugins.desktops.tests.served_desktops import served, wait_for_window

pytestmark = pytest.mark.asyncio(loop_scope="module")
URL, TOKEN = os.environ.get("DART_OSWORLD_URL", ""), os.environ.get("DART_OSWORLD_TOKEN", "")
FOLDER = "~/dart-contract"
NOTE = f"{FOLDER}/a b/note.txt"
PYTHON_KEYS = {"status": str, "message": str, "need_more": bool, "output": str, "error": str, "return_code": int}
SCRIPT_KEYS = {"status": str, "output": str, "error": str, "returncode": int}
ERROR_KEYS = {"status": str, "message": str}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def machine(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Machine]:
    """The server under test."""
    if URL:
        async with Machine(MachineEndpoint(url=URL, token=TOKEN), 120.0) as client:
            yield client
        return
    async with served(tmp_path_factory.mktemp("served"), slots=1) as running, running.machine() as client:
        client.call_timeout_s = 120.0
        yield client


class Answer:
    """A raw answer."""

    def __init__(self, status: int, kind: str, body: bytes) -> None:
        self.status, self.kind, self.body = status, kind, body

    def require(self, status: int, keys: dict[str, Any]) -> dict[str, Any]:
        """Check a status and the exact keys and types of a JSON object; return it."""
        assert (self.status, self.kind) == (status, "application/json"), self.body[:500]
        found: dict[str, Any] = json.loads(self.body)
        assert {key: type(value) for key, value in found.items()} == keys, found
        return found


async def ask(
    machine: Machine, method: str, path: str, body: object = None, form: dict[str, str] | None = None
) -> Answer:
    """Send a request as it is."""
    headers = {"Authorization": f"Bearer {machine.endpoint.token}"} if machine.endpoint.token else {}
    async with (
        aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=300)) as session,
        session.request(method, machine.endpoint.url + path, json=body, data=form, headers=headers) as answer,
    ):
        return Answer(answer.status, answer.content_type, await answer.read())


# --- what it shows


async def test_the_screen_is_a_png_of_the_size_that_it_says(machine):
    size = (await ask(machine, "POST", "/screen_size")).require(200, {"width": int, "height": int})
    answer = await ask(machine, "GET", "/screenshot")
    assert (answer.status, answer.kind) == (200, "image/png")
    with Image.open(io.BytesIO(answer.body)) as image:
        assert image.size == (size["width"], size["height"]) == await machine.screen_size()
    assert await machine.screenshot()


async def test_the_operating_system_is_named(machine):
    answer = await ask(machine, "GET", "/platform")
    assert (answer.status, answer.body) == (200, b"Linux")


async def test_the_pointer_is_where_it_was_moved_to(machine):
    await machine.execute(["python", "-c", "import pyautogui; pyautogui.moveTo(31, 17)"])
    answer = await ask(machine, "GET", "/cursor_position")
    assert (answer.status, json.loads(answer.body)) == (200, [31, 17])


async def test_the_accessibility_tree_is_xml_in_osworlds_namespaces(machine):
    await machine.launch(["zenity", "--info", "--title", "Contract", "--no-markup", "--text", "a & b < c"])
    await wait_for_window(machine, "Contract")
    found = (await ask(machine, "GET", "/accessibility")).require(200, {"AT": str})
    root = ElementTree.fromstring(found["AT"])
    assert root.tag == "desktop-frame"
    space = "https://accessibility.ubuntu.example.org/ns"
    buttons = [element for element in root.iter("push-button") if element.get("name") == "OK"]
    assert len(buttons) == 1
    assert buttons[0].get(f"{{{space}/state}}showing") == "true"
    for name in ("screencoord", "size"):
        assert re.fullmatch(r"\(\d+, \d+\)", buttons[0].get(f"{{{space}/component}}{name}", ""))
    assert any(element.text == "a & b < c" or element.get("name") == "a & b < c" for element in root.iter())
    await machine.manage_window("close_window", "Contract")


async def test_no_terminal_is_no_error(machine):
    answer = await ask(machine, "GET", "/terminal")
    assert answer.require(200, {"output": type(None), "status": str})["status"] == "success"


async def test_a_window_has_a_size(machine):
    assert (await ask(machine, "POST", "/window_size")).require(400, {"error": str})
    await machine.launch(["zenity", "--info", "--title", "Sized"])
    await wait_for_window(machine, "Sized")
    found = await ask(machine, "POST", "/window_size", form={"app_class_name": "ZENITY"})
    assert all(value > 50 for value in found.require(200, {"width": int, "height": int}).values())
    await machine.manage_window("close_window", "Sized")
    assert (await ask(machine, "POST", "/window_size", form={"app_class_name": "nothing"})).status == 500


# --- commands


@pytest.mark.parametrize("path", ["/execute", "/setup/execute"])
@pytest.mark.parametrize(
    ("body", "output", "error", "code"),
    [
        ({"command": ["echo", "a b"]}, "a b\n", "", 0),
        ({"command": "echo 'a b'"}, "a b\n", "", 0),
        ({"command": "echo $((1 + 1)) >&2; exit 3", "shell": True}, "", "2\n", 3),
        ({"command": "echo a | tr a b", "shell": "true"}, "b\n", "", 0),
        ({"command": ["ls", "~/no such file"]}, "", "no such file", 2),
        ({"command": ["sh", "-c", "read line; echo read $?"], "shell": False}, "read 1\n", "", 0),
        ({"command": ["python", "-c", "print('ü')"]}, "ü\n", "", 0),
    ],
)
async def test_a_command_ends_with_its_output_and_code(machine, path, body, output, error, code):
    found = (await ask(machine, "POST", path, body)).require(200, SCRIPT_KEYS)
    assert found["status"] == "success"
    assert found["output"] == output
    assert error in found["error"]
    assert found["returncode"] == code


@pytest.mark.parametrize("body", [{"command": ["no-such-program"]}, {"command": []}, {}, {"command": "a 'b"}])
async def test_a_command_that_cannot_be_run_is_an_error(machine, body):
    answer = await ask(machine, "POST", "/execute", body)
    assert answer.status == 500


async def test_a_missing_program_is_named(machine):
    answer = await ask(machine, "POST", "/execute", {"command": ["no-such-program"]})
    assert "no-such-program" in answer.require(500, ERROR_KEYS)["message"]


async def test_a_request_that_is_not_json_is_refused(machine):
    assert (await ask(machine, "POST", "/execute", form={"command": "true"})).status == 415


async def test_a_verification_passes_or_fails(machine):
    body = {"command": ["true"], "verification": {"command_success": "true"}, "max_wait_time": 60}
    answer = await ask(machine, "POST", "/execute_with_verification", body)
    assert answer.require(200, {**SCRIPT_KEYS, "verification": str, "wait_time": float})["verification"] == "passed"
    body = {**body, "verification": {"command_success": "false"}, "max_wait_time": 0.2, "check_interval": 0.05}
    answer = await ask(machine, "POST", "/setup/execute_with_verification", body)
    found = answer.require(500, {**SCRIPT_KEYS, "verification": str, "wait_time": float})
    assert (found["status"], found["verification"]) == ("verification_failed", "failed")
    answer = await ask(machine, "POST", "/execute_with_verification", {"command": ["echo", "1"]})
    assert answer.require(200, SCRIPT_KEYS)["output"] == "1\n"


async def test_python_runs(machine):
    found = (await ask(machine, "POST", "/run_python", {"code": "print(6 * 7)"})).require(200, PYTHON_KEYS)
    assert (found["status"], found["output"], found["return_code"]) == ("success", "42\n", 0)
    found = (await ask(machine, "POST", "/run_python", {"code": "1 / 0"})).require(200, PYTHON_KEYS)
    assert (found["status"], found["return_code"]) == ("error", 1)
    assert "ZeroDivisionError" in found["error"]
    found = (await ask(machine, "POST", "/run_python", {"code": "raise SystemExit(4)"})).require(200, PYTHON_KEYS)
    assert found["error"] == "Process exited with code 4"
    (await ask(machine, "POST", "/run_python", {"code": ""})).require(400, ERROR_KEYS)


async def test_a_script_of_the_shell_runs(machine):
    script = "echo out; echo err >&2; read line; exit 2"
    found = (await ask(machine, "POST", "/run_bash_script", {"script": script})).require(200, SCRIPT_KEYS)
    assert (found["status"], found["output"], found["error"], found["returncode"]) == ("error", "out\nerr\n", "", 2)
    body = {"script": "pwd", "working_dir": "/tmp", "timeout": 60}
    assert (await ask(machine, "POST", "/run_bash_script", body)).require(200, SCRIPT_KEYS)["output"] == "/tmp\n"
    body = {"script": "sleep 60", "timeout": 1}
    assert (await ask(machine, "POST", "/run_bash_script", body)).require(500, SCRIPT_KEYS)["returncode"] == -1
    for wrong in ({"script": ""}, {"script": "true", "working_dir": "/no/such"}):
        assert (await ask(machine, "POST", "/run_bash_script", wrong)).require(400, SCRIPT_KEYS)["returncode"] == -1


async def test_a_launch_does_not_wait(machine):
    answer = await ask(machine, "POST", "/setup/launch", {"command": ["sleep", "30"]})
    assert (answer.status, answer.body) == (200, b"sleep 30 launched successfully")
    answer = await ask(machine, "POST", "/setup/launch", {"command": "sleep 30 & sleep 31", "shell": True})
    assert (answer.status, answer.body) == (200, b"sleep 30 & sleep 31 launched successfully")
    (await ask(machine, "POST", "/setup/launch", {"command": ["no-such-program"]})).require(500, ERROR_KEYS)


# --- files


async def test_a_file_goes_up_and_comes_back(machine):
    content = bytes(range(256)) * 5000
    await machine.upload(NOTE, content)
    assert await machine.file(NOTE) == content
    assert await machine.file(NOTE.replace("~", "$HOME")) == content
    answer = await ask(machine, "POST", "/file", form={"file_path": f"{FOLDER}/none"})
    assert answer.require(404, {"error": str}) == {"error": "File not found"}
    (await ask(machine, "POST", "/file", form={"path": "x"})).require(400, {"error": str})
    (await ask(machine, "POST", "/setup/upload", form={"file_path": "~/x"})).require(400, {"error": str})


async def test_an_upload_says_its_size(machine):
    headers = {"Authorization": f"Bearer {machine.endpoint.token}"} if machine.endpoint.token else {}
    form = aiohttp.FormData({"file_path": NOTE})
    form.add_field("file_data", b"abc", filename="note.txt")
    url = f"{machine.endpoint.url}/setup/upload"
    async with aiohttp.ClientSession() as session, session.post(url, data=form, headers=headers) as answer:
        assert (answer.status, await answer.text()) == (200, "File Uploaded: 3 bytes")


async def test_a_folder_is_listed(machine):
    await machine.upload(NOTE, b"abc")
    home = (await machine.execute("echo ~", shell=True))["output"].strip()
    body = {"path": NOTE.rpartition("/a b")[0].replace("~", home)}
    found = (await ask(machine, "POST", "/list_directory", body)).require(200, {"directory_tree": dict})
    folder = {"type": "directory", "name": "a b", "children": [{"type": "file", "name": "note.txt"}]}
    assert found["directory_tree"] == {"type": "directory", "name": "dart-contract", "children": [folder]}
    (await ask(machine, "POST", "/list_directory", {})).require(400, {"error": str})
    (await ask(machine, "POST", "/list_directory", {"path": "/no/such"})).require(400, {"error": str})


async def test_the_desktop_has_a_folder(machine):
    found = (await ask(machine, "POST", "/desktop_path")).require(200, {"desktop_path": str})
    assert found["desktop_path"].endswith("/Desktop")


async def test_no_wallpaper_is_not_found(machine):
    assert (await ask(machine, "POST", "/wallpaper")).status in {200, 404}
    assert (await ask(machine, "POST", "/setup/change_wallpaper", {})).status == 400
    assert (await ask(machine, "POST", "/setup/change_wallpaper", {"path": "/no/such.png"})).status == 404


async def test_a_download_needs_both_ends(machine):
    assert (await ask(machine, "POST", "/setup/download_file", {"path": "/tmp/x"})).status == 400
    body = {"url": "http://127.0.0.1:1/x", "path": f"{FOLDER}/x"}
    answer = await ask(machine, "POST", "/setup/download_file", body)
    assert (answer.status, answer.body[:18]) == (500, b"Failed to download")


# --- windows


async def test_a_file_is_opened_and_its_window_is_activated_and_closed(machine):
    await machine.upload(f"{FOLDER}/contract-note.txt", b"abc\n")
    answer = await ask(machine, "POST", "/setup/open_file", {"path": f"{FOLDER}/contract-note.txt"})
    assert (answer.status, answer.body) == (200, b"File opened and window activated successfully")
    listed = (await machine.execute(["wmctrl", "-l"]))["output"]
    assert "contract-note" in listed
    answer = await ask(machine, "POST", "/setup/activate_window", {"window_name": "contract-note"})
    assert (answer.status, answer.body) == (200, b"Window activated successfully")
    answer = await ask(machine, "POST", "/setup/close_window", {"window_name": "contract-note", "strict": False})
    assert (answer.status, answer.body) == (200, b"Window closed successfully.")


async def test_a_missing_window_is_no_error_but_one_without_a_name_is(machine):
    for path in ("/setup/activate_window", "/setup/close_window"):
        body = {"window_name": "no such window", "strict": True, "by_class": True}
        assert (await ask(machine, "POST", path, body)).status == 200
        assert (await ask(machine, "POST", path, {})).status == 400


async def test_only_what_exists_is_opened(machine):
    assert (await ask(machine, "POST", "/setup/open_file", {})).status == 400
    assert (await ask(machine, "POST", "/setup/open_file", {"path": "/no/such/file"})).status == 404


# --- recordings


async def test_a_recording_that_was_not_begun_cannot_be_ended(machine):
    (await ask(machine, "POST", "/end_recording")).require(400, ERROR_KEYS)


async def test_an_endpoint_that_there_is_not_is_not_found(machine):
    assert (await ask(machine, "GET", "/no-such-endpoint")).status == 404
    assert (await ask(machine, "GET", "/execute")).status == 405
