"""A recorded trajectory with long answers, as the trainer's data of one group."""

import random
from collections.abc import Sequence

import msgspec

from benchmarks.gpu.plans import WINDOWS
from benchmarks.multi_turn.trajectories import ready_group
from benchmarks.synthetic_groups import BacklogShape, Maker
from dart_streams.config import Config
from dart_streams.policy.rendering import Renderer
from topics.observations import ExecutedAction, Observation
from topics.rollout_orders import RolloutOrder
from topics.values import VersionSpan
from trainer.data.samples import ReadyGroup

ANSWER = 150
"""Tokens of an answer."""


class LongAnswers(Maker):
    """Makes groups whose answers have :data:`ANSWER` tokens: an action after a thought of single letters."""

    def _take(self, observations: Sequence[Observation], order: RolloutOrder, rng: random.Random) -> ExecutedAction:
        taken = super()._take(observations, order, rng)
        thought = "".join(rng.choice("bcdfghjklmnpqrstvwxz") for _ in range(ANSWER - len(taken.tokens) - 1))
        text = f"{thought}\n{taken.text}"
        tokens = self.renderer.answer_tokens(text)
        return msgspec.structs.replace(
            taken,
            text=text,
            tokens=tokens,
            logprobs=[-2.0 * rng.random() for _ in tokens],
            entropies=[1.0 for _ in tokens],
            versions=[VersionSpan(version=order.after_version, start=0, end=len(tokens))],
        )


def window_config(config: Config, window: str) -> Config:
    """Return ``config`` with the bounds of a window."""
    return msgspec.structs.replace(config, policy=msgspec.structs.replace(config.policy.sliding, **WINDOWS[window]))


def make_group(config: Config, renderer: Renderer, steps: int, screen: tuple[int, int]) -> ReadyGroup:
    """Return a group of one trajectory of ``steps``, as the trainer reads it from the store."""
    made = LongAnswers(config, renderer, BacklogShape(1, steps, *screen, lengths=(steps,))).group(1)
    return ready_group(made, config, renderer)
