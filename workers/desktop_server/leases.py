"""Who has which desktop, and until when. Pure: the time is an argument, in seconds of any one clock."""

import secrets

import msgspec

from dart_streams.connection.auth import is_same_token

LEASE_BYTES, TOKEN_BYTES = 12, 32


class Lease(msgspec.Struct, frozen=True):
    """A client's right to a slot's desktop, until ``expires_s``; the token opens this one desktop."""

    lease_id: str
    slot: int
    token: str
    ttl_s: float
    expires_s: float

    def __repr__(self) -> str:
        """Show all but the token."""
        return f"Lease({self.lease_id}, slot {self.slot})"

    def opened_by(self, token: str) -> bool:
        """Return whether a token is this lease's."""
        return is_same_token(token, self.token)


class LeaseTable:
    """At most one lease a slot."""

    def __init__(self) -> None:
        self._by_id: dict[str, Lease] = {}

    def grant(self, slot: int, ttl_s: float, now_s: float) -> Lease:
        """Lease a slot that nobody has; raise ValueError if somebody has it."""
        if self.of_slot(slot) is not None:
            raise ValueError(f"slot {slot} is leased")
        identifier, token = secrets.token_hex(LEASE_BYTES), secrets.token_urlsafe(TOKEN_BYTES)
        lease = self._by_id[identifier] = Lease(identifier, slot, token, ttl_s, now_s + ttl_s)
        return lease

    def renew(self, lease_id: str, now_s: float) -> Lease | None:
        """Move a lease's end; None if there is no such lease, or its end has passed."""
        lease = self._by_id.get(lease_id)
        if lease is None or lease.expires_s <= now_s:
            return None
        self._by_id[lease_id] = renewed = msgspec.structs.replace(lease, expires_s=now_s + lease.ttl_s)
        return renewed

    def end(self, lease_id: str) -> Lease | None:
        """End a lease; None if there is no such lease, which is no error: it may have ended before."""
        return self._by_id.pop(lease_id, None)

    def of_slot(self, slot: int) -> Lease | None:
        """Return the lease of a slot."""
        return next((lease for lease in self._by_id.values() if lease.slot == slot), None)

    def expired(self, now_s: float) -> list[Lease]:
        """Return the leases whose end has passed; they stay until they are ended."""
        return [lease for lease in self._by_id.values() if lease.expires_s <= now_s]
