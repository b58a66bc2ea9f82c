"""Screen recordings by ffmpeg, if it is installed."""

import os
import shutil
import subprocess
import tempfile
import time
from pathlib import Path

from aiohttp import web

from dart_desktops.desktop.guest import commands, processes
from dart_desktops.desktop.guest.answers import Refusal
from dart_desktops.desktop.guest.session import DesktopSession

STARTING_S, ENDING_S, PLAYING_S = 25.0, 25.0, 25.0
"""Time limits for the first picture, the file's end and its check. A starved desktop takes its time."""
POLL_INTERVAL_S = 0.05
FRAME_RATE = 10
"""Pictures a second; more delay the desktop."""
ENCODING = (
    *("-c:v", "libx264", "-preset", "ultrafast", "-tune", "zerolatency", "-pix_fmt", "yuv420p", "-g", str(FRAME_RATE)),
    *("-movflags", "frag_keyframe+empty_moov+default_base_moof", "-flush_packets", "1"),
)
"""Each second is complete in itself, so that a recording that is cut plays up to there."""


class Recording:
    """The recording of a session; at most one runs at a time."""

    def __init__(self, session: DesktopSession) -> None:
        self.session = session
        self.process: processes.OwnedProcess | None = None
        self.path = Path(tempfile.gettempdir()) / "osworld_recording.mp4"

    def start(self) -> "dict[str, str]":
        """Start the recording, and wait for its first picture; raise Refusal if ffmpeg is missing or takes none."""
        if self.process is not None and self.process.poll() is None:
            raise Refusal(400, {"status": "error", "message": "Recording is already in progress."})
        program = shutil.which("ffmpeg")
        if program is None:
            raise Refusal(500, {"status": "error", "message": "ffmpeg is required for recording, and is not installed"})
        self.path.unlink(missing_ok=True)
        size = "x".join(map(str, self.session.shown.frames.size))
        grab = ("-f", "x11grab", "-framerate", str(FRAME_RATE), "-draw_mouse", "1", "-s", size)
        # The encoder takes even sizes only.
        even = ("-vf", "crop=trunc(iw/2)*2:trunc(ih/2)*2")
        command = [program, "-y", *grab, "-i", os.environ["DISPLAY"], *even, *ENCODING, str(self.path)]
        quiet = subprocess.DEVNULL
        self.process = processes.OwnedProcess(
            command, stdin=subprocess.PIPE, stdout=quiet, stderr=quiet, start_new_session=True
        )
        try:
            self._await_picture(self.process)
        except Refusal:
            self.process = None
            raise
        return {"status": "success", "message": "Started recording successfully."}

    def _await_picture(self, process: processes.OwnedProcess) -> None:
        # ffmpeg writes the header of the file once its encoder has the first picture.
        deadline = time.monotonic() + STARTING_S
        while not (self.path.exists() and self.path.stat().st_size):
            if process.poll() is not None:
                message = f"ffmpeg ended at once, with exit code {process.returncode}"
                raise Refusal(500, {"status": "error", "message": message})
            if time.monotonic() > deadline:
                commands.end_command(process)
                raise Refusal(500, {"status": "error", "message": f"ffmpeg took no picture within {STARTING_S:g} s"})
            time.sleep(POLL_INTERVAL_S)

    def end(self) -> web.StreamResponse:
        """End the recording, and return its file; raise Refusal if there is none."""
        process, self.process = self.process, None
        if process is None:
            raise Refusal(400, {"status": "error", "message": "No recording in progress to stop."})
        try:
            process.communicate(b"q\n", ENDING_S)
        except subprocess.TimeoutExpired:
            commands.end_command(process)
        if not self._plays():
            raise Refusal(
                500, {"status": "error", "message": "the recording has no picture: ffmpeg did not come to it"}
            )
        return web.FileResponse(self.path, headers={"Content-Type": "video/mp4"})

    def _plays(self) -> bool:
        """Return whether the file has a picture that ffmpeg can read."""
        first = ("ffmpeg", "-v", "error", "-i", str(self.path), "-frames:v", "1", "-f", "framecrc", "-")
        try:
            shown = commands.run(first, PLAYING_S)
        except commands.CommandTimeout:
            return False
        return shown.returncode == 0 and any(line and not line.startswith("#") for line in shown.output.splitlines())
