"""The vllm engine on two ranks, each a process on this CPU, serves what one rank serves."""

import asyncio
import io
import itertools
import os
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from PIL import Image, ImageDraw

from dart_streams.config import Config
from dart_streams.errors import UserError
from dart_streams.policy import probe, resident_weights, weights
from dart_streams.policy.rendering import Renderer
from tests import events
from tests.model import adapted_versions
from tests.model.engines import stop_engine, wait_until_ended
from tests.model.held_answers import LONG, hold, until_begun
from tests.model.test_vllm_engine import Policies, check_figures_of, close, read, request, serve, stored, written_chain
from topics.action_requests import ActionRequest
from topics.values import MessagePart, Sampling
from topics.weights import WeightVersion
from workers.rollout.engine import EngineDead, LoadFault
from workers.rollout.vllm_engine import VllmEngine
from workers.rollout.weight_loading import tensors_of

RANKS = 2
LARGE = 1260
"""Side of a screen in pixels whose pixel values are above the 8 MiB from which vLLM shares them."""
BOUND_S = 120


def on_ranks(config: Config, ranks: int) -> Config:
    """Return a configuration with ``ranks`` ranks, for versions that are deltas or adapters."""
    replace = msgspec.structs.replace
    vllm = replace(config.rollout.vllm, tensor_parallel=ranks)
    publish = replace(config.trainer.publish, full_every=9, dtype="bfloat16")
    return replace(
        config,
        policy=replace(config.policy, max_pixels=LARGE**2),
        rollout=replace(config.rollout, vllm=vllm),
        trainer=replace(config.trainer, publish=publish),
    )


def large_request(number: int, max_tokens: int) -> ActionRequest:
    """Return a request with a large screen of its own."""
    image = Image.new("RGB", (LARGE, LARGE), "white")
    ImageDraw.Draw(image).rectangle((0, 0, 100 * (number + 1), 300), fill=(20 * number, 80, 160))
    stream = io.BytesIO()
    image.save(stream, "PNG")
    shown = MessagePart(role="user", image=stored(stream.getvalue()))
    turns = [MessagePart(role="user", text=f"Click button {number}."), shown]
    return events.action_request(f"large{number}", turns=turns, sampling=Sampling(max_tokens=max_tokens))


@pytest.fixture(scope="module")
def policies(tmp_path_factory: pytest.TempPathFactory) -> Policies:
    made = Policies(tmp_path_factory.mktemp("policies"))
    made.renderer = Renderer(made.directory, made.config.policy.min_pixels, LARGE**2)
    return made


@pytest.fixture(scope="module")
def adapted(policies: Policies) -> list[WeightVersion]:
    """Frozen weights and two adapters of them."""
    return adapted_versions.published(policies.directory, policies.folder)


@pytest.fixture(scope="module")
def engine(policies: Policies, adapted: list[WeightVersion], loop: asyncio.Runner) -> Iterator[VllmEngine]:
    """One start for the module: two processes that import vLLM, after the trainer's."""
    started = VllmEngine(on_ranks(policies.config, RANKS), read)
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("LOCAL_WORLD_SIZE", "1")  # vLLM sets it in this process too: a trainer would read it
        loop.run(started.start(policies.versions[0]))
        yield started
        loop.run(stop_engine(started))


def of_ranks(engine: VllmEngine, loop: asyncio.Runner, function: Any) -> list[Any]:
    """Return what a function finds in each rank's worker."""

    async def ask() -> list[Any]:
        assert engine.thread is not None
        return await engine.thread.call(lambda core: core.llm.collective_rpc(function))

    return loop.run(ask())


def serving_sums(engine: VllmEngine, loop: asyncio.Runner) -> list[list[float]]:
    """Return a sum of each tensor of each rank's serving layers; packed weights are not among them."""

    def sums(worker: Any) -> list[float]:
        return [float(tensor.double().sum()) for tensor in tensors_of(worker.weight_loader.serving)]

    return of_ranks(engine, loop, sums)


