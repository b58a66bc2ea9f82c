"""Placement of a rollout worker's second set of weights, and vLLM's remaining share of GPU memory. Pure."""

from typing import Literal

from dart_streams.config.rollout import SecondSetWanted

UTILIZATION = 0.9
"""Share of GPU memory for vLLM, weights included."""
CACHE_SHARE = 0.2
"""Share reserved for activations and key-value cache beside two sets of weights."""

SecondSetPlace = Literal["device", "host", "none"]


def second_set_place(wanted: SecondSetWanted, on_gpu: bool, weights_bytes: float, total_bytes: float) -> SecondSetPlace:
    """Return the place of a second set of ``weights_bytes`` on a device with ``total_bytes`` of memory."""
    if not on_gpu:
        return "none" if wanted == "none" else "device"
    if wanted == "device":
        return "device" if 2 * weights_bytes <= (UTILIZATION - CACHE_SHARE) * total_bytes else "host"
    return "none" if wanted == "auto" else wanted


def vllm_utilization(place: SecondSetPlace, weights_bytes: float, total_bytes: float) -> float:
    """Return vLLM's share of GPU memory, which excludes a second set on the device."""
    return round(UTILIZATION - (weights_bytes / total_bytes if place == "device" else 0.0), 4)
