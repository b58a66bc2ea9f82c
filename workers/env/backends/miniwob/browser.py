"""The browser process: it is found, started in a mode in which it can draw, and killed with its children."""

import asyncio
import contextlib
import functools
import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

import structlog

from dart_streams.background import cancel_tasks
from dart_streams.config import Capture
from dart_streams.errors import ServiceUnavailable
from dart_streams.socket_folder import LockedFolder, remove_abandoned
from workers.env.backends.miniwob.capture import BeginFrames, Screenshots
from workers.env.backends.miniwob.devtools import MESSAGE_BYTES, DevTools
from workers.env.backends.miniwob.process_load import load_alone, load_of
from workers.env.backends.miniwob.target import Target
from workers.env.backends.miniwob.watchdogs import end_large_processes, end_when_silent
from workers.env.environment import EnvironmentFault
from workers.env.foreign_process import confined_command, confinement_gap, kill_group, login_variables, lower_session

PLACES = (
    "/usr/lib/chromium/chromium-headless-shell",
    "chromium-headless-shell",
    "chrome-headless-shell",
    "/usr/lib/chromium/chromium",
    "chromium",
    "chromium-browser",
    "google-chrome",
    "google-chrome-stable",
    "/Applications/Chromium.app/Contents/MacOS/Chromium",
    "/Applications/Google Chrome.app/Contents/MacOS/Google Chrome",
)
"""Candidate paths of a browser, also in deploy/local/setup.sh. Debian's binary comes before its shell wrapper, whose
child would outlive a SIGKILL."""
FLAGS = (
    "--headless",
    "--remote-debugging-pipe",
    "--no-sandbox",
    "--no-first-run",
    "--disable-gpu",
    "--disable-quic",
    "--disable-sync",
    "--disable-extensions",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-crash-reporter",
    "--disable-breakpad",
    "--disable-site-isolation-trials",
    "--disable-features=IsolateOrigins,site-per-process,Translate,OptimizationHints,MediaRouter,AudioServiceOutOfProcess,BackForwardCache",
    "--disable-renderer-backgrounding",
    "--disable-background-timer-throttling",
    "--disable-dev-shm-usage",
    "--mute-audio",
    "--hide-scrollbars",
    "--force-color-profile=srgb",
    "--font-render-hinting=none",
    "--in-process-gpu",
    # A screen shows one page: another window would not be shown, and would stay when the episode ends.
    "--block-new-web-contents",
    # Contexts never share a renderer, so each has one.
    "--renderer-process-limit=2",
)
"""The limit of 60 frames a second stays: without it an idle browser uses a whole core."""
VARIABLES = {
    "DBUS_SESSION_BUS_ADDRESS": "disabled:",
    "FC_FONTATIONS": "1",
    "VK_ICD_FILENAMES": "/usr/lib/chromium/vk_swiftshader_icd.json",
}
"""What Chromium sets itself while other threads read the environment. If a variable is new, that may crash it."""
NICENESS = 10
"""A slow page delays one episode only, unlike the policy, the broker or the trainer. Started by root, Chromium would
raise its own priority above theirs."""
START_S = 60.0
"""Time limit of each call until the browser has drawn once: on a busy machine its start takes longer than any call."""
PREFIX = "dart-browser-"
END_S = 60.0
"""Time limit for the end of a killed browser: its low priority delays that too on a busy machine."""

log = structlog.get_logger()


def find_browser() -> str:
    """Return the path of a Chromium; raise :class:`ServiceUnavailable` that names the package if there is none."""
    for place in PLACES:
        if path := shutil.which(place):
            return path
    raise ServiceUnavailable(
        "no Chromium or Chrome found: install one (on Debian: apt-get install chromium-headless-shell)"
    )


class BrowserProcess(subprocess.Popen[bytes]):
    """A browser's own process. :meth:`poll` does not reap it: its id stays that of its group, until that is killed."""

    def poll(self) -> int | None:
        """Return the exit code, None while it runs."""
        if self.returncode is None and (ended := os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)):
            return ended.si_status if ended.si_code == os.CLD_EXITED else -ended.si_status
        return self.returncode

    async def end(self) -> None:
        """Kill it and all its children."""
        kill_group(self.pid)
        await asyncio.to_thread(self.wait, END_S)


