"""The part of OSWorld's HTTP contract that is about files of the sandbox."""

import os
import shlex
import shutil
import stat
import urllib.request
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from aiohttp import web

from workers.env.backends.desktop.guest import commands
from workers.env.backends.desktop.guest.answers import read_json
from workers.env.backends.desktop.guest.session import HOME

FILE_BYTES = 512 * 2**20
ENTRIES = 20_000
"""Of a folder's tree; a longer one is cut off."""
DEPTH = 64
SETTING = ("org.gnome.desktop.background", "picture-uri")
SETTING_S = 5.0
DOWNLOAD_S = 300.0
CHUNK_BYTES = 2**20


class OsworldFilesApi:
    """The endpoints about files; ``in_thread`` runs a call that waits."""

    def __init__(self, in_thread: "Callable[[Callable[[], Any]], Awaitable[Any]]") -> None:
        self.in_thread = in_thread

    def routes(self) -> "list[web.RouteDef]":
        """Return them."""
        return [
            web.post("/desktop_path", self.desktop_path),
            web.post("/wallpaper", self.wallpaper),
            web.post("/list_directory", self.list_directory),
            web.post("/file", self.file),
            web.post("/setup/upload", self.upload),
            web.post("/setup/change_wallpaper", self.change_wallpaper),
            web.post("/setup/download_file", self.download_file),
        ]

    async def desktop_path(self, _: web.Request) -> web.Response:
        """Answer the folder of the desktop."""
        path = HOME / "Desktop"
        if not path.is_dir():
            return web.json_response({"error": "desktop path not found"}, status=404)
        return web.json_response({"desktop_path": str(path)})

    async def wallpaper(self, _: web.Request) -> web.StreamResponse:
        """Answer the image of the background."""
        path = await self.in_thread(wallpaper_path)
        if path is None:
            return web.Response(text="Wallpaper file not found", status=404)
        return web.FileResponse(path, headers={"Content-Type": "image/png"})

    async def list_directory(self, request: web.Request) -> web.Response:
        """Answer a folder with all that is in it."""
        path = (await read_json(request)).get("path")
        if path is None:
            return web.json_response({"error": "Missing 'path' parameter"}, status=400)
        listed = await self.in_thread(lambda: list_tree(Path(str(path)), [ENTRIES], DEPTH))
        if listed is None:
            return web.json_response({"error": "The provided path is not a directory"}, status=400)
        return web.json_response({"directory_tree": listed})

    async def file(self, request: web.Request) -> web.StreamResponse:
        """Answer what a file contains."""
        name = (await request.post()).get("file_path")
        if name is None:
            return web.json_response({"error": "file_path is required"}, status=400)
        path = expand_path(str(name))
        try:
            found = path.stat()
        except (FileNotFoundError, NotADirectoryError):
            return web.json_response({"error": "File not found"}, status=404)
        if not stat.S_ISREG(found.st_mode) or found.st_size > FILE_BYTES:
            why = f"Failed to serve file: {path} is no regular file of at most {FILE_BYTES} bytes"
            return web.json_response({"error": why}, status=500)
        if not os.access(path, os.R_OK):
            return web.json_response({"error": f"Failed to serve file: {path} may not be read"}, status=500)
        return web.FileResponse(path, headers={"Content-Type": "application/octet-stream"})

    async def upload(self, request: web.Request) -> web.Response:
        """Write a file; its folder is made."""
        form = await request.post()
        name, data = form.get("file_path"), form.get("file_data")
        if name is None or not isinstance(data, web.FileField):
            return web.json_response({"error": "file_path and file_data are required"}, status=400)
        path = expand_path(str(name))
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("wb") as file:
                shutil.copyfileobj(data.file, file, CHUNK_BYTES)
        except OSError as error:
            if path.is_file():
                path.unlink()
            return web.json_response({"error": f"Failed to upload file: {error}"}, status=500)
        return web.Response(text=f"File Uploaded: {path.stat().st_size} bytes")

    async def change_wallpaper(self, request: web.Request) -> web.Response:
        """Set the image of the background."""
        name = (await read_json(request)).get("path")
        if not name:
            return web.Response(text="Path not supplied!", status=400)
        path = expand_path(str(name))
        if not path.exists():
            return web.Response(text=f"File not found: {path}", status=404)
        await self.in_thread(lambda: commands.run(["gsettings", "set", *SETTING, f"file://{path}"], SETTING_S))
        return web.Response(text="Wallpaper changed successfully")

    async def download_file(self, request: web.Request) -> web.Response:
        """Fetch a file; from a sandbox without a network this ends as a failure, with the reason."""
        wanted = await read_json(request)
        url, name = wanted.get("url"), wanted.get("path")
        if not url or not name:
            return web.Response(text="Path or URL not supplied!", status=400)
        path = expand_path(str(name))
        try:
            size = await self.in_thread(lambda: download(str(url), path))
        except (OSError, ValueError) as error:
            why = f"Failed to download {url}. No retries left. Error: {error}"
            return web.Response(text=why, status=500)
        return web.Response(text=f"File downloaded successfully: {size} bytes")


def expand_path(name: str) -> Path:
    """Return a path with the home and the variables of the sandbox."""
    return Path(os.path.expandvars(Path(name).expanduser()))


def command_words(command: Any, shell: bool) -> "str | list[str]":
    """Return a command as it is run: a text without a shell is split, and each word's home is put in.

    Raises TypeError if it is neither a text nor a list of texts, ValueError if a quote is not closed, or it is empty.
    """
    if isinstance(command, str):
        if shell:
            return command
        command = shlex.split(command)
    if not isinstance(command, list) or not all(isinstance(word, str) for word in command):
        raise TypeError("command must be a text or a list of texts")
    if not command:
        raise ValueError("command is empty")
    return [str(Path(word).expanduser()) if word.startswith("~/") else word for word in command]


def open_command(name: str) -> "tuple[str, list[str] | None]":
    """Return what a window's title will have, and the command that opens a file or program; None if there is none."""
    path = expand_path(name)
    if path.exists():
        return path.name, ["xdg-open", str(path)]
    return name, [name] if shutil.which(name) else None


def wallpaper_path() -> "Path | None":
    """Return the image of the background, None if there is none."""
    said = commands.run(["gsettings", "get", *SETTING], SETTING_S).output
    path = Path(said.strip().replace("file://", "").replace("'", "") or "none")
    return path if path.is_file() else None


def list_tree(path: Path, left: "list[int]", depth: int) -> "dict[str, Any] | None":
    """Return a folder's tree, None if it is no folder.

    ``left`` is how many entries may still be listed, and ``depth`` how deep.
    """
    if not path.is_dir():
        return None
    children: list[Any] = []
    try:
        for entry in path.iterdir():
            if not left[0]:
                break
            left[0] -= 1
            if entry.is_dir() and depth:
                children.append(list_tree(entry, left, depth - 1))
            else:
                children.append({"type": "file", "name": entry.name})
    except OSError as error:
        return {"error": str(error)}
    return {"type": "directory", "name": path.name, "children": children}


def download(url: str, path: Path) -> int:
    """Write what a URL has to a file; return its size."""
    if not url.startswith(("http://", "https://")):
        raise ValueError("only http and https")
    path.parent.mkdir(parents=True, exist_ok=True)
    with urllib.request.urlopen(url, timeout=DOWNLOAD_S) as source, path.open("wb") as file:
        shutil.copyfileobj(source, file, CHUNK_BYTES)
    return path.stat().st_size
