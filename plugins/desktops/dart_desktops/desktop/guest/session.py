"""A desktop session: the X server, the bus, the window manager, and one application with its files.

Each session starts clean: all processes are ended, and all writable folders are emptied.
"""

import asyncio
import base64
import contextlib
import os
import shutil
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from dart_desktops.desktop.guest import file_calls, processes, windows
from dart_desktops.desktop.guest.display import XDisplay

HOME = Path("/home/user")
RUNTIME = Path("/run/user/1000")
FRAMES = Path("/run/frames")
OUTPUT = Path("/run/output")
"""Standard output of the application, outside its home, which the application may show."""
WRITABLE = (HOME, Path("/tmp"), Path("/run"), Path("/var/tmp"), Path("/dev/shm"))
REPEAT_MS = 3000
"""Time for which a key is held before it repeats. A starved desktop takes longer than the usual 660 ms for a stroke."""
X_SERVER = (
    *("Xvfb", "-nolisten", "tcp", "-noreset", "-extension", "GLX", "-s", "0", "-dpms"),
    *("-ardelay", str(REPEAT_MS), "-fbdir", str(FRAMES)),
)
"""Command of the X server, without GLX, whose renderer takes 50 MB; the screen never goes blank."""
WINDOW_MANAGER = ("openbox", "--sm-disable")
NOT_ACCESSIBLE = {"NO_AT_BRIDGE": "1"}
"""Makes GTK ignore the accessibility bus."""
OUTPUT_CHARACTERS = 65536
FOLDERS = ("Desktop", "Documents", "Downloads", "Music", "Pictures", "Public", "Templates", "Videos")
BACKGROUND = 0x5E2750
"""Color of an empty desktop, red, green and blue."""
UP_S = 60.0
"""Time limit of the X server, the bus and the window manager; the worker's limit is usually lower."""
QUIET_S = 0.06
"""Time without computing or drawing after which the desktop is at rest."""
IDLE_S = 0.12
"""The same if nothing was drawn since the input, as the application may not have responded yet."""
POLL_INTERVAL_S = 0.01
BUSY_INTERVAL_S = 0.02
"""Poll interval of computing, which costs more than that of drawing."""
STILL_LOOKS = 3
"""Looks without computing or drawing before the desktop is at rest. A starved sandbox looks seldom."""
SETTLE_S = 5.0
"""Time limit for a step to come to rest, without time in which this process waits for a processor."""
LONGEST_SETTLE_S = 20.0
"""The same with that time, on a machine that is overloaded."""
APP_S = 120.0
"""Time limit for an application to show its window and come to rest."""


class SessionError(Exception):
    """The session could not be started, or a part of it has ended."""


