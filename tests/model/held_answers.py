"""Holds the answers of an engine until weights are switched, whatever its speed."""

import asyncio
import threading
from typing import Any

import pytest

from workers.rollout.vllm_engine import VllmEngine

LONG = 64
"""Tokens of an answer that is under way when a version is loaded."""
FEW = 4
"""Tokens of an answer at which it is held until then."""
BOUND_S = 120


def hold(engine: VllmEngine, loop: asyncio.Runner, monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Let no answer go on beyond some tokens until weights are switched, or the event is set.

    Otherwise it would be a question of speed, and of the tokens that are drawn, which answers are under way.
    """
    core, go_on = loop.run(engine.thread.call(lambda core: core)), threading.Event()
    step, switch = core.step, core.switch

    def step_to_a_few_tokens() -> None:
        if go_on.is_set() or any(core.generated(request) < FEW for request in core.requests.values()):
            step()
        else:
            go_on.wait(0.001)  # commands are executed between two steps

    def go_on_and_switch(*given: Any) -> float:
        go_on.set()
        return switch(*given)

    monkeypatch.setattr(core, "step", step_to_a_few_tokens)
    monkeypatch.setattr(core, "switch", go_on_and_switch)
    return go_on


async def until_begun(engine: VllmEngine, *answers: "asyncio.Future[Any]") -> None:
    """Wait until an answer has as many tokens as it is held at, and each of ``answers`` is under way or over."""

    def begun(core: Any) -> bool:
        held = [core.generated(request) >= FEW for request in core.requests.values()]
        return any(held) and len(held) + sum(answer.done() for answer in answers) >= len(answers)

    async with asyncio.timeout(BOUND_S):
        while not await engine.thread.call(begun):
            pass
