"""The command ``code`` of a sandbox: VS Code's own web server at a port of loopback, in a window of the browser.

It is a program of its own. Files open in the running window, if there is one, as in VS Code for the desktop.
"""

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import quote

ROOT = Path("/opt/vscode")
"""VS Code's server, as the package code-server has it."""
NODE = "/usr/bin/node"
HOST, PORT = "127.0.0.1", 44390
UP_S = 60.0
POLL_INTERVAL_S = 0.1
RUNTIME = Path("/run/user/1000")
DATA, EXTENSIONS = ".config/Code", ".vscode/extensions"
"""Folders of VS Code for the desktop, below the home, which evaluators read."""
SETTINGS = {
    "window.title": "${dirty}${activeEditorShort}${separator}${rootName}${separator}Visual Studio Code",
    "files.autoSave": "off",
    "workbench.startupEditor": "none",
    "window.menuBarVisibility": "classic",
}
"""Settings of the machine, which the user's come before: the title and the defaults of VS Code for the desktop."""
TO_SERVER = ("--install-extension", "--uninstall-extension", "--list-extensions", "--show-versions", "--force")
"""Options for the server's own command line, which ends without a window."""
WITH_VALUE = frozenset({"--install-extension", "--uninstall-extension", "--user-data-dir", "--extensions-dir"})
BROWSER = "/usr/lib/chromium/chromium"
WINDOW = (
    *("--no-sandbox", "--test-type", "--no-first-run", "--no-default-browser-check", "--password-store=basic"),
    *("--class=code", "--start-maximized"),
)
WORKSPACE = ".code-workspace"


@dataclass
class CodeCommand:
    """A parsed command line: paths to open, and options for the server."""

    paths: "list[Path]" = field(default_factory=list)
    options: "list[str]" = field(default_factory=list)
    version: bool = False


def parse_arguments(words: "Sequence[str]", folder: Path) -> CodeCommand:
    """Parse a command line; options that only concern windows are dropped, as there is one window a path."""
    command, rest = CodeCommand(), list(words)
    while rest:
        word = rest.pop(0)
        name = word.partition("=")[0]
        value = [rest.pop(0)] if word == name and name in WITH_VALUE and rest else []
        if name in TO_SERVER:
            command.options += [word, *value]
        elif name in ("--version", "-v"):
            command.version = True
        elif not word.startswith("-"):
            command.paths.append(folder / word)
    if "--list-extensions" in command.options:
        command.paths.clear()  # Tasks give a shell's pipe and grep as arguments.
    return command


def window_address(path: "Path | None", line: str = "") -> str:
    """Return the address of a window for a folder, a workspace or a file, or for none."""
    base = f"http://{HOST}:{PORT}/"
    if path is None:
        return f"{base}?ew=true"
    if path.suffix == WORKSPACE:
        return f"{base}?workspace={quote(str(path))}"
    if path.is_dir():
        return f"{base}?folder={quote(str(path))}"
    place = f"vscode-remote://{HOST}:{PORT}{path}{line}"
    options = [["openFile", place], *([["gotoLineMode", "true"]] if line else [])]
    return f"{base}?ew=true&payload={quote(json.dumps(options))}"


def split_line(path: Path) -> "tuple[Path, str]":
    """Split the line and column off a path of ``--goto``."""
    name, separator, rest = path.name.partition(":")
    if path.exists() or not separator or not all(part.isdigit() for part in rest.split(":")):
        return path, ""
    return path.with_name(name), separator + rest


def server_command(home: Path, *options: str) -> "list[str]":
    """Return the command of the server with its folders, and make that of extensions, which it cannot."""
    folders = [f"--user-data-dir={home / DATA}", f"--server-data-dir={home / DATA}"]
    folders.append(f"--extensions-dir={home / EXTENSIONS}")
    (home / EXTENSIONS).mkdir(parents=True, exist_ok=True)
    accepted = ["--accept-server-license-terms", "--telemetry-level=off"]
    return [NODE, str(ROOT / "out/server-main.js"), *folders, *accepted, *options]


def start_server(home: Path) -> None:
    """Start the server unless it runs, and wait until it listens; raise TimeoutError if it does not."""
    if is_listening():
        return
    machine = home / DATA / "Machine/settings.json"
    if not machine.exists():
        machine.parent.mkdir(parents=True, exist_ok=True)
        machine.write_text(json.dumps(SETTINGS, indent=4), encoding="utf-8")
    start(
        server_command(
            home, f"--host={HOST}", f"--port={PORT}", "--without-connection-token", "--disable-workspace-trust"
        )
    )
    deadline = time.monotonic() + UP_S
    while not is_listening():
        if time.monotonic() > deadline:
            raise TimeoutError(f"VS Code's server does not listen after {UP_S:g} s")
        time.sleep(POLL_INTERVAL_S)


def is_listening() -> bool:
    """Return whether the server listens."""
    with socket.socket() as probe:
        return probe.connect_ex((HOST, PORT)) == 0


def start(command: "list[str]") -> None:
    """Start a program that outlives this one."""
    nothing = subprocess.DEVNULL
    subprocess.Popen(command, stdin=nothing, stdout=nothing, stderr=nothing, start_new_session=True)


def open_in_window(path: Path, line: str) -> bool:
    """Open a path in the newest running window; return False without one."""
    sockets = sorted(RUNTIME.glob("vscode-ipc-*.sock"), key=lambda found: -found.stat().st_mtime)
    product = json.loads((ROOT / "product.json").read_bytes())
    named = ["code", product.get("version", ""), product.get("commit", ""), "code"]
    words = [NODE, str(ROOT / "out/server-cli.js"), *named, *(["--goto"] if line else []), f"{path}{line}"]
    for found in sockets:
        with socket.socket(socket.AF_UNIX) as probe:
            if probe.connect_ex(str(found)):
                continue  # Its window was closed.
        return subprocess.call(words, env={**os.environ, "VSCODE_IPC_HOOK_CLI": str(found)}) == 0
    return False


def main(words: "Sequence[str]") -> int:
    """Run the command; return its exit code."""
    home = Path(os.environ.get("HOME", "/home/user"))
    command = parse_arguments(words, Path.cwd())
    if command.version:
        return subprocess.call([NODE, str(ROOT / "out/server-main.js"), "--version"])
    if command.options:
        return subprocess.call(server_command(home, *command.options))
    start_server(home)
    profile = f"--user-data-dir={home / '.cache/code-window'}"
    for path, line in map(split_line, command.paths):
        if not open_in_window(path, line):
            start([BROWSER, *WINDOW, profile, f"--app={window_address(path, line)}"])
    if not command.paths:
        start([BROWSER, *WINDOW, profile, f"--app={window_address(None)}"])
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
