"""Random numbers without a generator: hashes of names, so that a replay draws the same ones."""

from hashlib import blake2b

BITS = 64


def number(*names: object) -> int:
    """Return a number in [0, 2**64) that depends on ``names`` only."""
    text = "\x1f".join(str(name) for name in names)
    return int.from_bytes(blake2b(text.encode(), digest_size=BITS // 8).digest())


def share(*names: object) -> float:
    """Return a number in [0, 1) that depends on ``names`` only."""
    return (number(*names) >> 11) / (1 << 53)
