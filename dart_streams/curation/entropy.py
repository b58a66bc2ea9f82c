"""High-entropy steps: only the steps of a group at which the policy was least certain are trained on."""

from collections.abc import Sequence

from dart_streams.quantiles import interpolate_quantile


def select(step_entropies: Sequence[Sequence[float]], keep: float = 0.8) -> list[list[int]]:
    """Return, for each trajectory, the indexes of its steps to keep, in order.

    ``step_entropies`` has the mean token entropy (nats) of each step. Steps at or above the ``1 - keep`` quantile
    (linear interpolation) of the whole group are kept. Source: DART, top 80 %.
    """
    every = sorted(entropy for entropies in step_entropies for entropy in entropies)
    if not every:
        return [[] for _ in step_entropies]
    bound = interpolate_quantile(every, 1.0 - keep)
    return [[index for index, entropy in enumerate(entropies) if entropy >= bound] for entropies in step_entropies]
