"""Our pyautogui has each public name of the real package, which this runs on an X server, and each of its keys."""

import inspect
import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dart_desktops.desktop.guest import pyautogui as ours
from dart_desktops.osworld import sidecar
from plugins.desktops.tests import osworld_needs

pytestmark = osworld_needs.EVALUATORS
PROGRAM = Path(__file__).with_name("real_surface.py")
LIMIT_S = 120


@pytest.fixture(scope="module")
def real() -> Iterator[dict[str, Any]]:
    reading, writing = os.pipe()
    server = subprocess.Popen(["Xvfb", "-displayfd", str(writing), "-nolisten", "tcp"], pass_fds=[writing])
    os.close(writing)
    try:
        with os.fdopen(reading) as numbers:
            display = f":{numbers.readline().strip()}"
        command = [sidecar.ENVIRONMENT / "bin" / "python", "-I", PROGRAM]
        environment = {"DISPLAY": display, "PATH": os.environ["PATH"], "XAUTHORITY": os.devnull}
        printed = subprocess.run(command, env=environment, capture_output=True, timeout=LIMIT_S, check=True).stdout
        yield json.loads(printed.splitlines()[-1])
    finally:
        server.terminate()
        server.wait(LIMIT_S)


def test_each_public_name_is_there_and_of_the_same_kind(real):
    assert len(real["functions"]) > 90
    missing = sorted(name for name in real["functions"] if not callable(getattr(ours, name, None)))
    assert missing == []
    assert sorted(name for name in real["values"] if not hasattr(ours, name)) == []


def test_each_value_is_that_of_the_package(real):
    chosen = {"PAUSE": 0.0, "FAILSAFE": False}
    other = {name: value for name, value in real["values"].items() if getattr(ours, name) != value}
    assert {name: getattr(ours, name) for name in other} == chosen


def test_each_call_of_the_real_functions_can_be_made_of_ours(real):
    refused = {}
    for name, parameters in real["functions"].items():
        if parameters is None:
            continue
        signature = inspect.signature(getattr(ours, name))
        try:
            bound = signature.bind(*parameters)
            signature.bind(**{parameter: 0 for parameter in parameters})
        except TypeError as error:
            refused[name] = str(error)
            continue
        named = {item.name for item in signature.parameters.values() if item.kind is item.POSITIONAL_OR_KEYWORD}
        wrong = [f"{at}: {given}" for at, given in bound.arguments.items() if at in named and given != at]
        if wrong:
            refused[name] = f"in another order: {wrong}"
    assert refused == {}


def test_each_key_name_of_the_package_and_of_osworld_is_known(real):
    assert sorted(set(real["keys"]) - set(ours.KEY_NAMES)) == []
    assert sorted(set(real["osworld"]) - set(ours.KEY_NAMES)) == []


def test_each_key_that_the_package_can_press_has_a_key_here(real):
    assert len(real["pressable"]) > 130
    assert [name for name in real["pressable"] if not ours.isValidKey(name)] == []