class DesktopSession:
    """The current session of this sandbox."""

    def __init__(self, width: int, height: int) -> None:
        self.size = width, height
        self.prepared: tuple[int, ...] | None = None
        """Screen size, accessibility and frames of a desktop without an application, None after the application's
        start."""
        self.display: XDisplay | None = None
        self.parts: dict[str, processes.OwnedProcess] = {}
        self.app: processes.OwnedProcess | None = None
        self.seen: dict[str, Any] = {}
        self.watched: Sequence[str] = ()
        self.ends = True
        self.step_quiet_s = QUIET_S
        self.activity = processes.Activity()

    async def prepare(self, screen: Sequence[int] = (), accessible: bool = True, frames: bool = True) -> None:
        """Restart all parts but the application, on a screen of this size (default: the sandbox's).

        Without ``frames`` windows fill the screen.
        """
        self.stop()
        lay_out()
        await self._start_display(*(screen or self.size))
        self._start_part(
            "bus", ["dbus-daemon", "--session", "--nofork", "--nopidfile", f"--address=unix:path={RUNTIME}/bus"]
        )
        await self._until("the bus", lambda: (RUNTIME / "bus").exists())
        if accessible:
            self._start_part("accessibility bus", ["/usr/libexec/at-spi-bus-launcher", "--launch-immediately"])
        self._start_part("window manager", [*WINDOW_MANAGER, *([] if frames else ["--config-file", windows.FRAMELESS])])
        await self._until("the window manager", self.shown.managed)
        await self.settle(UP_S)
        self.prepared = (*self.shown.frames.size, accessible, frames)

    async def start(
        self,
        command: Sequence[str],
        files: Mapping[str, str],
        watched: Sequence[str],
        screen: Sequence[int] = (),
        accessible: bool = True,
        quiet_s: float = QUIET_S,
        frames: bool = True,
        ends: bool = True,
        step_quiet_s: float = QUIET_S,
    ) -> None:
        """Start the application on a clean desktop, and wait until nothing was computed or drawn for ``quiet_s``.

        Without a ``command`` the desktop is empty, and its home has the usual folders. ``files`` maps paths in the home
        to base64. With ``ends`` a change of a watched path ends the session. Steps are at rest after ``step_quiet_s``.
        """
        if self.prepared != (*(screen or self.size), accessible, frames):
            await self.prepare(screen, accessible, frames)
        self.prepared = None
        write_files(files)
        self.watched, self.ends, self.step_quiet_s = watched, ends, step_quiet_s
        self.seen = self.state()
        if not command:
            self.shown.fill(BACKGROUND)
            for name in FOLDERS:
                (HOME / name).mkdir(exist_ok=True)
            return
        self.app = launch(command, {} if accessible else NOT_ACCESSIBLE)
        await self._until(command[0], self._app_is_there, APP_S)
        if not await self.settle(APP_S, quiet_s):
            raise SessionError(f"{command[0]} is not at rest after {APP_S:g} s")
        if self.over:
            raise SessionError(f"{command[0]} ended at once")

    def launch_more(self, command: Sequence[str]) -> None:
        """Start another program without waiting for it."""
        self.check()
        output = subprocess.DEVNULL
        processes.OwnedProcess(command, cwd=HOME, stdin=output, stdout=output, stderr=output, start_new_session=True)

    def stop(self) -> None:
        """End all processes and empty all writable folders."""
        if self.display is not None:
            with contextlib.suppress(Exception):  # Its server may have ended.
                self.display.close()
        processes.end_all({os.getpid()})
        processes.remove_shared()
        self.parts.clear()
        self.display = self.app = self.prepared = None
        for folder in WRITABLE:
            if folder.is_dir():
                file_calls.empty_folder(folder)

    @property
    def shown(self) -> XDisplay:
        """The display; raises SessionError if there is none."""
        if self.display is None:
            raise SessionError("there is no session: it was not started")
        return self.display

    @property
    def over(self) -> bool:
        """Whether the application has ended, or has changed a watched path of a session that this ends."""
        if self.app is None or self.app.poll() is not None:
            return True
        return self.ends and bool(self.watched) and self.state() != self.seen

    def state(self) -> dict[str, Any]:
        """Return the contents of the watched paths, None for a missing one."""
        return {name: file_calls.seen_content(HOME / name, WRITABLE) for name in self.watched}

    def outcome(self) -> dict[str, Any]:
        """Return the application's exit code (None: it runs), its output, and the contents of the watched paths."""
        return {
            "exit_code": None if self.app is None else self.app.poll(),
            "output": read_output(),
            "state": self.state(),
        }

    async def settle(self, limit_s: float = SETTLE_S, quiet_s: float = QUIET_S) -> bool:
        """Wait until nothing was computed or drawn for ``quiet_s``; return False after ``limit_s``.

        On an overloaded machine the limit is longer: applications then have as little time as this process.
        """
        processes.reap_ended()
        began = busy_at = still_at = last = time.monotonic()
        looked_at = waited_s = 0.0
        drew = False
        looks = 0
        while True:
            self.check()
            now = time.monotonic()
            waited_s, last = waited_s + min(now - last, BUSY_INTERVAL_S), now
            if self.shown.drew():
                drew, busy_at, looks = True, now, 0
            elif now - looked_at >= BUSY_INTERVAL_S:
                looked_at = now
                if self._computes():
                    busy_at, looks = now, 0
                else:
                    looks += 1
                    still_at = now if looks == 1 else still_at
                    if looks >= STILL_LOOKS and now - busy_at >= (quiet_s if drew else max(quiet_s, IDLE_S)):
                        self.shown.strikes.note_rest(still_at)
                        return True
            if waited_s > limit_s or now - began > max(limit_s, LONGEST_SETTLE_S):
                return False
            await asyncio.sleep(POLL_INTERVAL_S)

    def _computes(self) -> bool:
        """Return whether a process other than this one computes or waits to."""
        return self.activity.busy({os.getpid()})

    def _app_is_there(self) -> bool:
        # A window that is shown was drawn; to query windows costs as much as a poll of all processes.
        assert self.app is not None
        return self.app.poll() is not None or (self.shown.drew() and self.shown.shown() > 0)

    def check(self) -> None:
        """Raise SessionError if a part of the session has ended."""
        for name, part in self.parts.items():
            if part.poll() is not None:
                raise SessionError(f"the {name} has ended, with exit code {part.returncode}")

    async def _start_display(self, width: int, height: int) -> None:
        reading, writing = os.pipe()
        try:
            self._start_part(
                "X server",
                [*X_SERVER, "-displayfd", str(writing), "-screen", "0", f"{width}x{height}x24"],
                pass_fds=(writing,),
            )
        finally:
            os.close(writing)
        with os.fdopen(reading, "rb", buffering=0) as pipe:
            os.set_blocking(pipe.fileno(), False)
            output = b""

            def has_number() -> bool:
                nonlocal output
                output += pipe.read() or b""
                return output.endswith(b"\n")

            await self._until("the X server", has_number)
        number = int(output)
        os.environ["DISPLAY"] = f":{number}"
        self.display = XDisplay(number, FRAMES / "Xvfb_screen0", self._computes)

    def _start_part(self, name: str, command: list[str], pass_fds: Sequence[int] = ()) -> None:
        self.parts[name] = processes.OwnedProcess(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, pass_fds=pass_fds
        )

    async def _until(self, what: str, ready: Any, limit_s: float = UP_S) -> None:
        deadline = time.monotonic() + limit_s
        while not ready():
            self.check()
            if time.monotonic() > deadline:
                raise SessionError(f"{what} is not there after {limit_s:g} s")
            await asyncio.sleep(POLL_INTERVAL_S)


def lay_out() -> None:
    """Create the folders of a session, and its home."""
    for folder in (RUNTIME, FRAMES, HOME):
        folder.mkdir(parents=True, exist_ok=True)
    RUNTIME.chmod(0o700)
    shutil.copytree("/opt/home", HOME, dirs_exist_ok=True)


def write_files(files: Mapping[str, str]) -> None:
    """Write files, given as base64, into the home."""
    for name, encoded in files.items():
        path = HOME / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(base64.b64decode(encoded))


def launch(command: Sequence[str], environment: Mapping[str, str]) -> processes.OwnedProcess:
    """Start the application in the home with further environment variables."""
    variables = {**os.environ, **environment}
    with OUTPUT.open("wb") as output:
        return processes.OwnedProcess(command, cwd=HOME, stdout=output, stderr=subprocess.DEVNULL, env=variables)


def read_output() -> str:
    """Return the beginning of the application's output, empty if it cannot be read."""
    with contextlib.suppress(OSError), OUTPUT.open(encoding="utf-8", errors="replace") as output:
        return output.read(OUTPUT_CHARACTERS)
    return ""
