"""The lease server: clients acquire a fresh desktop, renew the lease while they use it, and release it.

==========================  =====================================================  ==================================
request                     body                                                   answer
==========================  =====================================================  ==================================
POST /leases                ``ttl_s``, ``wait_s``: both may be left out            201: id, url, token, ttl_s, size;
                                                                                   503: why there is none now
POST /leases/ID/renew                                                              200: ttl_s; 404: it has ended
DELETE /leases/ID                                                                  204, also if it has ended
GET /leases                                                                        200: each slot's state
==========================  =====================================================  ==================================

A lease that is not renewed within its ``ttl_s`` ends, and the desktop with it.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Annotated

import msgspec
from aiohttp import web

from dart_streams.connection.auth import is_same_token
from workers.desktop_server.gateway import GatewayTarget, bearer_token, error_response
from workers.desktop_server.leases import Lease, LeaseTable
from workers.desktop_server.slots import Slot
from workers.env.environment import EnvironmentFault

POLL_INTERVAL_S = 0.1
"""Between looks for leases that have expired."""
LONGEST_WAIT_S = 60.0
RETRY_S = 1
ONLY_LOCAL = "without a token only requests to 127.0.0.1 or localhost are answered, and none of a page of elsewhere"
LOOPBACK = frozenset({"127.0.0.1", "localhost", "[::1]"})
SITES = frozenset({"same-origin", "none"})
"""Values of Sec-Fetch-Site that are not of another site."""
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class LeaseRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a client may ask for."""

    ttl_s: Annotated[float, msgspec.Meta(gt=0, le=3600)] | None = None
    wait_s: Annotated[float, msgspec.Meta(ge=0, le=LONGEST_WAIT_S)] = 0.0


