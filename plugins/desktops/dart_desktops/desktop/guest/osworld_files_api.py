"""The endpoints of OSWorld's HTTP API for files of the sandbox."""

import asyncio
import os
import shlex
import shutil
import stat
import urllib.request
from pathlib import Path
from typing import Any

from aiohttp import web

from dart_desktops.desktop.guest import commands
from dart_desktops.desktop.guest.answers import Refusal, read_json
from dart_desktops.desktop.guest.session import HOME

FILE_BYTES = 512 * 2**20
ENTRIES = 20_000
"""Maximum number of entries of a folder's tree; the rest is omitted."""
DEPTH = 64
SETTING = ("org.gnome.desktop.background", "picture-uri")
SETTING_S = 5.0
DOWNLOAD_S = 300.0
CHUNK_BYTES = 2**20


class OsworldFilesApi:
    """The endpoints for files."""

    def routes(self) -> "list[web.RouteDef]":
        """Return the routes."""
        return [
            web.post("/desktop_path", self._desktop_path),
            web.post("/wallpaper", self._wallpaper),
            web.post("/list_directory", self._list_directory),
            web.post("/file", self._file),
            web.post("/setup/upload", self._upload),
            web.post("/setup/change_wallpaper", self._change_wallpaper),
            web.post("/setup/download_file", self._download_file),
        ]

    async def _desktop_path(self, _: web.Request) -> web.Response:
        path = HOME / "Desktop"
        if not path.is_dir():
            raise Refusal(404, {"error": "desktop path not found"})
        return web.json_response({"desktop_path": str(path)})

    async def _wallpaper(self, _: web.Request) -> web.StreamResponse:
        path = await asyncio.to_thread(wallpaper_path)
        if path is None:
            raise Refusal(404, "Wallpaper file not found")
        return web.FileResponse(path, headers={"Content-Type": "image/png"})

    async def _list_directory(self, request: web.Request) -> web.Response:
        path = (await read_json(request)).get("path")
        if path is None:
            raise Refusal(400, {"error": "Missing 'path' parameter"})
        listed = await asyncio.to_thread(list_tree, Path(str(path)), [ENTRIES], DEPTH)
        if listed is None:
            raise Refusal(400, {"error": "The provided path is not a directory"})
        return web.json_response({"directory_tree": listed})

    async def _file(self, request: web.Request) -> web.StreamResponse:
        name = (await request.post()).get("file_path")
        if name is None:
            raise Refusal(400, {"error": "file_path is required"})
        path = expand_path(str(name))
        try:
            info = path.stat()
        except (FileNotFoundError, NotADirectoryError):
            raise Refusal(404, {"error": "File not found"}) from None
        except OSError as error:
            raise Refusal(500, {"error": f"Failed to serve file: {error}"}) from None
        if not stat.S_ISREG(info.st_mode) or info.st_size > FILE_BYTES:
            why = f"Failed to serve file: {path} is no regular file of at most {FILE_BYTES} bytes"
            raise Refusal(500, {"error": why})
        if not os.access(path, os.R_OK):
            raise Refusal(500, {"error": f"Failed to serve file: {path} may not be read"})
        return web.FileResponse(path, headers={"Content-Type": "application/octet-stream"})

    async def _upload(self, request: web.Request) -> web.Response:
        form = await request.post()
        name, data = form.get("file_path"), form.get("file_data")
        if name is None or not isinstance(data, web.FileField):
            raise Refusal(400, {"error": "file_path and file_data are required"})
        path = expand_path(str(name))
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("wb") as file:
                shutil.copyfileobj(data.file, file, CHUNK_BYTES)
        except OSError as error:
            if path.is_file():
                path.unlink()
            raise Refusal(500, {"error": f"Failed to upload file: {error}"}) from None
        return web.Response(text=f"File Uploaded: {path.stat().st_size} bytes")

    async def _change_wallpaper(self, request: web.Request) -> web.Response:
        name = (await read_json(request)).get("path")
        if not name:
            raise Refusal(400, "Path not supplied!")
        path = expand_path(str(name))
        if not path.exists():
            raise Refusal(404, f"File not found: {path}")
        await asyncio.to_thread(commands.run, ["gsettings", "set", *SETTING, f"file://{path}"], SETTING_S)
        return web.Response(text="Wallpaper changed successfully")

    async def _download_file(self, request: web.Request) -> web.Response:
        body = await read_json(request)
        url, name = body.get("url"), body.get("path")
        if not url or not name:
            raise Refusal(400, "Path or URL not supplied!")
        path = expand_path(str(name))
        try:
            size = await asyncio.to_thread(download, str(url), path)
        except (OSError, ValueError) as error:
            why = f"Failed to download {url}. No retries left. Error: {error}"
            raise Refusal(500, why) from None
        return web.Response(text=f"File downloaded successfully: {size} bytes")


def expand_path(name: str) -> Path:
    """Expand the home and the variables of the sandbox in a path."""
    return Path(os.path.expandvars(Path(name).expanduser()))


def command_words(command: Any, shell: bool) -> "str | list[str]":
    """Return the words of a command, split unless a shell runs it, with the home expanded.

    Raises TypeError unless it is a text or a list of texts, ValueError if it is empty or a quote is not closed.
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
    """Return the expected window title, and the command that opens a file or program, None if there is none."""
    path = expand_path(name)
    if path.exists():
        return path.name, ["xdg-open", str(path.absolute())]
    return name, [name] if shutil.which(name) else None


def wallpaper_path() -> "Path | None":
    """Return the path of the wallpaper, None if there is none."""
    output = commands.run(["gsettings", "get", *SETTING], SETTING_S).output
    path = Path(output.strip().replace("file://", "").replace("'", "") or "none")
    return path if path.is_file() else None


def list_tree(path: Path, left: "list[int]", depth: int) -> "dict[str, Any] | None":
    """Return a folder's tree of at most ``left[0]`` entries and ``depth`` levels, None if it is no folder."""
    children: list[Any] = []
    try:
        if not path.is_dir():
            return None
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
    """Download a URL to a file; return its size."""
    if not url.startswith(("http://", "https://")):
        raise ValueError("only http and https")
    path.parent.mkdir(parents=True, exist_ok=True)
    with urllib.request.urlopen(url, timeout=DOWNLOAD_S) as source, path.open("wb") as file:
        shutil.copyfileobj(source, file, CHUNK_BYTES)
    return path.stat().st_size
