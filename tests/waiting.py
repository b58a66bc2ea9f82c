"""Waiting for a condition, with a deadline."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any

BOUND_S = 120.0
PAUSE_S = 0.05


def wait_until(condition: Callable[[], Any], what: str = "the condition", bound_s: float = BOUND_S) -> Any:
    """Return the value of ``condition()`` once it is true; fail after ``bound_s``."""
    deadline = time.monotonic() + bound_s
    while not (value := condition()):
        assert time.monotonic() < deadline, f"waited {bound_s:g} s in vain for {what}"
        time.sleep(PAUSE_S)
    return value


async def until(condition: Callable[[], Awaitable[Any]], bound_s: float = BOUND_S) -> Any:
    """Return the value of ``await condition()`` once it is true; fail after ``bound_s``."""
    deadline = time.monotonic() + bound_s
    while not (value := await condition()):
        assert time.monotonic() < deadline, f"waited {bound_s:g} s in vain"
        await asyncio.sleep(PAUSE_S)
    return value
