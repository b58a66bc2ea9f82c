"""Untrusted text for a terminal, with control and reordering characters as escapes."""

import re

UNSEEN = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f"  # All control characters but tab and line feed; a carriage return hides a line.
    "\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069"  # Line breaks and reordering.
    "\ud800-\udfff]"  # Surrogates, which no stream can encode.
)


def escape_unseen(text: str) -> str:
    r"""Escape such characters as ``\u001b``, which JSON and TOML decode again."""
    return UNSEEN.sub(lambda found: f"\\u{ord(found[0]):04x}", text)
