"""Trajectory ids: UUIDs of version 7 (RFC 9562), so that they sort by the time at which they began."""

import uuid


def new_trajectory_id(at_ms: int, randomness: bytes) -> str:
    """Return the UUIDv7 of an epoch time in milliseconds and 10 random bytes."""
    fields = at_ms.to_bytes(6) + randomness
    value = int.from_bytes(fields)
    value = value & ~(0xF << 76) | 0x7 << 76
    value = value & ~(0x3 << 62) | 0x2 << 62
    return str(uuid.UUID(int=value))
