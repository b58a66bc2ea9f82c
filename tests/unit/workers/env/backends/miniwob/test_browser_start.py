"""Starts of a browser that do not come to their end."""

import asyncio
import signal
import tempfile
from pathlib import Path

import pytest

from dart_streams.socket_folder import LockedFolder
from workers.env.backends.miniwob import browser
from workers.env.backends.miniwob.devtools import DevTools


@pytest.mark.parametrize(("place", "name"), [(browser, "connect"), (DevTools, "call")])
async def test_a_cancelled_start_leaves_nothing_not_even_of_killed_workers(place, name, tmp_path: Path, monkeypatch):
    begun, started, spawn = asyncio.Event(), [], browser.spawn

    async def hang(*_: object) -> None:
        begun.set()
        await asyncio.Event().wait()

    monkeypatch.setattr(place, name, hang)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(browser, "find_browser", lambda: "chromium")
    monkeypatch.setattr(browser, "confined_command", lambda *_: ["sleep", "60"])
    monkeypatch.setattr(browser, "spawn", lambda command: started.append(spawn(command)) or started[-1])
    (tmp_path / f"{browser.PREFIX}left").mkdir()
    in_use = LockedFolder(browser.PREFIX)
    starting = asyncio.create_task(browser.Browser.launch(60.0))
    await begun.wait()
    starting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await starting
    assert started[0][0].returncode == -signal.SIGKILL
    assert await asyncio.to_thread(lambda: [*tmp_path.iterdir()]) == [in_use.folder]
    in_use.remove()