def test_ranks_have_processes_of_their_own_and_half_of_a_layer(engine, loop, policies):
    def layer(worker: Any) -> tuple[int, str, list[int]]:
        found = dict(worker.weight_loader.spare.named_parameters())
        name = next(name for name in found if name.endswith("embed_tokens.weight"))  # others are packed
        return os.getpid(), type(worker.weight_loader).__name__, list(found[name].shape)

    found = of_ranks(engine, loop, layer)
    assert len({os.getpid(), *(pid for pid, *_ in found)}) == 1 + RANKS
    assert [loader for _, loader, _ in found] == ["DoubleBuffered"] * RANKS
    rows = sum(shape[0] for *_, shape in found)
    assert [shape for *_, shape in found] == [[rows // RANKS, 128]] * RANKS
    assert rows - policies.renderer.config.get_text_config().vocab_size < 64 * RANKS, "padded"


def mapped_queues() -> list[str]:
    """Return this process's mappings of Python's shared memory, by which vLLM's processes send each other messages."""
    return [line for line in Path("/proc/self/maps").read_text().splitlines() if "/dev/shm/psm_" in line]


def test_ranks_leave_no_named_memory_to_a_kill(engine, loop):
    groups = of_ranks(engine, loop, lambda _: os.environ["VLLM_DIST_IDENT"])
    assert len(set(groups)) == 1
    assert not list(Path("/dev/shm").glob(f"{groups[0]}*"))
    queues = [*mapped_queues(), *itertools.chain(*of_ranks(engine, loop, lambda _: mapped_queues()))]
    assert queues and all(line.endswith("(deleted)") for line in queues)


def test_many_requests_at_once_each_get_their_own_figures(engine, loop, policies):
    """Ranks that drew different tokens would go on with other keys and values."""
    heat = (1.0, 0.7)
    asked = [request(n, images=n % 3, max_tokens=1 + 3 * (n % 7), temperature=heat[n % 2]) for n in range(24)]
    check_figures_of(asked, engine, loop, policies)


@pytest.mark.parametrize("mode", ["keep", "finish", "abort"])
def test_weights_switch_in_the_middle_of_answers(engine, loop, policies, monkeypatch, mode):
    held = hold(engine, loop, monkeypatch)
    held.set()
    serve(engine, loop, policies.versions[0])
    held.clear()
    monkeypatch.setattr(engine, "mode", mode)
    asked = [request(number, images=2, max_tokens=LONG) for number in range(8)]

    async def switch_under_way():
        answers = [asyncio.ensure_future(engine.generate(one)) for one in asked]
        await until_begun(engine, *answers)
        pause_ms = await engine.load(policies.versions[1])
        return pause_ms, await asyncio.gather(*answers)

    pause_ms, answers = loop.run(switch_under_way())
    assert pause_ms > 0
    served = [[span.version for span in made.versions] for made in answers if len(made.tokens) == LONG]
    assert {"keep": [0, 1], "finish": [0], "abort": [1]}[mode] in served
    for one, made in zip(asked, answers, strict=True):
        logprobs, entropies = [], []
        for span in made.versions:
            of_version = policies.score(one, made.tokens, span.version)
            logprobs += of_version[0][span.start : span.end]
            entropies += of_version[1][span.start : span.end]
        assert close(made.logprobs, logprobs)
        assert close(made.entropies, entropies)


def test_large_screens_are_seen_by_all_ranks_also_after_a_switch(engine, loop, policies, monkeypatch):
    """Ranks map the pixels of a few screens at a time; those of more than there is room for are sent."""
    held = hold(engine, loop, monkeypatch)
    held.set()
    serve(engine, loop, policies.versions[0])
    held.clear()
    asked = [large_request(number, max_tokens=LONG if number < 3 else 4) for number in range(12)]

    async def switch_under_way():
        answers = [asyncio.ensure_future(engine.generate(one)) for one in asked]
        await until_begun(engine)
        await engine.load(policies.versions[1])
        return await asyncio.gather(*answers)

    answers = loop.run(switch_under_way())
    assert any(len(made.versions) == 2 for made in answers)
    for one, made in zip(asked, answers, strict=True):
        logprobs = [
            logprob
            for span in made.versions
            for logprob in policies.score(one, made.tokens, span.version)[0][span.start : span.end]
        ]
        assert close(made.logprobs, logprobs)


def test_a_request_given_up_is_forgotten_on_the_first_rank(engine, loop, monkeypatch):
    hold(engine, loop, monkeypatch)

    async def give_up():
        dropped = asyncio.ensure_future(engine.generate(request(5, max_tokens=LONG, temperature=0.0)))
        await until_begun(engine)
        dropped.cancel()
        await asyncio.gather(dropped, return_exceptions=True)
        await engine.generate(request(6, max_tokens=1))

    loop.run(give_up())

    def kept(worker: Any) -> int:
        processors = list(worker.model_runner.input_batch.logitsprocs.all)
        return sum(len(getattr(processor, "entropies", ())) for processor in processors)

    assert of_ranks(engine, loop, kept) == [0] * RANKS


@pytest.mark.parametrize("followed", [[0, 1, 2], [0, 2]], ids=["each", "one missed"])
def test_deltas_serve_what_the_whole_version_serves(engine, loop, policies, tmp_path_factory, followed):
    chain = written_chain(policies, f"chain-{tmp_path_factory.mktemp('x').name}")
    for place in followed:
        serve(engine, loop, chain[place])
        assert engine.digest() == chain[place].sha256
    assert [version.kind for version in chain[:3]] == ["full", "delta", "delta"]
    check_against_whole(engine, loop, policies, chain[2])


def test_an_adapter_serves_what_its_merged_weights_serve(engine, loop, policies, adapted):
    for version in adapted:
        serve(engine, loop, version)
        assert engine.digest() == version.sha256
    assert [version.kind for version in adapted] == ["full", "adapter", "adapter"]
    check_against_whole(engine, loop, policies, adapted[2])


def check_against_whole(engine: VllmEngine, loop: asyncio.Runner, policies: Policies, version: WeightVersion) -> None:
    """Compare a served delta or adapter with its whole weights, as transformers and as two ranks serve them."""
    asked = request(7, images=2, temperature=0.0)
    by_parts, made = serving_sums(engine, loop), loop.run(engine.generate(asked))
    whole = resident_weights.materialize_weights(version, policies.folder / "made")
    uri = str(policies.folder / f"whole-{version.version}-{version.sha256[:8]}")
    shutil.copytree(whole, uri, dirs_exist_ok=True)
    merged = msgspec.structs.replace(
        version, version=version.version + 100, uri=uri, kind="full", file_sha256="", base=[]
    )
    policies.versions.append(merged)
    try:
        assert close(made.logprobs, policies.score(asked, made.tokens, version=-1)[0])
    finally:
        policies.versions.pop()
    serve(engine, loop, merged)
    assert serving_sums(engine, loop) == by_parts
    assert loop.run(engine.generate(asked)).logprobs == made.logprobs


def test_a_torn_version_leaves_the_old_weights_serving(engine, loop, policies):
    serve(engine, loop, policies.versions[0])
    with pytest.raises(LoadFault, match="sha256"):
        serve(engine, loop, msgspec.structs.replace(policies.versions[1], sha256="0" * 64))
    assert [span.version for span in loop.run(engine.generate(request(4))).versions] == [0]


def test_a_version_that_is_not_finite_is_not_served(engine, loop, policies, monkeypatch):
    serve(engine, loop, policies.versions[0])
    state = {name: tensor.clone() for name, tensor in policies.model.state_dict().items()}
    next(iter(state.values())).view(-1)[0] = torch.nan
    monkeypatch.setattr("dart_streams.policy.finite.value_extremes", lambda _: ())
    uri = str(policies.folder / "not-finite")
    sha256 = weights.save(state, uri)
    monkeypatch.undo()
    with pytest.raises(LoadFault, match=r"version 9 at .* is not finite: .* has nan"):
        serve(engine, loop, msgspec.structs.replace(policies.versions[0], version=9, uri=uri, sha256=sha256))
    assert [span.version for span in loop.run(engine.generate(request(4))).versions] == [0]


def test_a_worker_that_disagrees_with_the_trainer_does_not_serve(engine, loop, policies):
    state = policies.model.state_dict()
    louder = {name: tensor * 1.01 for name, tensor in state.items()}
    version = policies.release(louder, 0, str(policies.folder / "louder"), policies.probe(state))
    with pytest.raises(probe.ParityFault, match=r"rollout\.vllm\.parity_nats"):
        loop.run(engine.start(version))
    loop.run(engine.start(policies.versions[0]))


def test_heads_that_the_ranks_cannot_share_are_refused(policies):
    with pytest.raises(UserError, match=r"rollout\.vllm\.tensor_parallel = 4 does not divide the 2 key-value heads"):
        VllmEngine(on_ranks(policies.config, 4), read)


def test_a_stopped_rank_is_a_hang(engine, loop, policies, monkeypatch):
    """The last test of the module: the engine does not outlive it."""
    pids = of_ranks(engine, loop, lambda _: os.getpid())
    monkeypatch.setattr(engine.thread, "hang_s", 1.0)

    async def hang() -> None:
        async with asyncio.timeout(BOUND_S):
            waiting = asyncio.ensure_future(engine.generate(request(1)))
            while not waiting.done():
                await asyncio.sleep(0.1)
                await engine.check()

    os.kill(pids[1], signal.SIGSTOP)
    try:
        with pytest.raises(EngineDead, match=r"vLLM hangs: .*rollout\.vllm\.hang_s"):
            loop.run(hang())
    finally:
        os.kill(pids[1], signal.SIGKILL)
    loop.run(asyncio.to_thread(engine.thread._thread.join, BOUND_S))
    assert not engine.thread._thread.is_alive()
    loop.run(asyncio.to_thread(wait_until_ended, pids))
