"""OSWorld's HTTP API with the statuses, keys and types of its server in a virtual machine.

Unlike that server, this one bounds each wait and the size of files. It runs as the sandbox's user. Requests are handled
concurrently, so a long command delays no other.
"""

import asyncio
import platform
import time
from typing import Any

from aiohttp import web

from dart_desktops.desktop.guest import commands, osworld_files_api, processes, windows
from dart_desktops.desktop.guest.answers import Refusal, error_body, positive_number, read_json
from dart_desktops.desktop.guest.display import DISPLAY_ERRORS, InputError
from dart_desktops.desktop.guest.recording import Recording
from dart_desktops.desktop.guest.session import HOME, DesktopSession, SessionError

PREFIX = "/osworld"
COMMAND_S, PYTHON_S, SCRIPT_S, SCRIPT_LIMIT_S, VERIFICATION_S = 120.0, 30.0, 100.0, 600.0, 120.0
TREE_S = 60.0
TREE_ATTEMPTS = 3
APPLICATION_GONE = "atspi_error: The application no longer exists"
TREE = ("/usr/bin/python3", "-E", "-s", "-m", "dart_desktops.desktop.guest.accessibility_tree")
SOURCES = "/opt/desktop"
FAILURE_HEADER = "X-Command-Failed"
FAILURE_CHARACTERS = 200


