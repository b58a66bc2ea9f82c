"""Serves two versions with the second set of weights where a mode says, and returns what was found.

For a process of its own: vLLM has one set of process groups.
"""

import asyncio
from pathlib import Path
from typing import Any

import msgspec
import torch
from vllm import _custom_ops as ops
from vllm.model_executor.layers import utils

from dart_streams.policy import probe
from tests.model.engines import loader_of_core
from tests.model.test_vllm_engine import Policies, read, request
from workers.rollout import vllm_rank
from workers.rollout.vllm_engine import VllmEngine
from workers.rollout.weight_loading import Copied, tensors_of


def places(core: Any) -> list[int]:
    """Return the addresses of the serving layers' tensors."""
    return [tensor.data_ptr() for tensor in tensors_of(core.llm.model_executor.driver_worker.model_runner.get_model())]


def spare_places(core: Any) -> list[int]:
    """Return the addresses of the second set's tensors, where there is one."""
    spare = getattr(loader_of_core(core), "spare", None)
    return [tensor.data_ptr() for tensor in tensors_of(spare)] if spare is not None else []


def same_contents(core: Any) -> bool:
    """Return whether the second set has the serving layers' values, which a copy leaves it and an exchange does not."""
    serving = tensors_of(core.llm.model_executor.driver_worker.model_runner.get_model())
    return all(torch.equal(*pair) for pair in zip(serving, tensors_of(loader_of_core(core).spare), strict=True))


def serve(folder: Path, mode: str) -> dict[str, Any]:
    """Return what was found in ``mode``.

    ``device``, ``none``, or ``copied``, the way of a GPU with its second set in the host's memory, on a CPU whose
    layers are not packed.
    """
    return asyncio.run(serving(folder, mode))


async def serving(folder: Path, mode: str) -> dict[str, Any]:
    policies = Policies(folder)
    replace = msgspec.structs.replace
    vllm = replace(policies.config.rollout.vllm, second_set="none" if mode == "none" else "device")
    config = replace(policies.config, rollout=replace(policies.config.rollout, vllm=vllm))
    if mode == "copied":
        utils.check_cpu_sgl_kernel = lambda *_: False
        ops._supports_onednn = False
        vllm_rank.loader_of = lambda worker, _place: Copied(worker, "host")
    engine = VllmEngine(config, read)
    await engine.start(policies.versions[0])
    assert engine.thread is not None
    encode = await engine.thread.call(lambda core: core.image_encoder(engine.renderer))
    screen = encode(probe.draw_screen())
    before, spare = await engine.thread.call(places), await engine.thread.call(spare_places)
    loader = await engine.thread.call(lambda core: type(loader_of_core(core)).__name__)
    under_way = asyncio.ensure_future(engine.generate(request(1, max_tokens=100)))
    pause_ms = await engine.load(policies.versions[1])
    after, spare_after = await engine.thread.call(places), await engine.thread.call(spare_places)
    contents = await engine.thread.call(same_contents) if spare else None
    made = await under_way
    for number in (1, 2):
        if number == 2:
            await engine.load(policies.versions[2])
        stored = probe.read(Path(policies.versions[number].uri))
        assert stored is not None
        folder = Path(policies.versions[number].uri)
        await engine.check_parity(engine.thread, screen, folder, policies.versions[number])
    await engine.stop()
    return {
        "loader": loader,
        "same_places": before == after,
        "spare_stays": spare == spare_after,
        "exchanged": bool(spare) and spare == after and spare_after == before,
        "same_contents": contents,
        "pause_ms": pause_ms,
        "versions": [span.version for span in made.versions],
        "digest": engine.digest() == policies.versions[2].sha256,
    }
