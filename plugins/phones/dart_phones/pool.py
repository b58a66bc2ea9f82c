"""Pool of phones, which start with their backend; one that had a fault, or has served many episodes, is replaced."""

import asyncio
import contextlib

import structlog

from dart_phones.families import make_state
from dart_phones.process import START_S, PhoneProcess
from dart_streams.config import Phone
from workers.env.environment import EnvironmentFault

EPISODES = 500
"""Maximum number of episodes of a phone, which bounds its memory."""
CONCURRENT_STARTS = 2
"""Maximum number of concurrent starts, each of which computes for seconds."""

log = structlog.get_logger()


class PhonePool:
    """Phones, of which at most ``spare`` free ones are kept."""

    def __init__(self, settings: Phone, spare: int) -> None:
        self.settings = settings
        self.spare = spare
        self._free: list[PhoneProcess] = []
        self._taken: set[PhoneProcess] = set()
        self._unclaimed: list[asyncio.Task[PhoneProcess]] = []
        """Starts whose episodes did not wait for them; the next episodes take the phones."""
        self._starting = asyncio.Semaphore(CONCURRENT_STARTS)

    def start_ahead(self) -> None:
        """Begin to start as many phones as are kept, for the first episodes."""
        self._unclaimed += [asyncio.create_task(self._start()) for _ in range(self.spare - len(self._unclaimed))]

    async def take(self) -> PhoneProcess:
        """Return a phone for one episode, a new one if none is free; raise EnvironmentFault if it does not start."""
        while self._free:
            phone = self._free.pop()
            if phone.alive:
                break
            await phone.stop()
        else:
            phone = await self._claim()
        phone.episodes += 1
        self._taken.add(phone)
        return phone

    async def give_back(self, phone: PhoneProcess, faulty: bool, used: bool = True) -> None:
        """Reset a phone for its next episode, or end it; an unused one needs no reset. Never raises."""
        if phone.alive and not faulty and phone.episodes < EPISODES and len(self._free) < self.spare:
            with contextlib.suppress(EnvironmentFault, OSError):
                if used:
                    await phone.send("end")  # It resets while it is free.
                self._taken.discard(phone)
                self._free.append(phone)
                return
        await phone.stop()
        self._taken.discard(phone)

    async def stop(self) -> None:
        """End all phones, also those that start."""
        starts, self._unclaimed = self._unclaimed, []
        for start in starts:
            start.cancel()
        started = await asyncio.gather(*starts, return_exceptions=True)
        self._free += [phone for phone in started if isinstance(phone, PhoneProcess)]
        ending, self._free, self._taken = [*self._free, *self._taken], [], set()
        await asyncio.gather(*(phone.stop() for phone in ending))

    async def _claim(self) -> PhoneProcess:
        """Return a phone that has started; on a busy machine a start may outlast an episode, and serves the next."""
        start = self._unclaimed.pop(0) if self._unclaimed else asyncio.create_task(self._start())
        try:
            return await asyncio.shield(start)
        except asyncio.CancelledError:
            self._unclaimed.append(start)
            raise

    async def _start(self) -> PhoneProcess:
        async with self._starting:
            phone = PhoneProcess(self.settings.call_timeout_s)
            try:
                await phone.start()
                await self._warm_up(phone)
            except BaseException as error:
                await asyncio.shield(phone.stop())
                if isinstance(error, EnvironmentFault):
                    log.warning("phone not started", reason=str(error))
                raise
            return phone

    async def _warm_up(self, phone: PhoneProcess) -> None:
        """Play an empty episode, as the first one loads Android's classes for seconds."""
        screen = {"qualifiers": self.settings.qualifiers, "app": "Settings", "state": make_state()}
        await phone.request("start", START_S, **screen)
        await phone.send("end")
