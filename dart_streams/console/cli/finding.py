"""What a check of ``dart-streams doctor`` has found."""

from typing import Literal

import msgspec


class Finding(msgspec.Struct, frozen=True):
    """The outcome of one check: what was found, and what to do if that is not enough."""

    check: str
    status: Literal["ok", "warn", "fail"]
    found: str
    advice: str = ""
