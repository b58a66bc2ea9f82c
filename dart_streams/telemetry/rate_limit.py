"""A library that says the same thing again and again is heard once in a while."""

import logging

AGAIN_S = 30.0


class RateLimitFilter(logging.Filter):
    """Lets a library's message pass once in ``every_s`` (seconds); what differs, passes at once."""

    def __init__(self, every_s: float = AGAIN_S) -> None:
        super().__init__()
        self.every_s = every_s
        self.passed: dict[tuple[str, str], float] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        """Say whether this record is new, or old enough to be told again."""
        known = (record.name, record.getMessage())
        if record.created - self.passed.get(known, -self.every_s) < self.every_s:
            return False
        self.passed = {key: at for key, at in self.passed.items() if record.created - at < self.every_s}
        self.passed[known] = record.created
        return True
