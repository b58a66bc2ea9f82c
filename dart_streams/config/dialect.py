"""The dialect in which the policy writes its actions."""

from dart_streams.actions import dialects
from dart_streams.config.section import Optional

COMMON = frozenset({"coordinates", "strictness", "several"})
KEYS: dict[dialects.Name, frozenset[str]] = {
    "native": frozenset(),
    "ui-tars": COMMON | {"prompt", "language"},
    "qwen-computer-use": COMMON,
    "qwen-mobile-use": COMMON,
    "computer_13": COMMON,
}
"""Keys of each dialect."""


class ActionDialect(Optional, frozen=True):
    """The policy's action format, and its prompt."""

    name: dialects.Name = "native"
    """``native`` is a strict format for models trained here; the others are formats of existing models."""
    coordinates: dialects.Coordinates = "absolute"
    """``absolute`` coordinates are pixels of the image that the model sees (UI-TARS-1.5, Qwen2.5-VL); ``relative`` ones
    are 0 to 1000 of its sides (UI-TARS before 1.5, Qwen3-VL)."""
    strictness: dialects.Strictness = "strict"
    """``strict`` ends the episode at an invalid answer (``invalid_action``); ``lenient`` executes its valid part."""
    several: dialects.MultipleActions = "first"
    """Execute the ``first`` of several actions in an answer, or ``all`` of them as one step."""
    prompt: dialects.Style = "point"
    """Published prompt of ``ui-tars``, with coordinates as ``<point>x y</point>`` or as a ``box`` of special tokens.

    ``mobile`` is that of phones, in points."""
    language: str = "English"
    """Language of the thoughts of ``ui-tars``."""

    def __post_init__(self) -> None:
        """Refuse keys of other dialects."""
        for key in sorted(self.changed - KEYS[self.name] - {"name"}):
            fitting = ", ".join(f'"{name}"' for name, keys in KEYS.items() if key in keys)
            raise ValueError(f'{key} = "{getattr(self, key)}" is not for name = "{self.name}", but for {fitting}')

    def build(self) -> dialects.Dialect:
        """Return the dialect with these settings."""
        return dialects.BY_NAME[self.name](**{key: getattr(self, key) for key in KEYS[self.name]})
