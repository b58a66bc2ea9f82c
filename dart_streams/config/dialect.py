"""How the policy writes its actions."""

from dart_streams.actions import dialects
from dart_streams.config.section import Optional

COMMON = frozenset({"coordinates", "strictness", "several"})
KEYS: dict[dialects.Name, frozenset[str]] = {
    "native": frozenset(),
    "ui-tars": COMMON | {"prompt", "language"},
    "qwen-computer-use": COMMON,
    "computer_13": COMMON,
}
"""Keys that each dialect has."""


class ActionDialect(Optional, frozen=True):
    """How the policy writes its actions, and the prompt that asks for them."""

    name: dialects.Name = "native"
    """``native``: one strict spelling and a short prompt, for models trained here; or what a model writes already:
    ``ui-tars``, ``qwen-computer-use``, or OSWorld's ``computer_13``."""
    coordinates: dialects.Coordinates = "absolute"
    """Places are pixels of the image that the model sees (UI-TARS-1.5, Qwen2.5-VL), or ``relative``, 0 to 1000 of its
    width and height (UI-TARS before 1.5, Qwen3-VL)."""
    strictness: dialects.Strictness = "strict"
    """An answer with something wrong ends the episode as ``invalid_action``; ``lenient``: what is understood of it is
    executed, and what was wrong is counted."""
    several: dialects.MultipleActions = "first"
    """Of several actions in one answer the ``first`` is executed, or ``all``, as one step."""
    prompt: dialects.Style = "point"
    """Of ``ui-tars``: the published prompt that asks for places as ``<point>x y</point>``, or as a ``box`` between
    special tokens."""
    language: str = "English"
    """Of ``ui-tars``: in which thoughts are to be written."""

    def __post_init__(self) -> None:
        """Refuse keys that the dialect does not have."""
        for key in sorted(self.changed - KEYS[self.name] - {"name"}):
            fitting = ", ".join(f'"{name}"' for name, keys in KEYS.items() if key in keys)
            raise ValueError(f'{key} = "{getattr(self, key)}" is not for name = "{self.name}", but for {fitting}')

    def build(self) -> dialects.Dialect:
        """Return the dialect with these settings."""
        places, strictness, several = self.coordinates, self.strictness, self.several
        match self.name:
            case "native":
                return dialects.Native()
            case "ui-tars":
                return dialects.UiTars(
                    coordinates=places,
                    strictness=strictness,
                    several=several,
                    style=self.prompt,
                    language=self.language,
                )
            case "qwen-computer-use":
                return dialects.QwenComputerUse(coordinates=places, strictness=strictness, several=several)
            case "computer_13":
                return dialects.Computer13(coordinates=places, strictness=strictness, several=several)
