"""The browser process and the pool of its pages: found, started, restarted when dead, killed with its children."""

import asyncio
import contextlib
import os
import shutil
import signal
import subprocess
import tempfile
from pathlib import Path

import structlog

from dart_streams.config import Config
from dart_streams.errors import ServiceUnavailable
from dart_streams.tasks import Task
from workers.env import metrics
from workers.env.environment import EnvironmentFault
from workers.env.miniwob.devtools import MESSAGE_BYTES, DevTools
from workers.env.miniwob.page import MiniwobPage

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
"""Where a browser may be; deploy/local/setup.sh looks there too. Debian's binary comes before its shell wrapper, whose
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
    "--window-size=500,320",
)
"""Frames stay limited to 60 Hz: without the limit an idle browser uses a whole core."""
NICENESS = 10
"""Browsers do most of the work, and a slow page delays one episode only, unlike the policy, the broker or the trainer.
Started by root, Chromium would even raise its own priority above theirs."""
SPARE_PAGES = 2
"""Idle pages kept per slot for an episode of their document: each costs 20 MB, and saves loading the document."""
START_S = 30.0
END_S = 5.0

log = structlog.get_logger()


def find_browser() -> str:
    """Return the path of a Chromium; raise :class:`ServiceUnavailable` that names the package if there is none."""
    for place in PLACES:
        if found := shutil.which(place):
            return found
    raise ServiceUnavailable(
        "no Chromium or Chrome found: install one (on Debian: apt-get install chromium-headless-shell)"
    )


class Browser:
    """A running browser and its connection."""

    def __init__(self, process: "subprocess.Popen[bytes]", devtools: DevTools, profile: Path) -> None:
        self.process = process
        self.devtools = devtools
        self.profile = profile

    @property
    def alive(self) -> bool:
        """Whether the process runs and its pipe is open."""
        return not self.devtools.closed and self.process.poll() is None

    @classmethod
    async def launch(cls, timeout_s: float) -> "Browser":
        """Start a browser with a profile of its own; raise :class:`ServiceUnavailable` if it does not come up."""
        path = find_browser()
        profile = Path(tempfile.mkdtemp(prefix="dart-chromium-"))
        process, read_fd, write_fd = spawn([path, *FLAGS, f"--user-data-dir={profile}", "about:blank"])
        browser = cls(process, await connect(read_fd, write_fd, timeout_s), profile)
        try:
            async with asyncio.timeout(START_S):
                version = await browser.devtools.call("Browser.getVersion")
        except (EnvironmentFault, TimeoutError) as error:
            await browser.kill()
            raise ServiceUnavailable(f"{path} does not start ({error}): try it by hand with --headless") from None
        log.info("browser up", product=version["product"], pid=process.pid)
        return browser

    async def kill(self) -> None:
        """Kill the browser and all its children, and remove its profile."""
        await self.devtools.close()
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        await asyncio.to_thread(self.process.wait, END_S)
        await asyncio.to_thread(shutil.rmtree, self.profile, True)


def spawn(command: list[str]) -> tuple["subprocess.Popen[bytes]", int, int]:
    """Start a browser in its own session; return it and our ends of its two pipes, to read and to write."""
    read_fd, its_out = os.pipe()
    its_in, write_fd = os.pipe()
    process = subprocess.Popen(
        # The protocol wants file descriptors 3 and 4; the plain shell duplicates only those below 10 by number.
        ["/bin/sh", "-c", f'exec "$0" "$@" 3</dev/fd/{its_in} 4>/dev/fd/{its_out}', *command],
        pass_fds=(its_in, its_out),
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
    """Lower the priority of a process and its future children.

    With autogroup scheduling niceness counts only within a session, so the session's own is set too.
    """
    with contextlib.suppress(OSError):  # it has ended already, or this is not permitted
        os.setpriority(os.PRIO_PROCESS, pid, NICENESS)
        Path(f"/proc/{pid}/autogroup").write_text(str(NICENESS))


async def connect(read_fd: int, write_fd: int, timeout_s: float) -> DevTools:
    """Wrap the parent's ends of the two pipes."""
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader(limit=MESSAGE_BYTES)
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(read_fd, "rb", 0))
    writer, _ = await loop.connect_write_pipe(asyncio.Protocol, os.fdopen(write_fd, "wb", 0))
    return DevTools(reader, writer, timeout_s)


class MiniwobBackend:
    """Opens pages in the browser; a slot whose page or browser crashed recovers with the next :meth:`open`."""

    def __init__(self, config: Config) -> None:
        self.timeout_s = config.env.miniwob.call_timeout_s
        self.isolation = config.env.miniwob.isolation
        self.last_screen = config.env.miniwob.last_screen
        self.spare = SPARE_PAGES * config.env.slots
        self.browser: Browser | None = None
        self._launch_lock = asyncio.Lock()
        self._idle: list[MiniwobPage] = []
        self._keep = None if self.isolation == "context" else self._idle.append

    async def start(self) -> None:
        """Start the browser; raise :class:`~dart_streams.errors.ServiceUnavailable` if that is impossible."""
        await self._running_browser()

    async def open(self, task: Task) -> MiniwobPage:
        """Return a page that no open episode shares; raise :class:`EnvironmentFault` if the browser refuses."""
        browser = await self._running_browser()
        if page := self._take_idle(task.page):
            return page
        try:
            page = MiniwobPage(browser.devtools, self.isolation, self._keep, self.last_screen)
            await page.open()
            return page
        except KeyError as missing:
            raise EnvironmentFault(f"the browser's response lacks {missing}") from None

    def _take_idle(self, name: str) -> MiniwobPage | None:
        """Return an idle page, preferably with document ``name``; None if there is room for a new one."""
        for place in reversed(range(len(self._idle))):
            if self.isolation == "document" or self._idle[place].page == name:
                return self._idle.pop(place)
        return self._idle.pop(0) if len(self._idle) >= self.spare else None

    async def stop(self) -> None:
        """End the browser."""
        if self.browser is not None:
            await self.browser.kill()
            self.browser = None

    async def _running_browser(self) -> Browser:
        async with self._launch_lock:
            if self.browser is not None and not self.browser.alive:
                log.warning("browser died; starting another", exit_code=self.browser.process.poll())
                metrics.browser_restarts.add(1)
                await self.stop()
                self._idle.clear()
            if self.browser is None:
                self.browser = await Browser.launch(self.timeout_s)
            return self.browser