class OsworldApi:
    """The endpoints of one session."""

    def __init__(self, session: DesktopSession) -> None:
        self.session = session
        self.recording = Recording(session)

    def application(self) -> web.Application:
        """Return the application to serve."""
        application = web.Application(middlewares=[self._answer])
        for path in ("screenshot", "accessibility", "terminal", "platform", "cursor_position"):
            application.router.add_get(f"/{path}", getattr(self, f"_{path}"))
        for path in ("screen_size", "window_size", "run_python", "run_bash_script", "start_recording", "end_recording"):
            application.router.add_post(f"/{path}", getattr(self, f"_{path}"))
        for path in ("launch", "open_file", "activate_window", "close_window"):
            application.router.add_post(f"/setup/{path}", getattr(self, f"_{path}"))
        for path in ("execute", "execute_with_verification"):
            application.router.add_post(f"/{path}", getattr(self, f"_{path}"))
            application.router.add_post(f"/setup/{path}", getattr(self, f"_{path}"))
        application.add_routes(osworld_files_api.OsworldFilesApi().routes())
        return application

    async def _screenshot(self, _: web.Request) -> web.Response:
        return web.Response(body=self.session.shown.frames.png(), content_type="image/png")

    async def _accessibility(self, _: web.Request) -> web.Response:
        return web.json_response({"AT": await self._tree()})

    async def _terminal(self, _: web.Request) -> web.Response:
        text = await self._tree("terminal")
        return web.json_response({"output": text[1:] if text else None, "status": "success"})

    async def _platform(self, _: web.Request) -> web.Response:
        return web.Response(text=platform.system())

    async def _cursor_position(self, _: web.Request) -> web.Response:
        return web.json_response(self.session.shown.pointer())

    async def _screen_size(self, _: web.Request) -> web.Response:
        width, height = self.session.shown.frames.size
        return web.json_response({"width": width, "height": height})

    async def _window_size(self, request: web.Request) -> web.Response:
        name = (await request.post()).get("app_class_name")
        if not isinstance(name, str):
            raise Refusal(400, {"error": "app_class_name is required"})
        size = self.session.shown.window_of(name)
        if size is None:
            raise Refusal(500, {"error": f"no window of class {name}"})
        return web.json_response({"width": size[0], "height": size[1]})

    async def _execute(self, request: web.Request) -> web.Response:
        answer = await self._executed(await read_json(request))
        return web.json_response(answer, headers=failure_headers(answer))

    async def _execute_with_verification(self, request: web.Request) -> web.Response:
        body = await read_json(request)
        answer = await self._executed(body)
        verification = body.get("verification") or {}
        if not verification:
            return web.json_response(answer, headers=failure_headers(answer))
        wait_s = min(positive_number(body, "max_wait_time", 10), VERIFICATION_S)
        began = time.monotonic()
        while (waited_s := time.monotonic() - began) < wait_s:
            if await asyncio.to_thread(verified, verification):
                return web.json_response({**answer, "verification": "passed", "wait_time": waited_s})
            await asyncio.sleep(min(max(positive_number(body, "check_interval", 1), 0.05), wait_s))
        failed = {"status": "verification_failed", "verification": "failed", "wait_time": wait_s}
        raise Refusal(500, {**answer, **failed})

    async def _run_python(self, request: web.Request) -> web.Response:
        code = (await read_json(request)).get("code")
        if not code:
            raise Refusal(400, {"status": "error", "message": "Code not supplied!"})
        try:
            ended = await self._source("/usr/bin/python3", str(code), PYTHON_S)
        except commands.CommandTimeout:
            late = "Execution timeout: Code took too long to execute"
            answer = {"status": "error", "message": late, "error": "TimeoutExpired", "need_more": False}
            raise Refusal(500, {**answer, "output": None}) from None
        error = ended.error or (f"Process exited with code {ended.returncode}" if ended.returncode else "")
        answer = {
            "status": "error" if ended.returncode else "success",
            "message": "\n".join(part for part in (ended.output, error) if part),
            "need_more": False,
            "output": ended.output,
            "error": error,
            "return_code": ended.returncode,
        }
        return web.json_response(answer)

    async def _run_bash_script(self, request: web.Request) -> web.Response:
        body = await read_json(request)
        limit_s = min(positive_number(body, "timeout", SCRIPT_S), SCRIPT_LIMIT_S)
        if not body.get("script"):
            raise Refusal(400, script_error("Script not supplied!"))
        folder = body.get("working_dir")
        if folder and not osworld_files_api.expand_path(folder).is_dir():
            raise Refusal(400, script_error(f"Working directory does not exist: {folder}"))
        place = str(osworld_files_api.expand_path(folder)) if folder else str(HOME)
        try:
            ended = await self._source("/bin/bash", str(body["script"]), limit_s, merged=True, folder=place)
        except commands.CommandTimeout:
            raise Refusal(500, script_error(f"Script execution timed out after {limit_s:g} seconds")) from None
        status = "error" if ended.returncode else "success"
        answer = {"status": status, "output": ended.output, "error": "", "returncode": ended.returncode}
        return web.json_response(answer)

    async def _launch(self, request: web.Request) -> web.Response:
        body = await read_json(request)
        words, shell = command_of(body)
        try:
            self.session.launch_more(commands.command_arguments(words, shell))
        except OSError as error:
            raise Refusal(500, error_body(error)) from None
        shown = words if isinstance(words, str) else " ".join(words)
        return web.Response(text=f"{shown} launched successfully")

    async def _open_file(self, request: web.Request) -> web.Response:
        path = (await read_json(request)).get("path")
        if not path:
            raise Refusal(400, "Path not supplied!")
        name, words = osworld_files_api.open_command(str(path))
        if words is None:
            raise Refusal(404, f"Application/file not found: {path}")
        self.session.launch_more(words)
        deadline = time.monotonic() + windows.OPEN_S
        while time.monotonic() < deadline:
            if await asyncio.to_thread(windows.activate_file_window, name):
                return web.Response(text="File opened and window activated successfully")
            await asyncio.sleep(windows.POLL_INTERVAL_S)
        raise Refusal(500, f"Failed to find window for {name} within {windows.OPEN_S:g} seconds.")

    async def _activate_window(self, request: web.Request) -> web.Response:
        return await self._on_window(request, "a", "Window activated successfully")

    async def _close_window(self, request: web.Request) -> web.Response:
        return await self._on_window(request, "c", "Window closed successfully.")

    async def _start_recording(self, _: web.Request) -> web.Response:
        return web.json_response(await asyncio.to_thread(self.recording.start))

    async def _end_recording(self, _: web.Request) -> web.StreamResponse:
        return await asyncio.to_thread(self.recording.end)

    async def _on_window(self, request: web.Request, letter: str, done: str) -> web.Response:
        body = await read_json(request)
        name = body.get("window_name")
        if not name:
            raise Refusal(400, "window_name required")
        strict, by_class = bool(body.get("strict")), bool(body.get("by_class"))
        await asyncio.to_thread(windows.act_on_window, letter, str(name), strict, by_class)
        return web.Response(text=done)

    async def _executed(self, body: "dict[str, Any]") -> "dict[str, Any]":
        words, shell = command_of(body)
        try:
            ended = await self._run(commands.command_arguments(words, shell), COMMAND_S)
        except (OSError, ValueError, IndexError) as error:
            raise Refusal(500, error_body(error)) from None
        return {"status": "success", "output": ended.output, "error": ended.error, "returncode": ended.returncode}

    async def _tree(self, *what: str) -> str:
        """Return what the tree's program prints. It fails where an application ends meanwhile, and is run again."""
        error = ""
        for _ in range(TREE_ATTEMPTS):
            ended = await self._run([*TREE, *what], TREE_S, folder=SOURCES)
            if not ended.returncode:
                return ended.output
            error = (ended.error.strip().splitlines() or [""])[-1]
            if APPLICATION_GONE not in error:
                break
        raise Refusal(500, {"status": "error", "message": f"the tree cannot be read: {error}"})

    async def _run(self, words: "list[str]", limit_s: float, folder: str = str(HOME)) -> commands.CommandResult:
        self.session.check()
        return await asyncio.to_thread(commands.run, words, limit_s, folder=folder)

    async def _source(self, program: str, source: str, limit_s: float, **options: Any) -> commands.CommandResult:
        self.session.check()
        return await asyncio.to_thread(commands.run_source, program, source, limit_s, **options)

    @web.middleware
    async def _answer(self, request: web.Request, handler: Any) -> web.StreamResponse:
        """Handle a request; an error becomes a response with its reason."""
        processes.reap_ended()
        try:
            answer: web.StreamResponse = await handler(request)
            return answer
        except Refusal as refusal:
            return refusal.answer()
        except (InputError, SessionError, OSError, *DISPLAY_ERRORS) as error:
            return web.json_response(error_body(error), status=500)