class LeaseServer:
    """Leases the desktops of ``slots``, at ``urls``; without a ``token`` it asks for none."""

    def __init__(self, slots: Sequence[Slot], urls: Sequence[str], token: str, ttl_s: float) -> None:
        self.slots, self.urls = slots, urls
        self.token = token
        self.ttl_s = ttl_s
        self.leases = LeaseTable()

    def application(self) -> web.Application:
        """Return the application to serve."""
        made = web.Application(middlewares=[self._authorize], client_max_size=2**16)
        made.add_routes(
            [
                web.post("/leases", self.acquire),
                web.get("/leases", self.show),
                web.post("/leases/{lease}/renew", self.renew),
                web.delete("/leases/{lease}", self.release),
            ]
        )
        return made

    async def acquire(self, request: web.Request) -> web.Response:
        """Lease a desktop that is ready, or wait for one."""
        try:
            wanted = msgspec.json.decode(await request.read() or b"{}", type=LeaseRequest)
        except msgspec.DecodeError as error:
            return error_response(400, str(error))
        slot = await self._take(wanted.wait_s)
        if slot is None:
            answer = error_response(503, f"no desktop is free: {self._why()}")
            answer.headers["Retry-After"] = str(RETRY_S)
            return answer
        lease = self.leases.grant(slot.number, min(wanted.ttl_s or self.ttl_s, self.ttl_s), time.monotonic())
        width, height = slot.size
        return web.json_response(
            {
                "id": lease.lease_id,
                "url": self.urls[slot.number],
                "token": lease.token,
                "ttl_s": lease.ttl_s,
                "width": width,
                "height": height,
            },
            status=201,
        )

    async def renew(self, request: web.Request) -> web.Response:
        """Renew a lease."""
        lease = self.leases.renew(request.match_info["lease"], time.monotonic())
        if lease is None:
            return error_response(404, "no such lease: it has ended, and the desktop with it")
        return web.json_response({"ttl_s": lease.ttl_s})

    async def release(self, request: web.Request) -> web.Response:
        """End a lease."""
        self._end(self.leases.end(request.match_info["lease"]))
        return web.Response(status=204)

    async def show(self, _: web.Request) -> web.Response:
        """Answer the state of each slot, without tokens."""
        return web.json_response([self._state(slot) for slot in self.slots])

    async def expire(self) -> None:
        """End leases as they expire, and those whose desktop has died; for ever."""
        while True:
            for lease in self.leases.expired(time.monotonic()):
                self._end(self.leases.end(lease.lease_id))
            for slot in self.slots:
                if slot.ready.is_set() and not slot.is_ready:
                    slot.give_up()
            await asyncio.sleep(POLL_INTERVAL_S)

    def open_for(self, slot: Slot, request: web.Request) -> GatewayTarget:
        """Return the desktop of a slot if the token of a request is its lease's."""
        lease = self.leases.of_slot(slot.number)
        token = bearer_token(request)
        if self.token and (token is None or (lease is not None and not lease.opened_by(token))):
            return GatewayTarget(None, 401, "the token of the desktop's lease is needed: Authorization: Bearer TOKEN")
        if not self.token and not is_local(request):
            return GatewayTarget(None, 403, ONLY_LOCAL)
        if lease is None or lease.expires_s <= time.monotonic():
            return GatewayTarget(
                None, 410, "the desktop is not leased: POST /leases at the lease server gives a fresh one"
            )
        if slot.sandbox is None or not slot.sandbox.alive:
            return GatewayTarget(None, 410, "the desktop has ended: release its lease")
        if reached := slot.sandbox.exceeded:
            return GatewayTarget(None, 410, f"the desktop has reached the bound of {reached}: release its lease")
        return GatewayTarget(slot.sandbox)

    async def _take(self, wait_s: float) -> Slot | None:
        """Take a slot whose desktop works, within ``wait_s``; return None if there is none."""
        deadline = time.monotonic() + wait_s
        while (slot := await self._ready(deadline)) is not None:
            slot.take()
            try:
                await slot.check()
                return slot
            except BaseException as error:
                slot.give_up()
                if not isinstance(error, EnvironmentFault):
                    raise
        return None

    async def _ready(self, deadline: float) -> Slot | None:
        """Return a slot whose desktop is ready, before a time; None if there is none."""
        while True:
            found = next((slot for slot in self.slots if slot.is_ready), None)
            left_s = deadline - time.monotonic()
            if found is not None or left_s <= 0:
                return found
            for slot in self.slots:
                if slot.ready.is_set():
                    slot.give_up()  # It has died since.
            waits = [asyncio.ensure_future(slot.ready.wait()) for slot in self.slots]
            try:
                await asyncio.wait(waits, timeout=left_s, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for wait in waits:
                    wait.cancel()

    def _end(self, lease: Lease | None) -> None:
        if lease is not None:
            self.slots[lease.slot].give_up()

    def _state(self, slot: Slot) -> dict[str, object]:
        lease = self.leases.of_slot(slot.number)
        state = "leased" if lease else "ready" if slot.ready.is_set() else "unavailable"
        since_s = time.monotonic() - slot.since_s
        return {
            "slot": slot.number,
            "url": self.urls[slot.number],
            "state": state,
            "since_s": round(since_s, 1),
            "reason": slot.reason,
        }

    def _why(self) -> str:
        leased = sum(self.leases.of_slot(slot.number) is not None for slot in self.slots)
        others = sorted({slot.reason for slot in self.slots if slot.reason})
        return "; ".join([f"{leased} of {len(self.slots)} are leased", *others])

    @web.middleware
    async def _authorize(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        return authorization_error(request, self.token) or await handler(request)


def authorization_error(request: web.Request, token: str) -> web.Response | None:
    """Return the answer to a request that may not be made, None if it may.

    Where no token is asked for, a page in a browser of this machine might ask by a name of its own for this address.
    """
    if token:
        if not is_same_token(bearer_token(request) or "", token):
            return error_response(401, "the token of the lease server is needed: Authorization: Bearer TOKEN")
    elif not is_local(request):
        return error_response(403, ONLY_LOCAL)
    return None


def is_local(request: web.Request) -> bool:
    """Return whether a request calls this machine by an address of its own, and no page of elsewhere makes it.

    A browser says of whom a request is; programs send neither of these headers.
    """
    hosts, origin = request.headers.getall("Host", []), request.headers.get("Origin")
    if len(hosts) != 1 or hosts[0].rpartition(":")[0] not in LOOPBACK:
        return False
    return origin in (None, f"http://{hosts[0]}") and request.headers.get("Sec-Fetch-Site", "none") in SITES
