"""The lease server: clients acquire a fresh desktop, renew its lease, and release it.

==========================  =====================================================  ==================================
request                     body                                                   answer
==========================  =====================================================  ==================================
POST /leases                ``ttl_s``, ``wait_s``, ``as_osworld``                  201: id, url, token, ttl_s, size,
                                                                                   ports; 503: none is free
POST /leases/ID/renew                                                              200: ttl_s; 404: it has ended
DELETE /leases/ID                                                                  204, also if it has ended
GET /leases                                                                        200: each slot's state
==========================  =====================================================  ==================================

A lease that is not renewed within its ``ttl_s`` ends, and the desktop with it. Each request to the desktop renews it.
"""

import asyncio
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Annotated

import msgspec
from aiohttp import web

from dart_desktops.osworld.machine import Machine, MachineEndpoint
from dart_desktops.osworld.osworld_session import prepare_home
from dart_desktops.server.gateway import GatewayTarget, bearer_token, error_response, time_limit_s
from dart_desktops.server.leases import Lease, LeaseTable
from dart_desktops.server.slots import Slot
from dart_streams.background import wait_first
from dart_streams.config.text import MALFORMED
from dart_streams.connection.auth import is_same_token
from dart_streams.http_bounds import note_known
from workers.env.environment import EnvironmentFault

