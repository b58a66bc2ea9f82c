"""The engine's thread without an engine: what hangs or ends serves nothing later, what one request raises costs it."""

import asyncio
import itertools
import threading
from types import SimpleNamespace
from typing import Any, NoReturn

import pytest
from vllm import SamplingParams
from vllm.multimodal.inputs import PlaceholderRange
from vllm.v1.engine.exceptions import EngineDeadError

from dart_streams.policy.rendering import Prompt, UnsupportedModel
from tests import events
from topics.values import Sampling
from workers.rollout.engine import EngineDead, EngineFault
from workers.rollout.generated_answers import GeneratedAnswers
from workers.rollout.images import EncodedImage
from workers.rollout.vllm_core import EngineRequest, VllmCore
from workers.rollout.vllm_engine import EngineThread, VllmEngine

BOUND_S = 120.0
PLACEHOLDER, STRANGE, ENDED = 90, 91, 92


class Idle:
    """An engine without requests."""

    busy = False

    def failure(self) -> str:
        """Return that no rank has ended."""
        return ""

    def close(self) -> None:
        """Have nothing to end."""


async def test_a_hanging_command_fails_pending_and_later_calls():
    thread, begun, over = EngineThread(Idle), threading.Event(), threading.Event()
    hanging = asyncio.ensure_future(thread.call(lambda _: (begun.set(), over.wait(BOUND_S))))
    waiting = asyncio.ensure_future(thread.call(lambda _: "served"))
    assert await asyncio.to_thread(begun.wait, BOUND_S)
    thread.check()
    thread.hang_s = 0.0
    with pytest.raises(EngineDead, match=r"vLLM hangs: .*rollout\.vllm\.hang_s is 0\)"):
        thread.check()
    for failed in (hanging, waiting, thread.call(lambda _: "served")):
        with pytest.raises(EngineDead, match="vLLM hangs"):
            await failed
    over.set()
    await thread.stop(BOUND_S)
    with pytest.raises(EngineDead, match="vLLM hangs"):
        thread.check()


async def test_a_thread_that_has_nothing_to_do_does_not_hang():
    thread = EngineThread(Idle)
    assert await thread.call(lambda _: "served") == "served"
    async with asyncio.timeout(BOUND_S):
        while thread._began_s is not None:  # noqa: ASYNC110 - the command may be a turn from its end
            await asyncio.sleep(0)
    thread.hang_s = 0.0
    thread.check()
    await thread.stop(BOUND_S)
    thread.check()


class Accepting:
    """What :class:`VllmCore` uses of vLLM's engine; a stranger's error comes of prompts that begin with ``STRANGE``."""

    def add_request(self, key: str, inputs: dict[str, Any], params: SamplingParams) -> str:
        if inputs["prompt_token_ids"][0] == STRANGE:
            raise RuntimeError("no kernel for this prompt")
        if inputs["prompt_token_ids"][0] == ENDED:
            raise EngineDeadError
        return key

    def has_unfinished_requests(self) -> bool:
        return False


def core() -> VllmCore:
    made = VllmCore.__new__(VllmCore)
    made.llm, made.requests, made.dropped, made._keys = Accepting(), {}, [], map(str, itertools.count())
    made.renderer = SimpleNamespace(eos=2, placeholder=PLACEHOLDER)
    made.failure, made.close = str, lambda: None
    return made


def prompt(*tokens: int) -> Prompt:
    return Prompt(token_ids=list(tokens), images=[], sha="")


IMAGE = EncodedImage(tokens=[PLACEHOLDER], item=None, place=PlaceholderRange(offset=0, length=1), size=1)
REFUSED = {
    "a temperature above vLLM's": (prompt(1), [], Sampling(temperature=3.0)),
    "no nucleus": (prompt(1), [], Sampling(top_p=0.0)),
    "no token": (prompt(1), [], Sampling(max_tokens=0)),
    "more places than images": (prompt(1, PLACEHOLDER, PLACEHOLDER), [IMAGE], Sampling()),
    "more images than places": (prompt(1), [IMAGE], Sampling()),
    "places and no image": (prompt(PLACEHOLDER), [], Sampling()),
    "an error of a library": (prompt(STRANGE), [], Sampling()),
}


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
async def test_what_a_request_raises_costs_that_request_only():
    thread = EngineThread(core)
    other = asyncio.ensure_future(thread.generate(prompt(1), [], Sampling()))
    for name, given in REFUSED.items():
        with pytest.raises(EngineFault):
            await thread.generate(*given)
        assert await thread.call(lambda _: "served") == "served", name
    assert not other.done()
    with pytest.raises(EngineDead, match="EngineDeadError"):
        await thread.generate(prompt(ENDED), [], Sampling())
    with pytest.raises(EngineDead):
        await other
    await thread.stop(BOUND_S)


async def test_an_answer_that_is_not_whole_costs_its_request_only():
    made = core()
    made.requests = {key: EngineRequest(prompt(1), [], Sampling()) for key in "ab"}
    requests = list(made.requests.values())
    completion = SimpleNamespace(
        finish_reason="stop", token_ids=[5], weight_versions=[], logprobs=[{5: SimpleNamespace(logprob=-1.0)}]
    )
    outputs = [
        SimpleNamespace(request_id=key, outputs=[completion], prompt_token_ids=[1], num_cached_tokens=0) for key in "ab"
    ]
    made.llm.step = lambda: outputs
    made.llm.collective_rpc = lambda *_, **__: [[{}, {0: 0.5}]]
    made.step()
    assert isinstance(requests[0].future.exception(), EngineFault)
    assert requests[1].future.result().tokens == [5]


def refuse(*_: object) -> NoReturn:
    raise UnsupportedModel("the model's chat template refuses the turns of a prompt")


async def test_turns_that_a_template_refuses_cost_their_request_only():
    engine = VllmEngine.__new__(VllmEngine)
    engine.thread, engine.answers = SimpleNamespace(), GeneratedAnswers(1)
    engine.renderer = SimpleNamespace(prompt=refuse)
    with pytest.raises(EngineFault, match="template refuses the turns"):
        await engine.generate(events.action_request("r1"))
