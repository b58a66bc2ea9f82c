"""Client of one machine by OSWorld's HTTP API: each call is bounded in time and size, and sent at most once."""

from collections.abc import Sequence
from http import HTTPStatus
from typing import Any, Literal, TypedDict

import aiohttp
import msgspec

from dart_streams.deadline import Deadline
from workers.env.backends.connection import AnswerTooLong, Connection, StatusFault, excerpt
from workers.env.environment import EnvironmentFault, Size

EXECUTE_S = 125.0
"""Time limit of a command; OSWorld's server kills it after 120 s."""
TRANSFER_S = 120.0
OPEN_S = 60.0
"""Time limit for a window to show an opened file. OSWorld's server itself waits for half an hour."""
TREE_S = 60.0
"""Time limit of the accessibility tree, which takes up to half a minute for a spreadsheet."""
SCREEN_BYTES = 64 * 2**20
FILE_BYTES = 512 * 2**20
UNSERVED = "Failed to serve file"
"""Beginning of OSWorld's reason for a file that exists and cannot be read."""
PNG, JPEG = b"\x89PNG\r\n\x1a\n", b"\xff\xd8\xff"

Command = str | Sequence[str]
WindowVerb = Literal["activate_window", "close_window"]


class CommandOutcome(TypedDict):
    """Result of a command; ``status`` is ``success`` whatever the ``returncode``."""

    status: str
    output: str
    error: str
    returncode: int


class FileMissing(EnvironmentFault):
    """The machine has no file of this path."""


class FileUnreadable(EnvironmentFault):
    """The machine has something of this path that is no readable file, or one that is too large."""


class MachineEndpoint(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Address and token of a machine, and the further ports that evaluators use."""

    url: str
    token: str = ""
    chromium_port: int = 9222
    vlc_port: int = 8080

    def __repr__(self) -> str:
        """Omit the token: endpoints are logged."""
        return f"MachineEndpoint({self.url!r}{', with a token' if self.token else ''})"


class Machine(Connection):
    """Client of one machine. Every call raises EnvironmentFault, with the reason, unless the machine did it.

    A call takes at most its limit, and at most the time left of ``deadline``. Closing it leaves the machine as it is.
    """

    def __init__(self, endpoint: MachineEndpoint, call_timeout_s: float = 15.0) -> None:
        super().__init__(endpoint.url, call_timeout_s, bearer_headers(endpoint.token))
        self.endpoint = endpoint

    async def screenshot(self, deadline: Deadline | None = None) -> bytes:
        """Return the screen with the pointer, a PNG or JPEG."""
        image = await self.send("GET", "/screenshot", deadline, limit_bytes=SCREEN_BYTES)
        if not image.startswith((PNG, JPEG)):
            raise EnvironmentFault(f"{self.at('/screenshot')} answers no image: {excerpt(image)!r}")
        return image

    async def screen_size(self, deadline: Deadline | None = None) -> Size:
        """Return width and height of the screen."""
        answer = await self.send("POST", "/screen_size", deadline)
        size = self.decode("/screen_size", answer, dict[str, int])
        if size.get("width", 0) <= 0 or size.get("height", 0) <= 0:
            raise EnvironmentFault(f"{self.at('/screen_size')} returns no size: {excerpt(answer)}")
        return size["width"], size["height"]

    async def accessibility(self, deadline: Deadline | None = None) -> str:
        """Return the accessibility tree as XML."""
        answer = await self.send("GET", "/accessibility", deadline, limit_s=TREE_S)
        return str(self.field("/accessibility", answer, "AT", str))

    async def execute(
        self, command: Command, shell: bool = False, deadline: Deadline | None = None, limit_s: float = EXECUTE_S
    ) -> CommandOutcome:
        """Run a command until it ends."""
        body = {"command": command, "shell": shell}
        answer = await self.send("POST", "/execute", deadline, limit_s=limit_s, json_body=body)
        return self.decode("/execute", answer, CommandOutcome)

    async def launch(self, command: Command, shell: bool = False, deadline: Deadline | None = None) -> None:
        """Start a program without waiting for it."""
        await self.send("POST", "/setup/launch", deadline, json_body={"command": command, "shell": shell})

    async def upload(self, path: str, data: bytes, deadline: Deadline | None = None) -> None:
        """Write a file and create its folder. The machine expands ``~`` and variables in the path."""
        form = aiohttp.FormData()
        form.add_field("file_path", path)
        form.add_field("file_data", data, filename=path.rpartition("/")[2] or "file")
        await self.send("POST", "/setup/upload", deadline, limit_s=TRANSFER_S, data=form)

    async def file(self, path: str, deadline: Deadline | None = None, limit_bytes: int = FILE_BYTES) -> bytes:
        """Return a file's bytes; raise :class:`FileMissing` if there is none, else :class:`FileUnreadable`."""
        form = aiohttp.FormData({"file_path": path})
        try:
            return await self.send("POST", "/file", deadline, limit_s=TRANSFER_S, limit_bytes=limit_bytes, data=form)
        except StatusFault as fault:
            if fault.status == HTTPStatus.NOT_FOUND:
                raise FileMissing(f"{self.at('/file')}: no {path}") from None
            if UNSERVED in str(fault):
                raise FileUnreadable(str(fault)) from None
            raise
        except AnswerTooLong as fault:
            raise FileUnreadable(f"{path}: {fault}") from None

    async def list_directory(self, path: str, deadline: Deadline | None = None) -> dict[str, Any]:
        """Return the tree of a folder: ``type``, ``name`` and ``children``."""
        answer = await self.send("POST", "/list_directory", deadline, json_body={"path": path})
        tree: dict[str, Any] = self.field("/list_directory", answer, "directory_tree", dict)
        return tree

    async def open_file(self, path: str, deadline: Deadline | None = None) -> None:
        """Open a file in its application, and wait until a window has its name."""
        await self.send("POST", "/setup/open_file", deadline, limit_s=OPEN_S, json_body={"path": path})

    async def manage_window(self, verb: WindowVerb, name: str, strict: bool = False, by_class: bool = False) -> None:
        """Bring a window to the front, or close it; a missing window is no error."""
        body = {"window_name": name, "strict": strict, "by_class": by_class}
        await self.send("POST", f"/setup/{verb}", json_body=body)


def bearer_headers(token: str) -> dict[str, str]:
    """Return the headers of an authorized request, none without a token."""
    return {"Authorization": f"Bearer {token}"} if token else {}


async def run_command(machine: Machine, command: Command, failure: str, **options: Any) -> str:
    """Return the output of a command; raise EnvironmentFault with ``failure`` and its last error text if it fails.

    ``options`` are those of :meth:`Machine.execute`.
    """
    ended = await machine.execute(command, **options)
    if ended["returncode"]:
        raise EnvironmentFault(f"{failure}: {(ended['error'] or ended['output'])[-300:].strip()}")
    return ended["output"]


async def try_command(machine: Machine, command: str, **options: Any) -> bool:
    """Return whether a shell command succeeds; ``options`` are those of :meth:`Machine.execute`."""
    return not (await machine.execute(command, shell=True, **options))["returncode"]
