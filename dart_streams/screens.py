"""Screen sizes, and the size at which a model sees a screenshot."""

import math

FACTOR = 28
"""Image sides of Qwen2.5-VL are multiples of this many pixels (14-pixel patches, merged by two)."""


def smart_resize(width: int, height: int, min_pixels: int, max_pixels: int, factor: int = FACTOR) -> tuple[int, int]:
    """Return the (width, height) at which the model sees an image of this size.

    Both sides are multiples of ``factor``; the area is within the bounds; the aspect ratio is kept as well as that
    allows. Source: ``smart_resize`` of the Qwen2-VL image processor, whose rounding this follows.
    """
    new_width = max(factor, round(width / factor) * factor)
    new_height = max(factor, round(height / factor) * factor)
    if new_width * new_height > max_pixels:
        beta = math.sqrt(width * height / max_pixels)
        new_width = max(factor, math.floor(width / beta / factor) * factor)
        new_height = max(factor, math.floor(height / beta / factor) * factor)
    elif new_width * new_height < min_pixels:
        beta = math.sqrt(min_pixels / (width * height))
        new_width = math.ceil(width * beta / factor) * factor
        new_height = math.ceil(height * beta / factor) * factor
    return new_width, new_height
