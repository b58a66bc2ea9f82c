"""Leases of desktops: one a slot, by tokens of their own, and never after their end."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from dart_desktops.server.leases import Lease, LeaseTable

TTL_S = 10.0
SLOTS = 3


class Clients(RuleBasedStateMachine):
    """Clients that acquire, renew and release, while time passes."""

    def __init__(self) -> None:
        super().__init__()
        self.table = LeaseTable()
        self.now = 0.0
        self.held: dict[str, tuple[int, float]] = {}
        self.ended: list[str] = []

    @rule(slot=st.integers(0, SLOTS - 1))
    def grant(self, slot: int) -> None:
        if slot in {held for held, _ in self.held.values()}:
            with pytest.raises(ValueError, match="leased"):
                self.table.grant(slot, TTL_S, self.now)
        else:
            lease = self.table.grant(slot, TTL_S, self.now)
            self.held[lease.lease_id] = slot, self.now + TTL_S

    @rule(seconds=st.floats(0.1, 2 * TTL_S))
    def wait(self, seconds: float) -> None:
        self.now += seconds

    @precondition(lambda self: self.held)
    @rule(data=st.data(), busy=st.sampled_from([0.0, 3 * TTL_S]))
    def renew(self, data: st.DataObject, busy: float) -> None:
        identifier = list(self.held)[data.draw(st.integers(0, len(self.held) - 1))]
        slot, expires = self.held[identifier]
        renewed = self.table.renew(identifier, self.now, busy)
        assert (renewed is None) == (expires <= self.now)
        if renewed is not None:
            self.held[identifier] = slot, max(expires, self.now + busy + TTL_S)

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def rest(self, data: st.DataObject) -> None:
        identifier = list(self.held)[data.draw(st.integers(0, len(self.held) - 1))]
        slot, expires = self.held[identifier]
        self.table.rest(identifier, self.now)
        if expires > self.now:
            self.held[identifier] = slot, self.now + TTL_S

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        identifier = list(self.held)[data.draw(st.integers(0, len(self.held) - 1))]
        del self.held[identifier]
        assert self.table.end(identifier) is not None
        assert self.table.end(identifier) is None
        self.ended.append(identifier)

    @invariant()
    def nobody_has_what_has_ended(self) -> None:
        assert all(self.table.renew(identifier, self.now) is None for identifier in self.ended)

    @invariant()
    def what_has_expired_is_known(self) -> None:
        expired = {lease.lease_id for lease in self.table.expired(self.now)}
        assert expired == {identifier for identifier, (_, expires) in self.held.items() if expires <= self.now}


TestClients = Clients.TestCase


@given(st.lists(st.integers(0, 5), unique=True, min_size=2))
def test_each_lease_opens_its_own_desktop_only(slots):
    table = LeaseTable()
    leases = [table.grant(slot, TTL_S, 0.0) for slot in slots]
    for one in leases:
        assert [other for other in leases if other.opened_by(one.token)] == [one]
        assert not one.opened_by("")


def test_a_lease_is_shown_without_its_token():
    lease = Lease("id", 0, "a token", 1.0, 2.0)
    assert "a token" not in f"{lease} {lease!r}"
