"""One phone: its Java process, which ends with its standard input, and commands to it, each bounded in time."""

import asyncio
import contextlib
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from dart_phones.installation import built_folder, class_path
from dart_streams.config.text import MALFORMED, raise_if_dense
from dart_streams.java import SHARED_JARS, find_java, jar_folder
from dart_streams.socket_folder import LockedFolder
from workers.env.environment import EnvironmentFault
from workers.env.foreign_process import confined_command, login_variables, lower_session

NICE = 2
"""Below policy and trainer, as a slow phone delays one episode only; a start still gets on beside them."""
HEAP_MB = 192
OPTIONS = (
    f"-Xmx{HEAP_MB}m",
    "-XX:+UseSerialGC",
    "-XX:TieredStopAtLevel=1",
    "-XX:-UsePerfData",
    "-XX:ReservedCodeCacheSize=128m",
    "-Xlog:disable",
    "-Xlog:all=warning:stderr",
    "-Drobolectric.offline=true",
    "-Drobolectric.logging.enabled=false",
)
"""One thread of garbage collection, and the compiler that starts fast.

Its code of a hundred episodes fills Java's default of 48 MB. Java's own log would go to standard output, which has
answers only.
"""
ANSWER_BYTES = 2**25
"""Limit of an answer, most of which is a screen."""
LOG_CHARACTERS = 1000
START_S = 300.0
"""Time limit of a start, which takes 12 core-seconds: minutes on a machine that is busy with other work."""
PREFIX = "dart-android-"
EPISODE = "robolectric-Episode_play"
"""Start of the names of Robolectric's folders of episodes, which it keeps until its process ends."""


class PhoneProcess:
    """A phone, usable until a command fails."""

    def __init__(self, call_timeout_s: float) -> None:
        self.call_timeout_s = call_timeout_s
        self.process: asyncio.subprocess.Process | None = None
        self.episodes = 0
        self._locked = LockedFolder(PREFIX)
        self._folder = self._locked.folder

    @property
    def alive(self) -> bool:
        """Whether its process runs."""
        return self.process is not None and self.process.returncode is None

    async def start(self) -> None:
        """Start the process, and wait until it serves; raise EnvironmentFault if it does not."""
        self.process = await asyncio.create_subprocess_exec(
            *self._command(),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=(self._folder / "log").open("wb"),
            cwd=self._folder,
            env=login_variables(),
            limit=ANSWER_BYTES,
            start_new_session=True,
        )
        lower_session(self.process.pid, NICE)
        await self.request("hello", START_S)

    async def request(self, name: str, limit_s: float | None = None, **arguments: Any) -> Mapping[str, Any]:
        """Send a command and return its answer; raise EnvironmentFault if there is none in time."""
        limit_s = self.call_timeout_s if limit_s is None else limit_s
        try:
            async with asyncio.timeout(limit_s):
                await self.send(name, **arguments)
                assert self.process is not None and self.process.stdout is not None
                line = await self.process.stdout.readline()
        except TimeoutError:
            raise EnvironmentFault(f"the phone did not answer {name!r} within {limit_s:g} s") from None
        except (OSError, ValueError) as error:  # ValueError: a line above the limit
            raise EnvironmentFault(f"the phone has ended: {error}: {self._log_end()}") from None
        if not line.endswith(b"\n"):
            raise EnvironmentFault(f"the phone has ended at {name!r}: {self._log_end()}")
        try:
            raise_if_dense(line)
            return msgspec.json.decode(line, type=dict[str, Any])
        except MALFORMED:
            raise EnvironmentFault(f"the phone wrote a line that is no answer to {name!r}: {line[:200]!r}") from None

    async def send(self, name: str, **arguments: Any) -> None:
        """Send a command without waiting for its answer; ``end`` has none."""
        if self.process is None or self.process.stdin is None:
            raise EnvironmentFault("the phone was not started")
        self.process.stdin.write(msgspec.json.encode({"do": name, **arguments}) + b"\n")
        await self.process.stdin.drain()

    async def remove_ended(self) -> None:
        """Remove the folders of earlier episodes; the newest is that of the present one."""
        await asyncio.to_thread(remove_all_but_newest, self._folder)

    async def stop(self) -> None:
        """End the process and remove its files; never raises."""
        if self.process is not None and self.process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                self.process.kill()
            await self.process.wait()
        await asyncio.to_thread(self._locked.remove)

    def _command(self) -> list[str]:
        program, jars, built = find_java().resolve(), jar_folder("phone", SHARED_JARS), built_folder()
        folders = {
            "java.io.tmpdir": self._folder,
            "robolectric.dependency.dir": jars,
            "java.library.path": built / "native",
        }
        java = [str(program), *OPTIONS, *(f"-D{name}={folder}" for name, folder in folders.items())]
        phone = [*java, "-cp", ":".join(map(str, class_path())), "dart.phone.PhoneServer"]
        settings = {path.resolve().parent for path in (program.parents[1] / "conf").rglob("*")}  # Debian's are in /etc.
        return ["nice", "-n", str(NICE), *confined_command(phone, (jars, built, *settings), self._folder)]

    def _log_end(self) -> str:
        """Return the last of what the process logged."""
        with contextlib.suppress(OSError):
            return (self._folder / "log").read_text(errors="replace", encoding="utf-8").strip()[-LOG_CHARACTERS:]
        return ""


def remove_all_but_newest(folder: Path) -> None:
    """Remove the folders of episodes but the one that was changed last."""
    episodes = sorted(folder.glob(f"{EPISODE}*"), key=lambda path: path.stat().st_mtime_ns)
    for earlier in episodes[:-1]:
        shutil.rmtree(earlier, ignore_errors=True)
