"""Commands of a remote client: each is bounded in time, and its kept output in size."""

import os
import selectors
import signal
import subprocess
import tempfile
import time
from collections.abc import Sequence
from typing import IO, NamedTuple

from dart_desktops.desktop.guest import processes

OUTPUT_BYTES = 2**24
"""Maximum kept size of each stream; further output is read and dropped, so that the command does not block."""
POLL_INTERVAL_S = 0.02
INHERITED_S = 0.5
"""Time for which streams are read after the command's end: a background process may hold them open."""
READ_BYTES = 2**16


class CommandResult(NamedTuple):
    """Output and exit code of a command."""

    output: str
    error: str
    returncode: int


class CommandTimeout(TimeoutError):
    """The command was killed at its time limit."""


def command_arguments(command: "str | Sequence[str]", shell: bool) -> list[str]:
    """Return the arguments of a command, like subprocess with ``shell``."""
    words = [command] if isinstance(command, str) else list(command)
    return ["/bin/sh", "-c", *words] if shell else words


def run_source(
    program: str, source: str, limit_s: float, merged: bool = False, folder: "str | None" = None
) -> CommandResult:
    """Run a program on a temporary file of source code."""
    with tempfile.NamedTemporaryFile("w", encoding="utf-8", prefix="source-") as file:
        file.write(source)
        file.flush()
        return run([program, file.name], limit_s, merged, folder)


def run(words: Sequence[str], limit_s: float, merged: bool = False, folder: "str | None" = None) -> CommandResult:
    """Run a command until it ends.

    Raises CommandTimeout if its process group was killed at the limit, OSError if it cannot be started or is lost.
    """
    process = processes.OwnedProcess(
        words,
        cwd=folder and (folder if os.access(folder, os.X_OK) else "/"),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT if merged else subprocess.PIPE,
        start_new_session=True,
    )
    try:
        buffers = collect_output(process, time.monotonic() + limit_s)
        output, error = (data.decode(errors="replace") for data in buffers)
        return CommandResult(output, error, process.returncode)
    except CommandTimeout:
        raise CommandTimeout(f"Command {words!r} timed out after {limit_s:g} seconds") from None
    finally:
        end_command(process)


def collect_output(process: processes.OwnedProcess, deadline: float) -> tuple[bytearray, bytearray]:
    """Return the output of a process until its end; raise CommandTimeout at the deadline."""
    buffers = bytearray(), bytearray()
    with selectors.DefaultSelector() as waiting:
        for stream, into in zip((process.stdout, process.stderr), buffers, strict=True):
            if stream is not None:
                os.set_blocking(stream.fileno(), False)
                waiting.register(stream, selectors.EVENT_READ, into)
        ended_at = None
        while waiting.get_map() or process.poll() is None:
            now = time.monotonic()
            if ended_at is None and process.poll() is not None:
                ended_at = now
            if ended_at is not None and now > ended_at + INHERITED_S:
                break
            if now > deadline:
                raise CommandTimeout
            if not waiting.get_map():
                time.sleep(POLL_INTERVAL_S)
            for key, _ in waiting.select(POLL_INTERVAL_S) if waiting.get_map() else ():
                if not read_stream(key.fileobj, key.data):  # type: ignore[arg-type]
                    waiting.unregister(key.fileobj)
    return buffers


def read_stream(stream: "IO[bytes]", buffer: bytearray) -> bool:
    """Read from a stream, and keep up to the limit; return False at its end."""
    data = os.read(stream.fileno(), READ_BYTES)
    buffer += data[: max(0, OUTPUT_BYTES - len(buffer))]
    return bool(data)


def end_command(process: processes.OwnedProcess) -> None:
    """Close the streams of a command with its own session, and kill its process group if it runs."""
    for stream in (process.stdin, process.stdout, process.stderr):
        if stream is not None:
            stream.close()
    with processes.reaping:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
    process.wait()
