"""Text of others for a terminal: what moves its cursor, sets its title or reorders a line is written as an escape."""

import re

UNSEEN = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f"  # All control characters but tab and line feed; a carriage return hides a line.
    "\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069"  # What breaks a line, and what reorders it.
    "\ud800-\udfff]"  # Half a pair, which no stream can encode.
)


def escape_unseen(text: str) -> str:
    r"""Return text in which such characters are written as ``\u001b``, which JSON and TOML read as the character."""
    return UNSEEN.sub(lambda found: f"\\u{ord(found[0]):04x}", text)
