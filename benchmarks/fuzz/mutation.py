"""Mutations of a sample: of its bytes, of its numbers and texts, and with parts of other samples."""

import random
import re
from collections.abc import Callable, Sequence

TOKEN = re.compile(rb'-?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?|"(?:[^"\\]|\\.)*"|[\w./:-]+')
"""Numbers, quoted texts and words."""
PLAIN = re.compile(rb'(?<=[:,\[])("(?:[^"\\]|\\.)*"|-?\d+(?:\.\d+)?|null|true|false)(?=[,}\]])')
"""Values of JSON that are no lists and no objects."""
OTHERS = (
    *(b"0", b"1", b"-1", b"2", b"0.5", b"1e308", b"2147483648", b"1000000000000", b"253402300799999", b"9" * 30),
    *(b"null", b"true", b"{}", b"[]", b"[1]", b'["a"]', b'""', b'"x"', b'"\\u0000"'),
)
"""What such a value may become, so that what is read remains JSON."""
VALUES = (
    *(b"0", b"-1", b"1e999", b"NaN", b"9" * 400, b"18446744073709551616", b"-9223372036854775809", b"0.1", b"1e-320"),
    *(b"null", b"true", b"{}", b"[]", b'""', b'"\\u0000"', b'"\\ud800"', b'"../../x"', b'"%2e%2e%2f"', b"\xff\xfe"),
    *(b'"' + b"a" * 70_000 + b'"', b"[" * 2_000, b'{"a":' * 2_000, b"</script><b>", b"\r\nX: y\r\n", b"\x00" * 64),
)
"""What programs rarely expect, in place of a token or between two bytes."""


def flip_bytes(rng: random.Random, sample: bytearray, _: Sequence[bytes]) -> None:
    """Change single bytes."""
    for _number in range(rng.choice((1, 1, 2, 8))):
        sample[rng.randrange(len(sample))] = rng.randrange(256)


def cut_part(rng: random.Random, sample: bytearray, _: Sequence[bytes]) -> None:
    """Remove a part."""
    start = rng.randrange(len(sample))
    del sample[start : start + rng.choice((1, 4, 64, 4096))]


def repeat_part(rng: random.Random, sample: bytearray, _: Sequence[bytes]) -> None:
    """Repeat a part."""
    start = rng.randrange(len(sample))
    part = bytes(sample[start : start + rng.choice((1, 8, 256))])
    sample[start:start] = part * rng.choice((1, 2, 100, 2000))


def splice_part(rng: random.Random, sample: bytearray, others: Sequence[bytes]) -> None:
    """Insert a part of another sample."""
    other = rng.choice(others)
    start = rng.randrange(len(other))
    place = rng.randrange(len(sample))
    sample[place : place + rng.choice((0, 16))] = other[start : start + rng.choice((8, 64, 1024))]


def insert_value(rng: random.Random, sample: bytearray, _: Sequence[bytes]) -> None:
    """Insert an unusual value."""
    place = rng.randrange(len(sample))
    sample[place:place] = rng.choice(VALUES)


def replace_token(rng: random.Random, sample: bytearray, _: Sequence[bytes]) -> None:
    """Replace a number, text or word by an unusual value, or by another one of the sample."""
    tokens = list(TOKEN.finditer(sample))
    if tokens:
        token = rng.choice(tokens)
        own = bytes(rng.choice(tokens)[0])
        sample[token.start() : token.end()] = rng.choice((rng.choice(VALUES), own))


def change_value(rng: random.Random, sample: bytearray, _: Sequence[bytes]) -> None:
    """Replace a value of JSON by another one: what is read remains well formed, and is applied."""
    values = list(PLAIN.finditer(sample))
    if values:
        value = rng.choice(values)
        own = bytes(rng.choice(values)[0])
        sample[value.start() : value.end()] = rng.choice((rng.choice(OTHERS), rng.choice(OTHERS), own))


MUTATIONS: tuple[Callable[[random.Random, bytearray, Sequence[bytes]], None], ...] = (
    *(flip_bytes, cut_part, repeat_part, splice_part, insert_value, replace_token, replace_token, replace_token),
    *(change_value, change_value, change_value),
)


def mutate_sample(rng: random.Random, samples: Sequence[bytes], longest: int) -> bytes:
    """Return a sample with one to four mutations, of at most ``longest`` bytes."""
    sample = bytearray(rng.choice(samples))
    for _ in range(rng.choice((1, 1, 2, 4))):
        if sample:
            rng.choice(MUTATIONS)(rng, sample, samples)
    return bytes(sample[:longest])
