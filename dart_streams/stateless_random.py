"""Random numbers from hashes of names, which a replay draws again."""

from hashlib import blake2b


def number(*names: object) -> int:
    """Return a number in [0, 2**64) that depends on ``names`` only."""
    text = "\x1f".join(str(name) for name in names)
    return int.from_bytes(blake2b(text.encode(), digest_size=8).digest())


def share(*names: object) -> float:
    """Return a number in [0, 1) that depends on ``names`` only."""
    return (number(*names) >> 11) / (1 << 53)