class Browser:
    """A running browser with its connection and watchdogs. Its ``folder`` has its profile, and copies of pages."""

    def __init__(
        self, process: "subprocess.Popen[bytes]", devtools: DevTools, folder: Path, capturing: Screenshots
    ) -> None:
        self.process = process
        self.devtools = devtools
        self.folder = folder
        self.capturing = capturing
        silence = end_when_silent(devtools, functools.partial(load_alone, process.pid))
        self._watches = [
            asyncio.create_task(silence, name="browser watch"),
            asyncio.create_task(end_large_processes(devtools, process.pid), name="browser memory"),
        ]
        self._ending = contextlib.AsyncExitStack()

    @property
    def alive(self) -> bool:
        """Whether the process runs and its pipe is open."""
        return not self.devtools.closed and self.process.poll() is None

    @classmethod
    async def launch(cls, timeout_s: float, capture: Capture = "auto", pages: Sequence[Path] = ()) -> "Browser":
        """Start a browser that reads ``pages`` and its fresh profile; raise :class:`ServiceUnavailable` if it can't.

        With ``capture="auto"`` a browser that does not draw under begin-frame control is restarted for screenshots.
        """
        browser = await cls._launch_to_draw(capture, pages)
        browser.devtools.timeout_s = timeout_s
        return browser

    @classmethod
    async def _launch_to_draw(cls, capture: Capture, pages: Sequence[Path]) -> "Browser":
        if capture == "screenshot":
            return await cls._launch(Screenshots, pages)
        browser = await cls._launch(BeginFrames, pages)
        try:
            await browser._draw_once()
            return browser
        except EnvironmentFault as error:
            await browser.kill()
            if capture == "begin-frame":
                raise ServiceUnavailable(
                    f"{find_browser()} does not draw under begin-frame control ({error}): install "
                    'chromium-headless-shell, or set env.miniwob.capture to "auto"'
                ) from None
            advice = "chromium-headless-shell needs less CPU time"
            log.warning("screens are taken as screenshots, not by begin-frame", reason=str(error), advice=advice)
            return await cls._launch(Screenshots, pages)
        except BaseException:
            await browser.kill()
            raise

    @classmethod
    async def _launch(cls, capturing: type[Screenshots], pages: Sequence[Path]) -> "Browser":
        path = find_browser()
        if gap := confinement_gap():
            log.warning("a page that takes its browser over is not confined wholly", reason=gap)
        await asyncio.to_thread(remove_abandoned, PREFIX)
        async with contextlib.AsyncExitStack() as ending:
            locked = LockedFolder(PREFIX)
            ending.push_async_callback(asyncio.to_thread, locked.remove)
            profile, copies = locked.folder / "profile", locked.folder / "pages"
            profile.mkdir()
            copies.mkdir()
            command = [path, *FLAGS, *capturing.flags, f"--user-data-dir={profile}", "about:blank"]
            process, read_fd, write_fd = spawn(confined_command(command, (*pages, copies), profile))
            ending.push_async_callback(process.end)
            devtools = await connect(read_fd, write_fd, START_S)
            ending.push_async_callback(devtools.close)
            browser = cls(
                process, devtools, locked.folder, capturing(devtools, functools.partial(load_of, process.pid))
            )
            ending.push_async_callback(cancel_tasks, *browser._watches)
            try:
                version = await devtools.call("Browser.getVersion")
            except EnvironmentFault as error:
                raise ServiceUnavailable(f"{path} does not start ({error}): try it by hand with --headless") from None
            log.info("browser up", product=version["product"], pid=process.pid, capture=capturing.name)
            browser._ending = ending.pop_all()
            return browser

    async def _draw_once(self) -> None:
        """Raise EnvironmentFault if the browser has no begin-frame control."""
        context = (await self.devtools.call("Target.createBrowserContext", disposeOnDetach=True))["browserContextId"]
        target = Target(self.devtools, self.capturing)
        await target.open(context)
        await target.draw()
        await self.devtools.call("Target.disposeBrowserContext", browserContextId=context)

    async def kill(self) -> None:
        """Kill the browser and all its children, and remove its folder."""
        await self._ending.aclose()


def spawn(command: list[str]) -> tuple[BrowserProcess, int, int]:
    """Start a browser in a new session; return it, the pipe to read from and the pipe to write to."""
    read_fd, its_out = os.pipe()
    its_in, write_fd = os.pipe()
    process = BrowserProcess(
        # The protocol uses file descriptors 3 and 4; a POSIX shell can redirect only those below 10.
        ["/bin/sh", "-c", f'exec "$0" "$@" 3</dev/fd/{its_in} 4>/dev/fd/{its_out}', *command],
        pass_fds=(its_in, its_out),
        env=login_variables() | VARIABLES,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    os.close(its_in)
    os.close(its_out)
    lower_priority(process.pid)
    return process, read_fd, write_fd


def lower_priority(pid: int) -> None:
    """Lower the priority of a process and its future children, and of its session for autogroup scheduling."""
    with contextlib.suppress(OSError):  # It has ended already, or this is not permitted.
        os.setpriority(os.PRIO_PROCESS, pid, NICENESS)
    lower_session(pid, NICENESS)


async def connect(read_fd: int, write_fd: int, timeout_s: float) -> DevTools:
    """Return the connection over two pipes."""
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader(limit=MESSAGE_BYTES)
    its_output, its_input = os.fdopen(read_fd, "rb", 0), os.fdopen(write_fd, "wb", 0)
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), its_output)
    writer, _ = await loop.connect_write_pipe(asyncio.Protocol, its_input)
    return DevTools(reader, writer, timeout_s)
