"""The Chrome DevTools Protocol over a pair of pipes: each call has a time-out, and a crash fails pending calls at once.

A page may leave its document during a call. Chromium then rejects the call, or never answers it. A question is repeated
in the new document; an input event has had its effect, if any.

The browser exits when its pipe is closed, so a killed worker leaves no browser behind, and no port is open.
"""

import asyncio
import contextlib
import itertools
import re
from collections.abc import Iterable, Iterator
from typing import Any

import msgspec

from dart_streams.background import cancel_tasks
from dart_streams.config.text import MALFORMED, raise_if_dense
from workers.env.environment import EnvironmentFault

MESSAGE_BYTES = 64 * 1024 * 1024
CRASHED = "Inspector.targetCrashed"
DETACHED = "Target.detachedFromTarget"
LOADED = "Page.loadEventFired"
DRAGGED = "Input.dragIntercepted"
DIALOG = "Page.javascriptDialogOpening"
NAVIGATED = "Page.frameNavigated"
QUESTIONS = frozenset({"Page.captureScreenshot", "Runtime.evaluate"})
INPUTS = frozenset(
    {"Input.dispatchDragEvent", "Input.dispatchKeyEvent", "Input.dispatchMouseEvent", "Input.insertText"}
)
LEFT = (
    "Inspected target navigated or closed",
    "Not attached to an active page",
    "Execution context was destroyed",
    "Cannot find default execution context",
    "Promise was collected",
)
"""Prefixes of Chromium's errors for a document that no longer exists, or does not exist yet."""
LEFT_S = 1.0
"""Time limit of a question or an input event once its page has another document."""
RETRY_INTERVAL_S = 0.02
ANSWERED = re.compile(rb'\{"id":(\d+)')
"""The beginning of the answer to a call."""


class Rejected(EnvironmentFault):
    """The browser rejected a call."""


class Navigated(EnvironmentFault):
    """The page left its document before the call was answered."""


class Result(dict[str, Any]):
    """The result of a call."""

    def __missing__(self, name: str) -> Any:
        raise EnvironmentFault(f"the browser's response lacks {name!r}")


class Message(msgspec.Struct):
    """Message of the browser: the result or error of a call (``id``), or an event (``method``)."""

    id: int | None = None
    method: str | None = None
    params: dict[str, Any] = {}
    result: dict[str, Any] = {}
    error: dict[str, Any] | None = None
    sessionId: str | None = None


Pending = tuple[str | None, str, "asyncio.Future[dict[str, Any]]"]
"""Session, method and future result of a call."""


