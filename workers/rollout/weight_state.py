"""What the ``weights`` and ``weights-serving`` topics add up to: pure folds of their records."""

from collections.abc import Mapping

import msgspec

from topics.weights import WeightVersion
from topics.weights_serving import WeightsServing


class WeightState(msgspec.Struct, frozen=True, kw_only=True):
    """The newest weights of one model, and the newest trainer epoch seen: an older one is fenced."""

    model_id: str
    epoch: int = -1
    target: WeightVersion | None = None

    def after(self, announced: WeightVersion) -> "WeightState":
        """Return the state after one record: other models, older epochs and lower versions change nothing.

        A newer epoch fences the older ones even if its own version is not newer.
        """
        if announced.model_id != self.model_id or announced.epoch < self.epoch:
            return self
        newer = self.target is None or announced.version > self.target.version
        return msgspec.structs.replace(self, epoch=announced.epoch, target=announced if newer else self.target)


def serving_after(serving: Mapping[str, WeightsServing], record: WeightsServing) -> dict[str, WeightsServing]:
    """Return the newest record of each worker after one more."""
    return {**serving, record.worker_id: record}
