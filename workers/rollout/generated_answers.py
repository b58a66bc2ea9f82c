"""Tokens of a worker's answers, for the prompts that show them again. Pure."""

from array import array
from collections import OrderedDict
from collections.abc import Mapping, Sequence


class GeneratedAnswers:
    """Tokens by trajectory and text; beyond ``most`` trajectories the one that was asked longest ago is forgotten.

    A forgotten or moved trajectory has its texts tokenized again. Its log-probabilities stay true, since the trainer
    finds either prompt.
    """

    def __init__(self, most: int) -> None:
        self.most = most
        self._answers: OrderedDict[str, dict[str, array[int]]] = OrderedDict()

    def of(self, trajectory_id: str) -> Mapping[str, Sequence[int]]:
        """Return the tokens of a trajectory's answers by their texts."""
        return self._answers.get(trajectory_id, {})

    def add(self, trajectory_id: str, text: str, tokens: Sequence[int]) -> None:
        """Remember an answer."""
        self._answers.setdefault(trajectory_id, {})[text] = array("I", tokens)
        self._answers.move_to_end(trajectory_id)
        while len(self._answers) > self.most:
            self._answers.popitem(last=False)