class DevTools:
    """One connection to one browser; ``timeout_s`` bounds every call."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.WriteTransport, timeout_s: float) -> None:
        self.timeout_s = timeout_s
        self.closed = False
        self.reason = "the browser is gone"
        self._reader = reader
        self._writer = writer
        self._numbers = itertools.count(1)
        self._pending: dict[int, Pending] = {}
        self._awaited: dict[tuple[str, str], asyncio.Future[dict[str, Any]]] = {}
        self.crashed: set[str] = set()
        self._decoder = msgspec.json.Decoder(Message)
        self._received_s = asyncio.get_running_loop().time()
        self._reading = asyncio.create_task(self._read(), name="devtools")

    @property
    def silent_s(self) -> float:
        """Seconds since the browser's last message or the first unanswered call; 0 if it owes no response."""
        return asyncio.get_running_loop().time() - self._received_s if self._pending else 0.0

    def send(self, method: str, session: str | None = None, **params: Any) -> "asyncio.Future[dict[str, Any]]":
        """Send a call and return its future result; calls arrive in the order in which they are sent.

        Raises EnvironmentFault if the browser or the page is gone. The result raises like :meth:`call`, but has no
        time-out.
        """
        if self.closed or session in self.crashed:
            raise EnvironmentFault(f"{method}: {self.reason if self.closed else 'the page is gone'}")
        number = next(self._numbers)
        message = {"id": number, "method": method, "params": params}
        if session:
            message["sessionId"] = session
        loop = asyncio.get_running_loop()
        future: asyncio.Future[dict[str, Any]] = loop.create_future()
        if not self._pending:
            self._received_s = loop.time()
        self._pending[number] = session, method, future
        future.add_done_callback(lambda _: self._pending.pop(number, None))
        self._writer.write(msgspec.json.encode(message) + b"\0")
        return future

    async def call(
        self, method: str, session: str | None = None, timeout_s: float | None = None, **params: Any
    ) -> dict[str, Any]:
        """Call a method and return its result; ``timeout_s`` replaces the connection's.

        The result of an input event whose document was left is empty. Raises EnvironmentFault if the browser rejects
        the call or does not respond in time, or if the browser or the page is gone.
        """
        limit_s = timeout_s or self.timeout_s
        navigations = 0
        try:
            # Not wait_for, which until Python 3.11 loses a cancellation that comes together with the answer.
            async with asyncio.timeout(limit_s):
                while True:
                    try:
                        return await self.send(method, session, **params)
                    except Navigated:
                        if method in INPUTS:
                            return {}
                        if method not in QUESTIONS:
                            raise
                        navigations += 1
                    await asyncio.sleep(RETRY_INTERVAL_S)
        except TimeoutError:
            during = f": the page left its document ({navigations} times)" if navigations else ""
            raise EnvironmentFault(f"{method}: no answer within {limit_s:g} s{during}") from None

    async def navigate(self, session: str, url: str) -> None:
        """Load ``url``, and return after its load event; raises like :meth:`call`."""
        try:
            with self.expect(session, LOADED) as loaded:
                result = await self.call("Page.navigate", session, url=url)
                if result.get("errorText"):
                    raise EnvironmentFault(f"cannot load {url}: {result['errorText']}")
                async with asyncio.timeout(self.timeout_s):
                    await loaded
        except TimeoutError:
            raise EnvironmentFault(f"{url} did not load within {self.timeout_s:g} s") from None

    @contextlib.contextmanager
    def expect(self, session: str, method: str) -> "Iterator[asyncio.Future[dict[str, Any]]]":
        """Expect one event of a page; the future has its parameters, or fails with the page."""
        future = self._awaited[session, method] = asyncio.get_running_loop().create_future()
        try:
            yield future
        finally:
            self._awaited.pop((session, method), None)

    async def close(self, reason: str = "the browser is gone") -> None:
        """Close the connection: the browser exits, and pending and later calls fail with ``reason``."""
        if not self.closed:
            self.reason = reason
        self._writer.close()
        await cancel_tasks(self._reading)

    async def _read(self) -> None:
        try:
            while True:
                received = await self._reader.readuntil(b"\0")
                self._received_s = asyncio.get_running_loop().time()
                self._dispatch(self._decode(received[:-1]))
        except (EOFError, OSError, asyncio.LimitOverrunError):
            pass
        finally:
            self.closed = True
            self._fail(None, self.reason)

    def _decode(self, received: bytes) -> Message:
        """Decode a message; one that a page has spoiled, as by half of a character, is an error of its call alone."""
        try:
            raise_if_dense(received)
            return self._decoder.decode(received)
        except MALFORMED as error:
            number = ANSWERED.match(received)
            return Message(id=number and int(number[1]), error={"message": f"an answer that cannot be read: {error}"})

    def _dispatch(self, message: Message) -> None:
        if message.id is not None:
            *_, future = self._pending.get(message.id, (None,))
            if future is None or future.done():
                return
            if message.error is None:
                future.set_result(Result(message.result))
            else:
                reason = str(message.error.get("message"))
                has_left = reason.startswith(LEFT)
                future.set_exception(Navigated(f"the page left: {reason}") if has_left else Rejected(reason))
                future.exception()
        elif (future := self._awaited.get((str(message.sessionId), str(message.method)))) is not None:
            if not future.done():
                future.set_result(message.params)
        elif message.method == CRASHED and message.sessionId:
            self.crashed.add(message.sessionId)
            self._fail(message.sessionId, "the page crashed")
        elif message.method == DIALOG and message.sessionId:
            self._accept_dialog(message.sessionId, str(message.params.get("defaultPrompt", "")))
        elif message.method == NAVIGATED and "parentId" not in message.params.get("frame", {}):
            left = [
                future
                for session, method, future in self._pending.values()
                if session == message.sessionId and method in QUESTIONS | INPUTS
            ]
            asyncio.get_running_loop().call_later(LEFT_S, fail, left, Navigated, "the page left its document")
        elif message.method == DETACHED:
            self._fail(str(message.params.get("sessionId")), "the page is gone")

    def _accept_dialog(self, session: str, default: str) -> None:
        """Accept a dialog, a prompt with its default: it blocks its page."""
        if session not in self.crashed:
            answer = self.send("Page.handleJavaScriptDialog", session, accept=True, promptText=default)
            answer.add_done_callback(lambda done: done.cancelled() or done.exception())

    def _fail(self, session: str | None, reason: str) -> None:
        """Fail the pending calls of ``session``, or all if it is None."""
        pending = [future for owner, _, future in self._pending.values() if session in (None, owner)]
        pending += [future for (owner, _), future in self._awaited.items() if session in (None, owner)]
        fail(pending, EnvironmentFault, reason)


def fail(futures: Iterable["asyncio.Future[dict[str, Any]]"], error: type[EnvironmentFault], reason: str) -> None:
    """Set an exception on all futures that are not done."""
    for future in futures:
        if not future.done():
            future.set_exception(error(reason))
            future.exception()