def command_of(body: "dict[str, Any]") -> "tuple[str | list[str], bool]":
    """Return the command of a request and whether a shell runs it; raise Refusal for any other type."""
    shell = bool(body.get("shell", False))
    command = body.get("command", "" if shell else [])
    try:
        return osworld_files_api.command_words(command, shell), shell
    except (TypeError, ValueError) as error:
        raise Refusal(500, error_body(error)) from None


def failure_headers(answer: "dict[str, Any]") -> "dict[str, str]":
    """Return a header that names a failed command's exit code and last error line, for the log of the gateway.

    Its status is ``success`` in OSWorld's API, so a client that does not read the ``returncode`` takes no notice.
    """
    if not answer["returncode"]:
        return {}
    line = (answer["error"].strip().splitlines() or [""])[-1][:FAILURE_CHARACTERS]
    return {FAILURE_HEADER: f"{answer['returncode']} {ascii(line)[1:-1]}".strip()}


def verified(verification: "dict[str, Any]") -> bool:
    """Return whether the window of a verification exists and its command succeeds."""
    try:
        if (name := verification.get("window_exists")) is not None:
            titles = "\n".join(line for _, line in windows.list_windows()).lower()
            if str(name).lower() not in titles:
                return False
        if (command := verification.get("command_success")) is not None:
            return commands.run(commands.command_arguments(str(command), True), windows.LIMIT_S).returncode == 0
    except OSError:
        return False
    return True


def script_error(why: str) -> "dict[str, Any]":
    """Return the response body for a script that did not run to its end."""
    return {"status": "error", "output": why, "error": "", "returncode": -1}
