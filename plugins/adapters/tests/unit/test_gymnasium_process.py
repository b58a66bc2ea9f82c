"""The process of a Gymnasium environment."""

import asyncio
from pathlib import Path

import psutil

from dart_adapters.gymnasium_process import GymnasiumProcess


async def test_of_an_ended_process_nothing_is_killed_as_its_id_may_be_anothers(monkeypatch):
    own = GymnasiumProcess(Path("python"), [], "")
    own.process = await asyncio.create_subprocess_exec("true")
    await own.process.wait()
    asked: list[int] = []
    monkeypatch.setattr(psutil, "Process", asked.append)
    await own.stop()
    assert not asked
