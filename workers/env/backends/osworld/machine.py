"""The client of one machine: OSWorld's HTTP contract, each call bounded in time and size, and sent at most once."""

from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any, Self, TypedDict

import aiohttp

from dart_streams.deadline import Deadline
from workers.env.backends.osworld.connection import Connection, MachineEndpoint, excerpt
from workers.env.environment import EnvironmentFault, Size

EXECUTE_S = 125.0
"""A command's: OSWorld's server gives it up after 120 s."""
TRANSFER_S = 120.0
"""Of a file in either direction."""
OPEN_S = 60.0
"""Until a window shows an opened file. OSWorld's server itself waits for half an hour."""
TREE_S = 60.0
"""Of the accessibility tree, which takes up to half a minute for a spreadsheet."""
SCREEN_BYTES = 64 * 2**20
FILE_BYTES = 512 * 2**20
PNG, JPEG = b"\x89PNG\r\n\x1a\n", b"\xff\xd8\xff"

Command = str | Sequence[str]


class CommandOutcome(TypedDict):
    """How a command ended: ``status`` is ``success`` whatever ``returncode`` it had."""

    status: str
    output: str
    error: str
    returncode: int


class Machine:
    """A client of one machine. Every call raises EnvironmentFault, with the reason, unless the machine did it.

    A call takes at most its limit, and what is left of ``deadline`` if one is given.
    """

    def __init__(self, endpoint: MachineEndpoint, call_timeout_s: float = 15.0) -> None:
        self.endpoint = endpoint
        self.call_timeout_s = call_timeout_s
        self._connection = Connection(endpoint, call_timeout_s)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the client; the machine stays as it is."""
        await self._connection.close()

    # --- what it shows

    async def screenshot(self, deadline: Deadline | None = None) -> bytes:
        """Return the screen with the pointer, a PNG or JPEG."""
        image = await self._connection.send("GET", "/screenshot", deadline, limit_bytes=SCREEN_BYTES)
        if not image.startswith((PNG, JPEG)):
            raise EnvironmentFault(f"{self._connection.at('/screenshot')} answers no image: {excerpt(image)!r}")
        return image

    async def screen_size(self, deadline: Deadline | None = None) -> Size:
        """Return width and height of the screen."""
        return self._size("/screen_size", await self._connection.send("POST", "/screen_size", deadline))

    async def window_size(self, class_name: str, deadline: Deadline | None = None) -> Size:
        """Return width and height of the first window of a class."""
        form = aiohttp.FormData({"app_class_name": class_name})
        return self._size("/window_size", await self._connection.send("POST", "/window_size", deadline, data=form))

    async def cursor_position(self, deadline: Deadline | None = None) -> tuple[int, int]:
        """Return where the pointer is."""
        answer = await self._connection.send("GET", "/cursor_position", deadline)
        return self._connection.decode("/cursor_position", answer, tuple[int, int])

    async def accessibility(self, deadline: Deadline | None = None) -> str:
        """Return the accessibility tree as XML."""
        answer = await self._connection.send("GET", "/accessibility", deadline, limit_s=TREE_S)
        return str(self._connection.field("/accessibility", answer, "AT", str))

    async def terminal(self, deadline: Deadline | None = None) -> str | None:
        """Return the text of the active terminal, None if none is."""
        answer = await self._connection.send("GET", "/terminal", deadline, limit_s=TREE_S)
        output = self._connection.decode("/terminal", answer, dict[str, Any]).get("output")
        return None if output is None else str(output)

    async def platform(self, deadline: Deadline | None = None) -> str:
        """Return the name of its operating system."""
        return (await self._connection.send("GET", "/platform", deadline)).decode(errors="replace").strip()

    # --- commands

    async def execute(
        self, command: Command, shell: bool = False, deadline: Deadline | None = None, limit_s: float = EXECUTE_S
    ) -> CommandOutcome:
        """Run a command and wait for its end."""
        body = {"command": command, "shell": shell}
        answer = await self._connection.send("POST", "/execute", deadline, limit_s=limit_s, json_body=body)
        return self._connection.decode("/execute", answer, CommandOutcome)

    async def execute_with_verification(
        self,
        command: Command,
        verification: Mapping[str, Any],
        *,
        shell: bool = False,
        wait_s: float = 10.0,
        interval_s: float = 1.0,
        deadline: Deadline | None = None,
    ) -> CommandOutcome:
        """Run a command, then wait until a window exists or another command succeeds."""
        body = {
            "command": command,
            "shell": shell,
            "verification": verification,
            "max_wait_time": wait_s,
            "check_interval": interval_s,
        }
        answer = await self._connection.send(
            "POST", "/execute_with_verification", deadline, limit_s=EXECUTE_S + wait_s, json_body=body
        )
        return self._connection.decode("/execute_with_verification", answer, CommandOutcome)

    async def run_python(self, code: str, deadline: Deadline | None = None) -> dict[str, Any]:
        """Run a Python program; the answer has ``status``, ``output``, ``error`` and ``return_code``."""
        answer = await self._connection.send("POST", "/run_python", deadline, limit_s=35.0, json_body={"code": code})
        return self._connection.decode("/run_python", answer, dict[str, Any])

    async def run_bash_script(
        self, script: str, timeout_s: float = 30.0, folder: str | None = None, deadline: Deadline | None = None
    ) -> dict[str, Any]:
        """Run a script; the answer has ``status``, ``output`` (errors in it) and ``returncode``."""
        body = {"script": script, "timeout": timeout_s, "working_dir": folder}
        answer = await self._connection.send(
            "POST", "/run_bash_script", deadline, limit_s=timeout_s + 5.0, json_body=body
        )
        return self._connection.decode("/run_bash_script", answer, dict[str, Any])

    async def launch(self, command: Command, shell: bool = False, deadline: Deadline | None = None) -> None:
        """Start a program and do not wait for it."""
        await self._connection.send("POST", "/setup/launch", deadline, json_body={"command": command, "shell": shell})

    # --- files

    async def upload(self, path: str, data: bytes, deadline: Deadline | None = None) -> None:
        """Write a file; its folder is made. ``~`` and variables in the path are the machine's."""
        form = aiohttp.FormData()
        form.add_field("file_path", path)
        form.add_field("file_data", data, filename=path.rpartition("/")[2] or "file")
        await self._connection.send("POST", "/setup/upload", deadline, limit_s=TRANSFER_S, data=form)

    async def file(self, path: str, deadline: Deadline | None = None) -> bytes:
        """Return what a file contains; raise :class:`FileMissing` if there is none."""
        form = aiohttp.FormData({"file_path": path})
        return await self._connection.send(
            "POST", "/file", deadline, limit_s=TRANSFER_S, limit_bytes=FILE_BYTES, data=form, missing=path
        )

    async def list_directory(self, path: str, deadline: Deadline | None = None) -> dict[str, Any]:
        """Return the tree of a folder: ``type``, ``name`` and ``children``."""
        answer = await self._connection.send("POST", "/list_directory", deadline, json_body={"path": path})
        tree: dict[str, Any] = self._connection.field("/list_directory", answer, "directory_tree", dict)
        return tree

    async def desktop_path(self, deadline: Deadline | None = None) -> str:
        """Return the folder of the desktop."""
        answer = await self._connection.send("POST", "/desktop_path", deadline)
        return str(self._connection.field("/desktop_path", answer, "desktop_path", str))

    async def wallpaper(self, deadline: Deadline | None = None) -> bytes:
        """Return the image of the background; raise :class:`FileMissing` if there is none."""
        return await self._connection.send(
            "POST", "/wallpaper", deadline, limit_bytes=SCREEN_BYTES, missing="the wallpaper"
        )

    # --- windows

    async def open_file(self, path: str, deadline: Deadline | None = None) -> None:
        """Open a file with its application, and wait until a window has its name."""
        await self._connection.send("POST", "/setup/open_file", deadline, limit_s=OPEN_S, json_body={"path": path})

    async def activate_window(
        self, name: str, strict: bool = False, by_class: bool = False, deadline: Deadline | None = None
    ) -> None:
        """Bring a window to the front; the machine says nothing if there is none."""
        body = {"window_name": name, "strict": strict, "by_class": by_class}
        await self._connection.send("POST", "/setup/activate_window", deadline, json_body=body)

    async def close_window(
        self, name: str, strict: bool = False, by_class: bool = False, deadline: Deadline | None = None
    ) -> None:
        """Close a window; the machine says nothing if there is none."""
        body = {"window_name": name, "strict": strict, "by_class": by_class}
        await self._connection.send("POST", "/setup/close_window", deadline, json_body=body)

    async def change_wallpaper(self, path: str, deadline: Deadline | None = None) -> None:
        """Set the image of the background."""
        await self._connection.send("POST", "/setup/change_wallpaper", deadline, json_body={"path": path})

    def _size(self, path: str, answer: bytes) -> Size:
        found = self._connection.decode(path, answer, dict[str, int])
        if found.get("width", 0) <= 0 or found.get("height", 0) <= 0:
            raise EnvironmentFault(f"{self._connection.at(path)} answers no size: {excerpt(answer)}")
        return found["width"], found["height"]
