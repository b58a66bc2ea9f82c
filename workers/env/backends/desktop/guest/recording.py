"""Screen recordings by ffmpeg, if it is installed."""

import contextlib
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

from aiohttp import web

from workers.env.backends.desktop.guest.answers import Refusal
from workers.env.backends.desktop.guest.session import DesktopSession

STARTING_S, ENDING_S = 2.0, 15.0


class Recording:
    """The recording of a session; at most one runs at a time."""

    def __init__(self, session: DesktopSession) -> None:
        self.session = session
        self.process: subprocess.Popen[bytes] | None = None
        self.path = Path(tempfile.gettempdir()) / "osworld_recording.mp4"

    def start(self) -> "dict[str, str]":
        """Start the recording; raise Refusal if ffmpeg is missing or ends at once."""
        if self.process is not None and self.process.poll() is None:
            raise Refusal(400, {"status": "error", "message": "Recording is already in progress."})
        program = shutil.which("ffmpeg")
        if program is None:
            raise Refusal(500, {"status": "error", "message": "ffmpeg is required for recording, and is not installed"})
        self.path.unlink(missing_ok=True)
        size = "x".join(map(str, self.session.shown.frames.size))
        grab = ("-f", "x11grab", "-draw_mouse", "1", "-s", size, "-i", os.environ["DISPLAY"])
        command = [program, "-y", *grab, "-c:v", "libx264", "-r", "30", str(self.path)]
        quiet = subprocess.DEVNULL
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=quiet, stderr=quiet)
        with contextlib.suppress(subprocess.TimeoutExpired):
            code = self.process.wait(STARTING_S)
            raise Refusal(500, {"status": "error", "message": f"ffmpeg ended at once, with exit code {code}"})
        return {"status": "success", "message": "Started recording successfully."}

    def end(self) -> web.StreamResponse:
        """End the recording, and return its file; raise Refusal if there is none."""
        process, self.process = self.process, None
        if process is None:
            raise Refusal(400, {"status": "error", "message": "No recording in progress to stop."})
        try:
            process.communicate(b"q\n", ENDING_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        if not self.path.is_file() or not self.path.stat().st_size:
            raise Refusal(500, {"status": "error", "message": "the recording is empty"})
        return web.FileResponse(self.path, headers={"Content-Type": "video/mp4"})