POLL_INTERVAL_S = 0.1
LONGEST_WAIT_S = 60.0
RETRY_S = 1
ONLY_LOCAL = (
    "without a token only requests to 127.0.0.1 or localhost are answered, and none from a page of another site"
)
LOOPBACK = frozenset({"127.0.0.1", "localhost", "[::1]"})
SITES = frozenset({"same-origin", "none"})
"""Values of Sec-Fetch-Site for requests that do not come from another site."""
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class LeaseRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Body of a request for a lease."""

    ttl_s: Annotated[float, msgspec.Meta(gt=0, le=3600)] | None = None
    wait_s: Annotated[float, msgspec.Meta(ge=0, le=LONGEST_WAIT_S)] = 0.0
    as_osworld: bool = False
    """Whether the desktop gets the files and the terminal's key of OSWorld's image."""


class LeaseServer:
    """Leases the desktops of ``slots``, at ``urls``; without a ``token`` it asks for none."""

    def __init__(
        self,
        slots: Sequence[Slot],
        urls: Sequence[str],
        token: str,
        ttl_s: float,
        ports: Sequence[Mapping[str, int]] = (),
    ) -> None:
        self.slots, self.urls = slots, urls
        self.ports = ports or [{} for _ in slots]
        """Ports of each slot that lead into its desktop, by their names in a lease."""
        self.token = token
        self.ttl_s = ttl_s
        self.leases = LeaseTable()
        self.under_way: Counter[str] = Counter()
        """Requests to desktops, by the lease's id."""

    def application(self) -> web.Application:
        """Return the application to serve."""
        application = web.Application(middlewares=[self._authorize], client_max_size=2**16)
        application.add_routes(
            [
                web.post("/leases", self.acquire),
                web.get("/leases", self.show),
                web.post("/leases/{lease}/renew", self.renew),
                web.delete("/leases/{lease}", self.release),
            ]
        )
        return application

    async def acquire(self, request: web.Request) -> web.Response:
        """Lease a desktop that is ready, or wait for one."""
        try:
            body = msgspec.json.decode(await request.read() or b"{}", type=LeaseRequest)
        except MALFORMED as error:
            return error_response(400, str(error))
        slot = await self._take(body.wait_s)
        if slot is None:
            answer = error_response(503, f"no desktop is free: {self._reason()}")
            answer.headers["Retry-After"] = str(RETRY_S)
            return answer
        lease = self.leases.grant(slot.number, min(body.ttl_s or self.ttl_s, self.ttl_s), time.monotonic())
        if body.as_osworld and (failure := await self._prepare_home(slot, lease)):
            self._end(self.leases.end(lease.lease_id))
            return error_response(503, failure)
        width, height = slot.size
        return web.json_response(
            {
                "id": lease.lease_id,
                "url": self.urls[slot.number],
                "token": lease.token,
                "ttl_s": lease.ttl_s,
                "width": width,
                "height": height,
                **self.ports[slot.number],
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
        """Return the state of each slot, without tokens."""
        return web.json_response([self._state(slot) for slot in self.slots])

    async def expire(self) -> None:
        """End expired leases and replace dead desktops, until cancelled."""
        while True:
            for lease in self.leases.expired(time.monotonic()):
                self._end(self.leases.end(lease.lease_id))
            for slot in self.slots:
                if slot.ready.is_set() and not slot.is_ready:
                    slot.give_up()
            await asyncio.sleep(POLL_INTERVAL_S)

    def open_for(self, slot: Slot, request: web.Request) -> GatewayTarget:
        """Return the desktop of a slot if the request has the token of its lease, which it renews.

        So a client that speaks only OSWorld's API keeps its desktop.
        """
        lease = self.leases.of_slot(slot.number)
        token = bearer_token(request)
        if self.token and (token is None or (lease is not None and not lease.opened_by(token))):
            return GatewayTarget(None, 401, "the token of the desktop's lease is needed: Authorization: Bearer TOKEN")
        if not self.token and not is_local(request):
            return GatewayTarget(None, 403, ONLY_LOCAL)
        if lease is not None:
            note_known(request)
        return self._reach(slot, lease, time_limit_s(request.path))

    def open_port(self, slot: Slot) -> GatewayTarget:
        """Return the desktop of a slot for a connection to one of its ports, which renews its lease."""
        return self._reach(slot, self.leases.of_slot(slot.number), 0.0)

    def _reach(self, slot: Slot, lease: Lease | None, busy_s: float) -> GatewayTarget:
        """Return the desktop of a slot if it is leased and lives; a request or connection renews the lease."""
        if lease is None or lease.expires_s <= time.monotonic():
            return GatewayTarget(None, 410, "the desktop is not leased: POST /leases at the lease server gives one")
        if slot.sandbox is None or not slot.sandbox.alive:
            return GatewayTarget(None, 410, "the desktop has ended: release its lease")
        if reached := slot.sandbox.exceeded:
            return GatewayTarget(None, 410, f"the desktop has reached the bound of {reached}: release its lease")
        self.under_way[lease.lease_id] += 1
        self.leases.renew(lease.lease_id, time.monotonic(), busy_s=busy_s)
        return GatewayTarget(slot.sandbox, release=lambda: self._answered(lease.lease_id))

    def _answered(self, lease_id: str) -> None:
        """At the end of the last request under way, let the lease last for its time from then on."""
        self.under_way[lease_id] -= 1
        if not self.under_way[lease_id]:
            del self.under_way[lease_id]
            self.leases.rest(lease_id, time.monotonic())

    async def _take(self, wait_s: float) -> Slot | None:
        """Take a slot with a working desktop, or return None after ``wait_s``."""
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
        """Return a slot with a ready desktop, None at the deadline."""
        while True:
            ready = next((slot for slot in self.slots if slot.is_ready), None)
            left_s = deadline - time.monotonic()
            if ready is not None or left_s <= 0:
                return ready
            for slot in self.slots:
                if slot.ready.is_set():
                    slot.give_up()  # Its desktop has died.
            await wait_first(*(slot.ready.wait() for slot in self.slots), timeout_s=left_s)

    async def _prepare_home(self, slot: Slot, lease: Lease) -> str:
        """Give a leased desktop the home of OSWorld's image; return the reason if that fails."""
        try:
            async with Machine(MachineEndpoint(url=self.urls[slot.number], token=lease.token)) as machine:
                await prepare_home(machine)
        except EnvironmentFault as fault:
            return str(fault)
        return ""

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

    def _reason(self) -> str:
        leased = sum(self.leases.of_slot(slot.number) is not None for slot in self.slots)
        others = sorted({slot.reason for slot in self.slots if slot.reason})
        return "; ".join([f"{leased} of {len(self.slots)} are leased", *others])

    @web.middleware
    async def _authorize(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        if self.token and not is_same_token(bearer_token(request) or "", self.token):
            return error_response(401, "the token of the lease server is needed: Authorization: Bearer TOKEN")
        # Without a token, a page in a local browser could reach this address by DNS rebinding.
        if not self.token and not is_local(request):
            return error_response(403, ONLY_LOCAL)
        note_known(request)
        return await handler(request)


def is_local(request: web.Request) -> bool:
    """Return whether a request names this host, and does not come from a page of another site.

    Browsers send the origin of a request; programs send neither of these headers.
    """
    hosts, origin = request.headers.getall("Host", []), request.headers.get("Origin")
    if len(hosts) != 1 or hosts[0].rpartition(":")[0] not in LOOPBACK:
        return False
    return origin in (None, f"http://{hosts[0]}") and request.headers.get("Sec-Fetch-Site", "none") in SITES
