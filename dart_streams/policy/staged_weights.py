"""Where a rollout worker's second set of weights is, and what that leaves vLLM of a GPU's memory. Pure."""

from typing import Literal

from dart_streams.config.rollout import SecondSetWanted

UTILIZATION = 0.9
"""The share of a GPU's memory that vLLM takes, weights included."""
CACHE_SHARE = 0.2
"""The share that must be left for activations and the key-value cache beside two sets of weights."""

SecondSetPlace = Literal["device", "host", "none"]


def second_set_place(wanted: SecondSetWanted, on_gpu: bool, weights_bytes: float, total_bytes: float) -> SecondSetPlace:
    """Return where the second set of weights is, of ``weights_bytes``, beside a device's ``total_bytes`` of memory."""
    if not on_gpu:
        return "none" if wanted == "none" else "device"
    if wanted == "device":
        return "device" if 2 * weights_bytes <= (UTILIZATION - CACHE_SHARE) * total_bytes else "host"
    return "none" if wanted == "auto" else wanted


def vllm_utilization(place: SecondSetPlace, weights_bytes: float, total_bytes: float) -> float:
    """Return the share of a GPU's memory for vLLM, which does not know of a second set on the device."""
    return round(UTILIZATION - (weights_bytes / total_bytes if place == "device" else 0.0), 4)
