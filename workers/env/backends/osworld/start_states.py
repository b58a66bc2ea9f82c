"""What the untouched start states of tasks are worth: a task that is solved at its start teaches nothing."""

import asyncio
from collections import defaultdict
from collections.abc import Awaitable, Callable

from workers.env.environment import EnvironmentFault


class StartStates:
    """The scores of start states that a worker knows, each found once: on a machine that is used for nothing else."""

    def __init__(self) -> None:
        self._scores: dict[str, float] = {}
        self._one_at_a_time: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)

    async def require_unsolved(self, page: str, score: Callable[[], Awaitable[float]]) -> None:
        """Raise EnvironmentFault, from then on at once, if a task's start state is worth more than 0.

        ``score`` plays nothing and evaluates; a fault of it is raised, and it is asked again the next time.
        """
        async with self._one_at_a_time[page]:
            if page not in self._scores:
                self._scores[page] = await score()
        if (worth := self._scores[page]) > 0:
            raise EnvironmentFault(f"{page} is not played: its untouched start state is worth {worth:g} already")
