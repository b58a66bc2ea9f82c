"""Repeated messages of libraries are rate-limited, new ones pass at once."""

import logging

from dart_streams.telemetry.setup import RateLimitFilter


def record(at: float, message: str, *arguments: object, name: str = "aiokafka") -> logging.LogRecord:
    made = logging.LogRecord(name, logging.ERROR, __file__, 1, message, arguments, None)
    made.created = at
    return made


def test_the_same_words_pass_again_after_a_while_and_are_forgotten():
    limit = RateLimitFilter()
    passed = [at for at in range(1_000, 1_100, 10) if limit.filter(record(at, "Topic %s not found", "a"))]
    assert passed == [1_000, 1_030, 1_060, 1_090]
    limit = RateLimitFilter()
    for at in range(1_000, 2_000):
        limit.filter(record(at, "offset %d lost", at))
    assert len(limit.passed) <= 31


def test_other_words_and_other_libraries_pass_at_once():
    limit = RateLimitFilter()
    assert all(
        limit.filter(each)
        for each in (
            record(1_000, "Topic %s not found", "a"),
            record(1_001, "Topic %s not found", "b"),
            record(1_002, "Topic %s not found", "a", name="faust"),
        )
    )
