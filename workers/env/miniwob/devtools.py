"""The Chrome DevTools Protocol over a pair of pipes: calls with a time-out; a crash fails pending calls at once.

Pipes rather than a socket: the browser exits when its pipe is closed, so a killed worker leaves no browser behind, and
no port is open.
"""

import asyncio
import itertools
from typing import Any

import msgspec

from workers.env.environment import EnvironmentFault

MESSAGE_BYTES = 64 * 1024 * 1024
CRASHED = "Inspector.targetCrashed"
DETACHED = "Target.detachedFromTarget"
LOADED = "Page.loadEventFired"


class Message(msgspec.Struct):
    """A message of the browser: the result or error of a call (``id``), or an event (``method``)."""

    id: int | None = None
    method: str | None = None
    params: dict[str, Any] = {}
    result: dict[str, Any] = {}
    error: dict[str, Any] | None = None
    sessionId: str | None = None


Pending = tuple[str | None, "asyncio.Future[dict[str, Any]]"]


class DevTools:
    """One connection to one browser. ``timeout_s`` bounds every call.

    A crashed page does not respond, so the crash event fails the pending calls of its session.
    """

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.WriteTransport, timeout_s: float) -> None:
        self.timeout_s = timeout_s
        self.closed = False
        self._reader = reader
        self._writer = writer
        self._numbers = itertools.count(1)
        self._pending: dict[int, Pending] = {}
        self._loads: dict[str, asyncio.Future[dict[str, Any]]] = {}
        self.crashed: set[str] = set()
        self._decoder = msgspec.json.Decoder(Message)
        self._reading = asyncio.create_task(self._read(), name="devtools")

    async def call(self, method: str, session: str | None = None, **params: Any) -> dict[str, Any]:
        """Call a method and return its result.

        Raises EnvironmentFault if the browser rejects the call or does not respond in time, or it or the page is gone.
        """
        if self.closed or session in self.crashed:
            raise EnvironmentFault(f"{method}: the {'browser' if self.closed else 'page'} is gone")
        number = next(self._numbers)
        message = {"id": number, "method": method, "params": params}
        if session:
            message["sessionId"] = session
        future: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
        self._pending[number] = session, future
        self._writer.write(msgspec.json.encode(message) + b"\0")
        try:
            return await asyncio.wait_for(future, self.timeout_s)
        except TimeoutError:
            raise EnvironmentFault(f"{method}: no answer within {self.timeout_s:g} s") from None
        finally:
            self._pending.pop(number, None)

    async def navigate(self, session: str, url: str) -> None:
        """Load ``url`` and return after its load event; raises like :meth:`call`."""
        loaded: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
        self._loads[session] = loaded
        try:
            result = await self.call("Page.navigate", session, url=url)
            if result.get("errorText"):
                raise EnvironmentFault(f"cannot load {url}: {result['errorText']}")
            await asyncio.wait_for(loaded, self.timeout_s)
        except TimeoutError:
            raise EnvironmentFault(f"{url} did not load within {self.timeout_s:g} s") from None
        finally:
            self._loads.pop(session, None)

    async def close(self) -> None:
        """End the connection; pending calls fail."""
        self._writer.close()
        self._reading.cancel()
        await asyncio.gather(self._reading, return_exceptions=True)

    async def _read(self) -> None:
        try:
            while True:
                self._dispatch(self._decoder.decode((await self._reader.readuntil(b"\0"))[:-1]))
        except (asyncio.IncompleteReadError, ConnectionError, asyncio.LimitOverrunError, msgspec.DecodeError):
            pass
        finally:
            self.closed = True
            self._fail(None, "the browser is gone")

    def _dispatch(self, message: Message) -> None:
        if message.id is not None:
            _, future = self._pending.get(message.id, (None, None))
            if future is None or future.done():
                return
            if message.error is None:
                future.set_result(message.result)
            else:
                future.set_exception(EnvironmentFault(f"the browser rejected it: {message.error.get('message')}"))
        elif message.method == LOADED and message.sessionId in self._loads:
            if not (loaded := self._loads[message.sessionId]).done():
                loaded.set_result({})
        elif message.method == CRASHED and message.sessionId:
            self.crashed.add(message.sessionId)
            self._fail(message.sessionId, "the page crashed")
        elif message.method == DETACHED:
            self._fail(str(message.params.get("sessionId")), "the page is gone")

    def _fail(self, session: str | None, reason: str) -> None:
        """Fail the pending calls of ``session``, or all if it is None."""
        pending = [future for owner, future in self._pending.values() if session in (None, owner)]
        pending += [future for owner, future in self._loads.items() if session in (None, owner)]
        for future in pending:
            if not future.done():
                future.set_exception(EnvironmentFault(reason))
                future.exception()
