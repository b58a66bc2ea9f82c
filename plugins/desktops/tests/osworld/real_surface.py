"""Program of `.venv/osworld`: print the public surface of the real pyautogui, and OSWorld's key names, as JSON."""

import inspect
import json
import sys
import types

import pyautogui
from desktop_env.actions import KEYBOARD_KEYS

PACKAGES = {"pyautogui", "pyscreeze", "pymsgbox", "pytweening", "pygetwindow", "mouseinfo"}
"""Packages of its functions; others are helpers that it imports."""
public = {
    name: value
    for name, value in vars(pyautogui).items()
    if not name.startswith("_")
    and not isinstance(value, types.ModuleType)
    and getattr(value, "__module__", "pyautogui").partition(".")[0] in PACKAGES
}


def parameters(value):
    """Return the names of positional parameters, None for what is not called or only takes any."""
    if not callable(value) or inspect.isclass(value):
        return None
    try:
        given = inspect.signature(value).parameters.values()
    except ValueError:
        return None
    return [item.name for item in given if item.kind is item.POSITIONAL_OR_KEYWORD]


surface = {
    "functions": {name: parameters(value) for name, value in public.items() if callable(value)},
    "values": {name: value for name, value in public.items() if isinstance(value, (bool, int, float, str))},
    "keys": pyautogui.KEY_NAMES,
    "pressable": [name for name in pyautogui.KEY_NAMES if pyautogui.platformModule.keyboardMapping.get(name)],
    "osworld": KEYBOARD_KEYS,
}
sys.stdout.write(json.dumps(surface))
