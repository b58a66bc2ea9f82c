"""Rate limit for repeated log messages of libraries."""

import logging

AGAIN_S = 30.0


class RateLimitFilter(logging.Filter):
    """Passes each distinct message of a logger at most once in ``every_s`` seconds."""

    def __init__(self, every_s: float = AGAIN_S) -> None:
        super().__init__()
        self.every_s = every_s
        self.passed: dict[tuple[str, str], float] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        """Return whether this message was not passed within ``every_s``."""
        known = (record.name, record.getMessage())
        if record.created - self.passed.get(known, -self.every_s) < self.every_s:
            return False
        self.passed = {key: at for key, at in self.passed.items() if record.created - at < self.every_s}
        self.passed[known] = record.created
        return True
