"""A desktop of a slot is ended whole, also if the server stops meanwhile."""

import asyncio

from dart_desktops.server import slots
from dart_desktops.server.slots import Slot


class SlowSandbox:
    """Its end takes as long as a test wants."""

    alive = True

    def __init__(self, *_: object) -> None:
        self.ending, self.may_end, self.ended = asyncio.Event(), asyncio.Event(), False

    async def start(self) -> None:
        return

    async def request(self, *_: object) -> tuple[bytes, dict[str, str]]:
        return b"", {}

    async def stop(self) -> None:
        self.ending.set()
        await self.may_end.wait()
        self.ended = True


async def test_a_server_that_stops_waits_for_the_end_of_a_used_desktop(monkeypatch):
    monkeypatch.setattr(slots, "Sandbox", SlowSandbox)
    slot = Slot(0, (320, 240), 1.0, asyncio.Semaphore(1))
    running = asyncio.create_task(slot.run())
    await slot.ready.wait()
    sandbox = slot.sandbox
    slot.take()
    slot.give_up()
    await sandbox.ending.wait()
    running.cancel()
    assert not (await asyncio.wait({running}, timeout=0.1))[0], "the desktop has not ended yet"
    sandbox.may_end.set()
    await asyncio.gather(running, return_exceptions=True)
    assert sandbox.ended
