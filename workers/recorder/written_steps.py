"""The steps of unfinished trajectories that this recorder has written, so that summaries need no read. Pure."""

from collections import OrderedDict

from topics.observations import Observation


class WrittenSteps:
    """At most ``limit`` observations by trajectory; the trajectories that began first are dropped."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.count = 0
        self._steps: OrderedDict[str, dict[int, Observation]] = OrderedDict()

    def add(self, observation: Observation) -> None:
        """Keep a durable observation; repeats count once."""
        steps = self._steps.setdefault(observation.trajectory_id, {})
        self.count -= len(steps)
        steps[observation.step] = observation
        self.count += len(steps)
        while self.count > self.limit:
            _, dropped = self._steps.popitem(last=False)
            self.count -= len(dropped)

    def take(self, trajectory_id: str) -> list[Observation]:
        """Return the kept observations of a trajectory by step, and forget them."""
        steps = self._steps.pop(trajectory_id, {})
        self.count -= len(steps)
        return [steps[step] for step in sorted(steps)]
