"""The process of a Gymnasium environment."""

import asyncio
import json
import math
import re
import sys
from pathlib import Path
from types import SimpleNamespace

import msgspec
import numpy as np
import psutil
import pytest

from dart_adapters import gymnasium_process
from dart_adapters.gymnasium_process import GymnasiumProcess
from dart_adapters.gymnasium_server import EnvironmentServer
from workers.env.environment import EnvironmentFault


async def test_of_an_ended_process_nothing_is_killed_as_its_id_may_be_anothers(monkeypatch):
    own = GymnasiumProcess(Path("python"), [], "")
    own.process = await asyncio.create_subprocess_exec("true")
    await own.process.wait()
    asked: list[int] = []
    monkeypatch.setattr(psutil, "Process", asked.append)
    await own.stop()
    assert not asked


@pytest.mark.parametrize(
    "written",
    [r'{"instruction": "\ud83d"}', "[" * 3_000 + "]" * 3_000, '{"reward": NaN}', "loading", "[1]", "7", "a" * 2**17],
)
async def test_a_line_that_is_no_answer_is_a_fault_which_names_it(tmp_path, monkeypatch, written):
    monkeypatch.setattr(gymnasium_process, "LINE_BYTES", 2**16)
    (tmp_path / "line").write_text(written + "\n")
    own = GymnasiumProcess(Path("python"), [], "")
    own.command = ["cat", str(tmp_path / "line"), "-"]
    with pytest.raises(EnvironmentFault, match=r"writes no answer: |longer than 65536 bytes"):
        await own.start()
    await own.stop()


@pytest.mark.parametrize(
    "reward", [math.nan, -math.inf, np.float32("nan"), np.array(math.inf), None, "1", 1j, [1.0, 2.0], 10**400]
)
def test_a_reward_of_no_value_is_named_and_halves_of_characters_escaped(monkeypatch, reward):
    seen = {"screenshot": np.zeros((4, 4, 3), np.uint8), "goal": "a \ud800"}
    screens = SimpleNamespace(observation_space=SimpleNamespace(shape=(4, 4, 3)), metadata={})
    env = SimpleNamespace(
        **vars(screens), reset=lambda seed: (seen, {}), step=lambda action: (seen, reward, False, False, {})
    )
    monkeypatch.setitem(sys.modules, "gymnasium", SimpleNamespace(make=lambda *_, **__: env))
    server = EnvironmentServer([], "")
    shown = server.answer({"call": "reset", "id": "x", "seed": 0})
    assert msgspec.json.decode(json.dumps(shown))["instruction"] == r"a \ud800"
    with pytest.raises(ValueError, match=re.escape(f"the reward is {str(reward)[:100]}")):
        server.answer({"call": "step", "action": "x"})
