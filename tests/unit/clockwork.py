"""Time that passes only by what is waited for: how fast the machine is, and what else it does, changes nothing."""

import asyncio
import functools
from collections.abc import Callable, Coroutine
from typing import Any


class SetClock:
    """A clock that a test sets."""

    def __init__(self, now_s: float = 100.0) -> None:
        self.now_s = now_s

    def __call__(self) -> float:
        return self.now_s


class Clockwork(asyncio.SelectorEventLoop):
    """A loop whose time passes only by what is waited for. It reads and writes nothing, and waits for no thread."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self._selector.select = self.skip

    def skip(self, timeout: float | None) -> list[Any]:
        self.now += timeout or 0.0
        return []

    def time(self) -> float:
        return self.now


def by_clockwork(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Run an asynchronous test in such a loop."""

    @functools.wraps(test)
    def run(*given: Any, **named: Any) -> None:
        with asyncio.Runner(loop_factory=Clockwork) as runner:
            runner.run(test(*given, **named))

    return run
