"""Table of leases. Times are arguments, in seconds of a monotonic clock."""

import secrets

import msgspec

from dart_streams.connection.auth import is_same_token

LEASE_BYTES, TOKEN_BYTES = 12, 32


class Lease(msgspec.Struct, frozen=True):
    """A client's lease of a slot's desktop until ``expires_s``; its token is valid for this desktop only."""

    lease_id: str
    slot: int
    token: str
    ttl_s: float
    expires_s: float

    def __repr__(self) -> str:
        """Omit the token."""
        return f"Lease({self.lease_id}, slot {self.slot})"

    def opened_by(self, token: str) -> bool:
        """Return whether a token is valid for this lease."""
        return is_same_token(token, self.token)


class LeaseTable:
    """Leases by id; each slot has at most one."""

    def __init__(self) -> None:
        self._by_id: dict[str, Lease] = {}

    def grant(self, slot: int, ttl_s: float, now_s: float) -> Lease:
        """Lease a free slot; raise ValueError if it is leased."""
        if self.of_slot(slot) is not None:
            raise ValueError(f"slot {slot} is leased")
        identifier, token = secrets.token_hex(LEASE_BYTES), secrets.token_urlsafe(TOKEN_BYTES)
        lease = self._by_id[identifier] = Lease(identifier, slot, token, ttl_s, now_s + ttl_s)
        return lease

    def renew(self, lease_id: str, now_s: float, busy_s: float = 0.0) -> Lease | None:
        """Extend a lease and return it, None if it is unknown or has expired.

        ``busy_s`` is how long a request of its client may take. A lease does not expire under another, longer one.
        """
        lease = self._by_id.get(lease_id)
        if lease is None or lease.expires_s <= now_s:
            return None
        expires_s = max(lease.expires_s, now_s + busy_s + lease.ttl_s)
        self._by_id[lease_id] = renewed = msgspec.structs.replace(lease, expires_s=expires_s)
        return renewed

    def rest(self, lease_id: str, now_s: float) -> None:
        """Let a lease last for its time from now on: no request is under way any more."""
        if (lease := self._by_id.get(lease_id)) is not None and lease.expires_s > now_s:
            self._by_id[lease_id] = msgspec.structs.replace(lease, expires_s=now_s + lease.ttl_s)

    def end(self, lease_id: str) -> Lease | None:
        """End a lease and return it, None if it is unknown or has ended before."""
        return self._by_id.pop(lease_id, None)

    def of_slot(self, slot: int) -> Lease | None:
        """Return the lease of a slot, None if it is free."""
        return next((lease for lease in self._by_id.values() if lease.slot == slot), None)

    def expired(self, now_s: float) -> list[Lease]:
        """Return the expired leases, which remain until they are ended."""
        return [lease for lease in self._by_id.values() if lease.expires_s <= now_s]
