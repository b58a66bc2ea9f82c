"""The vllm engine with the tiny policy: what it says of its tokens is true, also across a switch of weights."""

import asyncio
import hashlib
import io
import json
import math
import shutil
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest
import structlog
import torch
from PIL import Image, ImageDraw
from safetensors.torch import load_file
from transformers import AutoModelForImageTextToText

from console.bundles.recorded_answers import Part, VersionComparison, difference_of
from dart_streams.config import Config, parse
from dart_streams.config.trainer import Publish
from dart_streams.errors import UserError
from dart_streams.policy import exporting, probe, resident_weights, tiny, weights
from dart_streams.policy.rendering import CHATML, Answers, Renderer
from dart_streams.policy.resident_weights import ResidentWeights
from dart_streams.policy.tiny_architectures import CONTEXT
from dart_streams.store import MissingBlob
from tests import events
from tests.model import adapted_versions, object_store, plain_transformers
from tests.model.engines import loader_of_core, stop_engine
from tests.model.held_answers import BOUND_S, LONG, hold, until_begun
from topics.action_requests import ActionRequest
from topics.values import BlobRef, MessagePart, Sampling
from topics.weights import WeightVersion
from trainer.version_writer import VersionWriter
from workers.rollout import vllm_settings
from workers.rollout.engine import EngineDead, EngineFault, Generation, LoadFault
from workers.rollout.vllm_engine import VllmEngine
from workers.rollout.weight_loading import tensors_of

TOLERANCE = 1e-4
SCREENS: dict[str, bytes] = {}


async def read(ref: BlobRef) -> bytes:
    if ref.sha256 not in SCREENS:
        raise MissingBlob(ref, "not in the store")
    return SCREENS[ref.sha256]


def screen(number: int) -> BlobRef:
    image = Image.new("RGB", (160, 210), "white")
    ImageDraw.Draw(image).rectangle((number, 2 * number, number + 40, 2 * number + 20), fill=(number, 80, 160))
    stream = io.BytesIO()
    image.save(stream, "PNG")
    return stored(stream.getvalue())


def stored(data: bytes) -> BlobRef:
    ref = BlobRef(sha256=hashlib.sha256(data).hexdigest(), size=len(data), width=160, height=210)
    SCREENS[ref.sha256] = data
    return ref


def request(number: int = 0, images: int = 1, **sampling) -> ActionRequest:
    turns = [
        MessagePart(role="system", text="You use a computer."),
        MessagePart(role="user", text=f"Click button {number}."),
    ]
    for index in range(images):
        turns.append(MessagePart(role="user", image=screen(10 * number + index)))
        if index < images - 1:
            turns.append(MessagePart(role="assistant", text="Action: click(start_box='(5,6)')"))
    return events.action_request(f"r{number}", turns=turns, sampling=Sampling(**{"max_tokens": 8, **sampling}))


class Policies:
    """The untrained tiny policy as a Hugging Face model and as published versions that differ."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.directory = folder / "tiny"
        tiny.build(self.directory)
        self.config: Config = parse(
            {
                "policy": {"path": str(self.directory)},
                "rollout": {"max_in_flight": 16},
                "trainer": {"weights_uri": str(folder)},
            },
            source="test",
        )
        self.renderer = Renderer(self.directory, self.config.policy.min_pixels, self.config.policy.max_pixels)
        self.model = AutoModelForImageTextToText.from_pretrained(self.directory, dtype=torch.float32).eval()
        self.versions = [self.publish(number) for number in range(3)]

    def publish(self, number: int) -> WeightVersion:
        """Each version is the first one, a little louder: another distribution everywhere."""
        uri = str(self.folder / f"version-{number}")
        state = {
            name: tensor * (1 + 0.1 * number) if "lm_head" in name else tensor
            for name, tensor in self.model.state_dict().items()
        }
        return self.release(state, number, uri, self.probe(state))

    def release(self, state: Any, number: int, uri: str, found: probe.Probe) -> WeightVersion:
        """Save weights, and beside them what transformers is said to make of the probe, as the trainer does."""
        sha256 = weights.save(state, uri, {weights.PROBE: msgspec.json.encode(found)})
        return events.weight_version(number, uri=uri, sha256=sha256)

    def probe(self, state: Any) -> probe.Probe:
        """Return what plain transformers makes of the probe with these weights."""
        self.model.load_state_dict(state)
        return plain_transformers.measured(self.model, self.renderer)

    @torch.no_grad()
    def score(
        self, asked: ActionRequest, tokens: list[int], version: int, generated: Answers | None = None
    ) -> tuple[list[float], list[float]]:
        """Return log-probabilities of ``tokens`` and entropies, by transformers, as the trainer defines them."""
        weights.load(self.model, Path(self.versions[version].uri))
        prompt = self.renderer.prompt(asked.turns, generated)
        images = [Image.open(io.BytesIO(SCREENS[ref.sha256])).convert("RGB") for ref in prompt.images]
        inputs = plain_transformers.training_inputs(self.renderer, prompt, images, tokens)
        start = inputs.pop("answer_start")
        batch = {name: value[None] if value.ndim == 1 else value for name, value in inputs.items()}
        logits = self.model(**batch).logits[0, start - 1 : -1] / (asked.sampling.temperature or 1.0)
        logits = logits.masked_fill(~self.renderer.allowed_mask(logits.shape[-1]), -math.inf)
        logp = logits.log_softmax(-1)
        entropy = torch.special.entr(logp.exp()).sum(-1)
        return logp.gather(-1, torch.tensor(tokens)[:, None])[:, 0].tolist(), entropy.tolist()


@pytest.fixture(scope="module")
def policies(tmp_path_factory: pytest.TempPathFactory) -> Policies:
    return Policies(tmp_path_factory.mktemp("policies"))


@pytest.fixture(scope="module")
def adapted(policies: Policies) -> list[WeightVersion]:
    """Frozen weights and two adapters of them."""
    return adapted_versions.published(policies.directory, policies.folder)


@pytest.fixture(scope="module")
def engine(policies: Policies, loop: asyncio.Runner) -> Iterator[VllmEngine]:
    started = VllmEngine(policies.config, read)
    loop.run(started.start(policies.versions[0]))
    yield started
    loop.run(stop_engine(started))


def serve(engine: VllmEngine, loop: asyncio.Runner, version: WeightVersion) -> float:
    return loop.run(engine.load(version))


@pytest.fixture
def held(engine: VllmEngine, loop: asyncio.Runner, monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    return hold(engine, loop, monkeypatch)


def close(found: list[float], wanted: list[float]) -> bool:
    return len(found) == len(wanted) and all(abs(f - w) < TOLERANCE for f, w in zip(found, wanted, strict=True))


def test_an_answer_has_one_entry_a_token_everywhere_and_ends_with_the_end(engine, loop, policies):
    serve(engine, loop, policies.versions[0])
    asked = request(images=2, max_tokens=12)
    made = loop.run(engine.generate(asked))
    assert 0 < len(made.tokens) <= 12
    assert len(made.tokens) == 12 or made.tokens[-1] == policies.renderer.eos
    assert len(made.logprobs) == len(made.entropies) == len(made.tokens)
    assert [(s.version, s.start, s.end) for s in made.versions] == [(0, 0, len(made.tokens))]
    assert all(logprob <= 0 for logprob in made.logprobs)
    assert all(0 <= entropy <= math.log(len(policies.renderer.allowed_tokens)) for entropy in made.entropies)
    assert made.text == policies.renderer.text(made.tokens)
    prompt = policies.renderer.prompt(asked.turns)
    assert made.prompt_sha == prompt.sha
    assert made.prompt_tokens == len(prompt.token_ids) + 2 * (48 - 1)


@pytest.mark.parametrize("images", [0, 1, 2])
@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_log_probabilities_and_entropies_are_those_of_transformers(engine, loop, policies, images, temperature):
    serve(engine, loop, policies.versions[0])
    asked = request(3, images=images, temperature=temperature)
    made = loop.run(engine.generate(asked))
    logprobs, entropies = policies.score(asked, made.tokens, version=0)
    assert close(made.logprobs, logprobs)
    assert close(made.entropies, entropies)


def recorded_as(asked: ActionRequest, made: Generation, before: Sequence[list[int]] = ()) -> Part:
    """Return a generation as a run's record of it."""
    names = ("text", "tokens", "logprobs", "entropies", "versions", "prompt_sha")
    fields = {name: getattr(made, name) for name in names}
    answer = events.action_response(request_id=asked.request_id, **fields)
    return Part(0, asked, answer, [*before], made.versions[-1])


def test_recorded_answers_are_scored_again_beside_other_requests(engine, loop, policies):
    """Those of the same weights are equal, greedy ones token by token; those of others are not."""
    asked = [request(number, images=number % 3, temperature=number % 2, max_tokens=8) for number in range(12)]

    async def all_at_once(requests: list[ActionRequest]) -> list[Generation]:
        others = [request(40 + number, images=1) for number in range(4)]
        return (await asyncio.gather(*map(engine.generate, [*requests, *others])))[: len(requests)]

    async def compared(parts: list[Part]) -> VersionComparison:
        made = await all_at_once([part.asked(part.before) for part in parts])
        counts = VersionComparison(version=0)
        for part, one in zip(parts, made, strict=True):
            counts.add(part, recorded_as(part.request, one).answer)
        return counts

    serve(engine, loop, policies.versions[0])
    parts = [recorded_as(one, made) for one, made in zip(asked, loop.run(all_at_once(asked)), strict=True)]
    equal = loop.run(compared(parts))
    assert (equal.answers, equal.generated, equal.different) == (12, 6, 0), equal.difference
    assert equal.max_nats < TOLERANCE
    serve(engine, loop, msgspec.structs.replace(policies.versions[2], version=0))
    assert loop.run(compared(parts)).different >= 6, "every sampled answer at least"


def test_a_recorded_prompt_has_the_tokens_that_were_generated(engine, loop, policies):
    """A worker that generated an answer shows its tokens later; another one tokenizes its text, often in other ways."""
    serve(engine, loop, policies.versions[0])
    first = loop.run(engine.generate(request(0, max_tokens=12, temperature=0.0)))
    shown = MessagePart(role="assistant", text=first.text)
    turns = [*request(0).turns, shown, MessagePart(role="user", image=screen(1))]
    later = events.action_request("r1", step=1, turns=turns, sampling=Sampling(max_tokens=8))
    made = loop.run(engine.generate(later))
    part = recorded_as(later, made, [first.tokens])
    elsewhere = msgspec.structs.replace(part.asked(part.before), trajectory_id="another")
    again = recorded_as(later, loop.run(engine.generate(elsewhere))).answer
    assert difference_of(part, again) is None
    assert policies.renderer.prompt(turns).sha != made.prompt_sha, "its text has other tokens"
    forgotten = loop.run(engine.generate(part.asked([])))
    assert forgotten.prompt_sha == policies.renderer.prompt(turns).sha


def check_figures_of(asked: list[ActionRequest], engine: VllmEngine, loop: asyncio.Runner, policies: Policies) -> None:
    """Check that requests that come at once each get their own figures, which are those of transformers."""
    serve(engine, loop, policies.versions[0])

    async def all_at_once():
        return await asyncio.gather(*map(engine.generate, asked))

    for one, made in zip(asked, loop.run(all_at_once()), strict=True):
        logprobs, entropies = policies.score(one, made.tokens, version=0)
        assert close(made.logprobs, logprobs)
        assert close(made.entropies, entropies)


def test_many_requests_at_once_each_get_their_own_figures(engine, loop, policies):
    asked = [request(number, images=number % 3, max_tokens=1 + number % 7) for number in range(24)]
    check_figures_of(asked, engine, loop, policies)


def test_the_first_token_precedes_the_answer_and_neither_is_kept(engine, loop, policies, held):
    held.set()
    serve(engine, loop, policies.versions[0])
    held.clear()

    def have_first_token(core):
        return [request for request in core.requests.values() if request.first_token_s]

    async def first_tokens():
        whole = asyncio.ensure_future(engine.generate(request(4, max_tokens=LONG, temperature=0.0)))
        began = time.perf_counter()
        async with asyncio.timeout(BOUND_S):
            while not (seen := await engine.thread.call(have_first_token)):
                pass
        assert not whole.done()
        dropped = asyncio.ensure_future(engine.generate(request(5, max_tokens=LONG, temperature=0.0)))
        async with asyncio.timeout(BOUND_S):
            while len(await engine.thread.call(have_first_token)) < 2:
                pass
        dropped.cancel()
        held.set()
        made = await whole
        return seen, made, (time.perf_counter() - began) * 1000

    seen, made, total_ms = loop.run(first_tokens())
    assert len(seen) == 1
    assert 0 < made.prefill_ms < total_ms

    async def requests():
        return await engine.thread.call(lambda core: core.requests)

    assert loop.run(requests()) == {}


def test_the_same_request_twice_is_drawn_anew(engine, loop):
    async def twice():
        return await asyncio.gather(*(engine.generate(request(1, max_tokens=16)) for _ in range(2)))

    one, other = loop.run(twice())
    assert one.prompt_sha == other.prompt_sha
    assert one.tokens != other.tokens


def test_greedy_takes_the_likeliest_token(engine, loop, policies):
    serve(engine, loop, policies.versions[0])
    asked = request(2, temperature=0.0)
    one, other = loop.run(engine.generate(asked)), loop.run(engine.generate(asked))
    assert one.tokens == other.tokens
    assert close(one.logprobs, policies.score(asked, one.tokens, version=0)[0])


@pytest.fixture
def gathering(engine) -> Iterator[VllmEngine]:
    engine.thread.gather_s = 3600.0
    yield engine
    engine.thread.gather_s = 0.0


async def until_gathered(engine: VllmEngine, count: int) -> None:
    """Wait until ``count`` requests wait for others; they are read on the thread, between two steps."""
    async with asyncio.timeout(BOUND_S):
        while await engine.thread.call(lambda _: len(engine.thread._gathered)) != count:
            pass


def test_requests_that_come_while_another_waits_are_computed_with_it(gathering, loop, policies, monkeypatch):
    serve(gathering, loop, policies.versions[0])

    async def one_after_another():
        core = await gathering.thread.call(lambda core: core)
        in_flight = []
        step = core.step
        monkeypatch.setattr(core, "step", lambda: (in_flight.append(len(core.requests)), step()))
        answers = []
        for number in range(4):
            answers.append(asyncio.ensure_future(gathering.generate(request(number, max_tokens=6))))
            await until_gathered(gathering, number + 1)
        gathering.thread.gather_s = 0.1
        await gathering.thread.call(lambda _: None)
        return in_flight, await asyncio.gather(*answers)

    in_flight, answers = loop.run(one_after_another())
    assert in_flight[0] == 4
    assert len(in_flight) == max(len(made.tokens) for made in answers)
    for number, made in enumerate(answers):
        assert close(made.logprobs, policies.score(request(number), made.tokens, version=0)[0])


def test_a_request_given_up_while_it_waits_for_others_is_never_computed(gathering, loop, monkeypatch):
    async def give_up():
        core = await gathering.thread.call(lambda core: core)
        monkeypatch.setattr(core, "add", lambda _: pytest.fail("it was added"))
        waiting = asyncio.ensure_future(gathering.generate(request(1)))
        await until_gathered(gathering, 1)
        waiting.cancel()
        await until_gathered(gathering, 0)
        return core.requests

    assert loop.run(give_up()) == {}


def test_special_tokens_are_never_drawn(engine, loop, policies):
    """The untrained policy is all but undecided: forbidden tokens would show up within some thousand draws."""

    async def draw():
        return await asyncio.gather(
            *(engine.generate(request(n, images=0, temperature=2.0, max_tokens=64)) for n in range(32))
        )

    drawn = {token for made in loop.run(draw()) for token in made.tokens}
    assert len(drawn) > 500
    assert not drawn & set(policies.renderer.banned_tokens)


def test_weights_switch_in_the_middle_of_answers_and_no_request_fails(engine, loop, policies, held):
    held.set()
    serve(engine, loop, policies.versions[0])
    held.clear()
    asked = [request(number, images=2, max_tokens=LONG) for number in range(8)]

    async def switch_under_way():
        answers = [asyncio.ensure_future(engine.generate(one)) for one in asked]
        await until_begun(engine, *answers)
        began = time.perf_counter()
        pause_ms = await engine.load(policies.versions[1])
        took_ms = (time.perf_counter() - began) * 1000
        return pause_ms, took_ms, await asyncio.gather(*answers)

    pause_ms, took_ms, answers = loop.run(switch_under_way())
    assert 0 < pause_ms < took_ms
    spanning = [(one, made) for one, made in zip(asked, answers, strict=True) if len(made.versions) == 2]
    assert spanning, [made.versions for made in answers]
    for one, made in spanning:
        first, second = made.versions
        assert (first.version, second.version) == (0, 1)
        assert (first.start, first.end, second.end) == (0, second.start, len(made.tokens))
        old, new = (policies.score(one, made.tokens, version) for version in (0, 1))
        cut = first.end
        assert close(made.logprobs, old[0][:cut] + new[0][cut:])
        assert close(made.entropies, old[1][:cut] + new[1][cut:])
    after = loop.run(engine.generate(request(9)))
    assert [segment.version for segment in after.versions] == [1]


@pytest.mark.parametrize(("mode", "served"), [("finish", 0), ("abort", 1)])
def test_requests_under_way_end_first_or_begin_anew_if_that_is_wanted(engine, loop, policies, held, mode, served):
    held.set()
    serve(engine, loop, policies.versions[0])
    held.clear()
    asked = [request(number, images=2, max_tokens=LONG) for number in range(8)]
    late = request(9, images=1)

    async def switch_under_way():
        answers = [asyncio.ensure_future(engine.generate(one)) for one in asked]
        await until_begun(engine, *answers)
        engine.mode = mode
        await engine.load(policies.versions[1])
        return await asyncio.gather(*answers, engine.generate(late))

    try:
        *answers, after = loop.run(switch_under_way())
    finally:
        engine.mode = "keep"
    for one, made in zip(asked, answers, strict=True):
        ((version, start, end),) = [(s.version, s.start, s.end) for s in made.versions]
        assert (start, end) == (0, len(made.tokens))
        assert close(made.logprobs, policies.score(one, made.tokens, version)[0])
    long = [made.versions[0].version for made in answers if len(made.tokens) == LONG]
    assert set(long) == {served}
    assert [segment.version for segment in after.versions] == [1]


def test_images_shown_before_a_switch_are_seen_with_the_new_weights(engine, loop, policies):
    """The vision part changes too: an embedding kept from before would give the old answer."""
    state = {name: tensor * 1.2 if "merger" in name else tensor for name, tensor in policies.model.state_dict().items()}
    uri = str(policies.folder / "other-vision")
    policies.versions[2] = msgspec.structs.replace(policies.versions[2], uri=uri, sha256=weights.save(state, uri))
    asked = request(5, images=2)
    loop.run(engine.generate(asked))
    serve(engine, loop, policies.versions[2])
    made = loop.run(engine.generate(asked))
    assert close(made.logprobs, policies.score(asked, made.tokens, version=2)[0])


def test_half_a_version_beside_the_one_that_serves_changes_nothing(engine, loop, policies):
    serve(engine, loop, policies.versions[0])
    tensors = load_file(Path(policies.versions[1].uri) / weights.FILE)
    asked = request(4, images=2)

    async def load_and_ask():
        slices = await engine.thread.call(lambda core: core.load(tensors))
        taken = 0
        while not await engine.thread.call(lambda _: next(slices, True)):
            taken += 1
            made = await engine.generate(asked)
            assert close(made.logprobs, policies.score(asked, made.tokens, version=0)[0])
        await engine.thread.call(lambda core: core.switch(1))
        return taken, await engine.generate(asked)

    taken, made = loop.run(load_and_ask())
    assert taken > 10
    assert close(made.logprobs, policies.score(asked, made.tokens, version=1)[0])


def rendered_otherwise(folder: Path) -> None:
    template = folder / "chat_template.jinja"
    template.write_text(CHATML.replace("<|im_start|>", "<|im_start|>user\n<|im_end|>\n<|im_start|>", 1))


def other_tokenizer(folder: Path) -> None:
    """Two numbers change places: the words of the prompt keep their tokens."""
    file = folder / "tokenizer.json"
    tokenizer = json.loads(file.read_text())
    vocabulary = tokenizer["model"]["vocab"]
    vocabulary["84,"], vocabulary["85,"] = vocabulary["85,"], vocabulary["84,"]
    file.write_text(json.dumps(tokenizer))


@pytest.mark.parametrize(
    ("change", "why"),
    [(rendered_otherwise, "same tokenizer and chat template"), (other_tokenizer, "other tokens of the probe's answer")],
)
def test_a_worker_that_renders_otherwise_than_the_trainer_does_not_serve(
    engine, loop, policies, tmp_path, monkeypatch, change, why
):
    folder = tmp_path / "other"
    shutil.copytree(policies.directory, folder)
    change(folder)
    limits = policies.config.policy
    monkeypatch.setattr(engine, "renderer", Renderer(folder, limits.min_pixels, limits.max_pixels))
    with pytest.raises(probe.ParityFault, match=why):
        loop.run(engine.start(policies.versions[0]))


def test_a_worker_with_smaller_images_than_the_trainer_does_not_serve(engine, loop, policies, monkeypatch):
    smaller = Renderer(policies.directory, policies.config.policy.min_pixels, 100 * 28 * 28 // 4)
    monkeypatch.setattr(engine, "renderer", smaller)
    with pytest.raises(probe.ParityFault, match=r"policy\.max_pixels of both"):
        loop.run(engine.start(policies.versions[0]))


def test_a_worker_that_disagrees_with_the_trainer_does_not_serve(engine, loop, policies):
    state = policies.model.state_dict()
    louder = {name: tensor * 1.01 for name, tensor in state.items()}
    version = policies.release(louder, 0, str(policies.folder / "louder"), policies.probe(state))
    differs = r"differ from the trainer's, in float32, by .*rollout\.vllm\.parity_nats"
    with pytest.raises(probe.ParityFault, match=differs):
        loop.run(engine.start(version))
    loop.run(engine.start(policies.versions[0]))
    assert loop.run(engine.generate(request(7))).tokens, "what was scored leaves nothing behind"


def test_a_worker_without_room_for_a_first_prompt_does_not_serve(engine, loop, policies, monkeypatch):
    policy = msgspec.structs.replace(engine.config.policy, max_tokens=16_288)
    monkeypatch.setattr(engine, "config", msgspec.structs.replace(engine.config, policy=policy))
    with pytest.raises(UserError, match=r"kv_cache_gib.*1 screens of 48.*its answer 16,288.*context 16,384"):
        loop.run(engine.start(policies.versions[0]))


def test_an_answer_cut_by_the_context_is_a_fault(engine, loop):
    """One that ends at max_tokens is the policy's own: it is read as it is."""
    asked = request(images=0, max_tokens=32, temperature=0.0)
    [*others, last] = asked.turns
    room = CONTEXT - 8 - len(engine.renderer.prompt(asked.turns).token_ids)
    step = len(engine.renderer.answer_tokens("7" * 100)) - 1
    long = msgspec.structs.replace(last, text=last.text + "7" * (100 * room // step))
    full = msgspec.structs.replace(asked, turns=[*others, long])
    assert CONTEXT - 32 < len(engine.renderer.prompt(full.turns).token_ids) < CONTEXT
    with pytest.raises(EngineFault, match=r"context is full after \d+ tokens of 32"):
        loop.run(engine.generate(full))
    assert len(loop.run(engine.generate(asked)).tokens) == 32


def test_weights_without_a_probe_are_served(engine, loop, policies):
    uri = str(policies.folder / "no-probe")
    sha256 = weights.save(policies.model.state_dict(), uri)
    loop.run(engine.start(msgspec.structs.replace(policies.versions[0], uri=uri, sha256=sha256)))


@pytest.fixture(scope="module")
def exported(policies: Policies, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Version 1 as a model directory of its own, which another run begins with."""
    folder = tmp_path_factory.mktemp("exported") / "model"
    exporting.export(policies.directory, policies.versions[1], folder)
    return folder


def test_a_run_that_begins_with_an_exported_version_serves_it(engine, loop, policies, exported, monkeypatch):
    renderer = Renderer(exported, policies.config.policy.min_pixels, policies.config.policy.max_pixels)
    found = plain_transformers.measured_of(exported, renderer)
    first = policies.release(weights.model_state(exported), 0, str(policies.folder / "begun"), found)
    monkeypatch.setattr(engine, "renderer", renderer)
    loop.run(engine.start(first))
    asked = request(8, images=2)
    made = loop.run(engine.generate(asked))
    assert close(made.logprobs, policies.score(asked, made.tokens, version=1)[0])


def test_of_weights_fetched_from_elsewhere_only_the_served_copy_is_kept(engine, loop, policies, monkeypatch):
    trainer = msgspec.structs.replace(policies.config.trainer, weights_uri="memory://weights")
    monkeypatch.setattr(engine, "config", msgspec.structs.replace(policies.config, trainer=trainer))
    for number in (10, 11):
        uri = f"memory://weights/{number}"
        sha256 = weights.save(policies.model.state_dict(), uri)
        serve(engine, loop, msgspec.structs.replace(policies.versions[0], version=number, uri=uri, sha256=sha256))
    assert len(list(Path(engine.cache.name).iterdir())) == 1
    made = loop.run(engine.generate(request(6)))
    assert [segment.version for segment in made.versions] == [11]


def test_old_weights_serve_while_the_store_is_unreachable(engine, loop, policies, monkeypatch):
    place = f"objects://{object_store.BUCKET}"
    trainer = msgspec.structs.replace(policies.config.trainer, weights_uri=place)
    monkeypatch.setattr(engine, "config", msgspec.structs.replace(policies.config, trainer=trainer))
    with object_store.registered() as store:
        sha256 = weights.save(policies.model.state_dict(), f"{place}/12")
        version = msgspec.structs.replace(policies.versions[0], version=12, uri=f"{place}/12", sha256=sha256)
        store.away.append(object_store.EndpointConnectionError("no endpoint"))
        with pytest.raises(LoadFault, match=r"can't be reached \(EndpointConnectionError: no endpoint\)"):
            loop.run(engine.load(version))
        made = loop.run(engine.generate(request(6)))
        assert 12 not in [segment.version for segment in made.versions]
        serve(engine, loop, version)
        made = loop.run(engine.generate(request(6)))
        assert [segment.version for segment in made.versions] == [12]


@pytest.fixture
def chain(policies, tmp_path_factory) -> list[WeightVersion]:
    """Versions of :func:`written_chain`; other tests keep theirs."""
    return written_chain(policies, f"chain-{tmp_path_factory.mktemp('x').name}")


def written_chain(policies: Policies, name: str) -> list[WeightVersion]:
    """Publish a full version in bfloat16 and deltas, each of which changes one value in a hundred."""
    writer = VersionWriter(Publish(dtype="bfloat16", full_every=9))
    random = torch.Generator().manual_seed(0)
    state = {name: value.bfloat16() for name, value in policies.model.state_dict().items()}
    found = []
    for number in range(20, 24):
        uri = f"{policies.folder}/{name}-{number}"
        measured = policies.probe({name: value.float() for name, value in state.items()})
        own, base, *_ = writer.write(uri, number, state, measured)
        fields = {"kind": own.kind, "file_sha256": own.file_sha256, "base": base}
        found.append(
            msgspec.structs.replace(policies.versions[0], version=number, uri=uri, sha256=own.sha256, **fields)
        )
        state = {
            key: torch.where(torch.rand(value.shape, generator=random) < 0.01, value * 1.25, value)
            for key, value in state.items()
        }
    return found


@pytest.mark.parametrize("followed", [[0, 1, 2], [0, 2], [2]], ids=["each", "one missed", "late"])
def test_an_adapter_serves_what_its_merged_weights_serve(following, loop, policies, adapted, followed):
    engine = following
    for place in followed:
        serve(engine, loop, adapted[place])
        assert engine.digest() == adapted[place].sha256
    assert [version.kind for version in adapted] == ["full", "adapter", "adapter"]
    asked = request(7, images=2, temperature=0.0)
    by_adapter, made = loaded(engine, loop), loop.run(engine.generate(asked))
    assert [segment.version for segment in made.versions] == [32]
    whole = resident_weights.materialize_weights(adapted[2], policies.folder / "made")
    merged = msgspec.structs.replace(adapted[2], uri=str(whole), kind="full", file_sha256="", base=[])
    policies.versions.append(merged)
    try:
        assert close(made.logprobs, policies.score(asked, made.tokens, version=-1)[0]), "as transformers has them"
        policies.versions[-1] = adapted[0]
        assert not close(made.logprobs, policies.score(asked, made.tokens, version=-1)[0]), "the adapter matters"
    finally:
        policies.versions.pop()

    uri = str(policies.folder / f"merged-{len(followed)}")
    shutil.copytree(whole, uri)
    serve(engine, loop, msgspec.structs.replace(merged, version=33, uri=uri))
    by_file, again = loaded(engine, loop), loop.run(engine.generate(asked))
    assert all(torch.equal(one, other) for one, other in zip(by_adapter, by_file, strict=True))
    assert again.logprobs == made.logprobs, "also what is packed is the same to the bit"


def test_a_worker_checks_parity_when_it_starts_on_an_adapter(following, loop, adapted):
    with structlog.testing.capture_logs() as logs:
        loop.run(following.start(adapted[2]))
    [checked] = [line for line in logs if line["event"] == "parity checked"]
    assert checked["mismatch_nats"] < TOLERANCE
    assert following.digest() == adapted[2].sha256


def loaded(engine, loop) -> list[torch.Tensor]:
    """Return what the serving layers have; on a CPU the packed weights are not among it."""
    return loop.run(engine.thread.call(lambda core: [t.clone() for t in tensors_of(loader_of_core(core).serving)]))


@pytest.fixture
def following(engine, policies, monkeypatch) -> VllmEngine:
    """The engine as a run with deltas has it."""
    monkeypatch.setattr(engine, "resident", ResidentWeights(Path(engine.cache.name)))
    yield engine
    engine.resident.forget()


@pytest.mark.parametrize("followed", [[0, 1, 2, 3], [0, 3], [3]], ids=["each", "some missed", "late"])
def test_a_chain_of_deltas_serves_what_the_whole_version_serves(following, loop, policies, chain, followed):
    engine = following
    for place in followed:
        serve(engine, loop, chain[place])
        assert engine.digest() == chain[place].sha256
    kinds = [version.kind for version in chain]
    assert kinds == ["full", "delta", "delta", "delta"]
    asked = request(7, images=2, temperature=0.0)
    by_delta, made = loaded(engine, loop), loop.run(engine.generate(asked))
    assert [segment.version for segment in made.versions] == [23]

    whole = resident_weights.materialize_weights(chain[3], policies.folder / "made")
    uri = str(policies.folder / f"whole-{len(followed)}")
    shutil.copytree(whole, uri)
    serve(engine, loop, msgspec.structs.replace(chain[3], version=24, uri=uri, kind="full", file_sha256="", base=[]))
    assert engine.digest() == weights.digest_file(whole / weights.FILE) == chain[3].sha256
    by_file, again = loaded(engine, loop), loop.run(engine.generate(asked))
    assert all(torch.equal(one, other) for one, other in zip(by_delta, by_file, strict=True))
    assert again.logprobs == made.logprobs, "also what is packed is the same to the bit"


@pytest.mark.parametrize("where", ["own file", "base"])
def test_a_delta_with_a_part_outside_of_the_weights_base_is_not_read(following, loop, policies, chain, where):
    serve(following, loop, chain[0])
    elsewhere = "/etc/v000001-e1"
    if where == "base":
        parts = [msgspec.structs.replace(chain[2].base[0], uri=elsewhere), *chain[2].base[1:]]
        bad = msgspec.structs.replace(chain[2], base=parts)
    else:
        bad = msgspec.structs.replace(chain[2], uri=elsewhere)
    with pytest.raises(LoadFault, match="not a directory beneath"):
        serve(following, loop, bad)
    assert following.digest() == chain[0].sha256


def test_a_worker_checks_parity_when_it_starts_on_a_delta(following, loop, chain):
    loop.run(following.start(chain[3]))
    assert following.digest() == chain[3].sha256


def test_old_weights_serve_after_a_torn_delta_until_a_full_version(following, loop, policies, chain):
    serve(following, loop, chain[1])
    file = Path(chain[2].uri) / weights.FILES["delta"]
    file.write_bytes(file.read_bytes()[:-9])
    with pytest.raises(LoadFault, match=r"version 22 \(delta\)"):
        serve(following, loop, chain[3])
    assert following.digest() == chain[1].sha256
    made = loop.run(following.generate(request(4)))
    assert [segment.version for segment in made.versions] == [21]


@pytest.mark.parametrize("damage", ["wrong digest", "missing", "another model", "another place"])
def test_weights_that_cannot_be_served_leave_the_old_ones_serving(engine, loop, policies, damage):
    serve(engine, loop, policies.versions[1])
    good = policies.versions[0]
    if damage == "wrong digest":
        bad = msgspec.structs.replace(good, version=7, sha256="0" * 64)
    elif damage == "another place":
        bad = msgspec.structs.replace(good, version=7, uri=good.uri.replace("/version", "/../x/version"))
    elif damage == "missing":
        bad = msgspec.structs.replace(good, version=7, uri=str(policies.folder / "nowhere"))
    else:
        state = policies.model.state_dict()
        state.pop("lm_head.weight")
        uri = str(policies.folder / "half")
        bad = msgspec.structs.replace(good, version=7, uri=uri, sha256=weights.save(state, uri))
    with pytest.raises(LoadFault):
        serve(engine, loop, bad)
    asked = request(4)
    made = loop.run(engine.generate(asked))
    assert [segment.version for segment in made.versions] == [1]
    assert close(made.logprobs, policies.score(asked, made.tokens, version=1)[0])


@pytest.mark.parametrize(
    ("turn", "why"),
    [
        (MessagePart(role="user", image=BlobRef(sha256="f" * 64, size=3)), "not in the store"),
        (MessagePart(role="user", image=stored(b"GIF")), "not a usable image"),
        (MessagePart(role="user", text="word " * 5000), "maximum model length"),
    ],
)
def test_a_request_that_cannot_be_answered_says_why_and_harms_no_other(engine, loop, turn, why):
    bad = msgspec.structs.replace(request(), turns=[turn])

    async def both():
        return await asyncio.gather(engine.generate(bad), engine.generate(request()), return_exceptions=True)

    fault, made = loop.run(both())
    assert isinstance(fault, EngineFault)
    assert why in str(fault)
    assert made.tokens


def test_a_request_given_up_is_forgotten_by_the_engine(engine, loop, held):
    async def give_up():
        answer = asyncio.ensure_future(engine.generate(request(max_tokens=LONG, images=0, temperature=0.0)))
        await until_begun(engine)
        answer.cancel()
        with pytest.raises(asyncio.CancelledError):
            await answer
        return await engine.thread.call(lambda core: (core.llm.get_num_unfinished_requests(), core.requests))

    assert loop.run(give_up()) == (0, {})


def test_a_model_that_is_not_there_is_named(policies, tmp_path):
    """Neither the directory of the configuration, nor the tiny policy of a deployment that has not built it."""
    replace = msgspec.structs.replace
    tasks = str(Path(__file__).parents[2] / "deploy/config/tasks.toml")
    for path in ("", str(tmp_path / "nowhere")):
        config = replace(
            policies.config,
            policy=replace(policies.config.policy, path=path),
            tasks=replace(policies.config.tasks, file=tasks),
            run=replace(policies.config.run, state_dir=str(tmp_path)),
        )
        with pytest.raises(UserError, match=r"policy\.path"):
            VllmEngine(config, read)


def test_a_broken_engine_fails_pending_and_later_calls(engine, loop):
    """The last test of the engine of the module: it breaks it."""

    def breaks(core):
        raise MemoryError("no more room")

    async def break_it():
        waiting = asyncio.ensure_future(engine.generate(request(max_tokens=500, images=0)))
        await asyncio.sleep(0)
        with pytest.raises(EngineDead, match="no more room"):
            await engine.thread.call(breaks)
        with pytest.raises(EngineDead):
            await waiting
        with pytest.raises(EngineDead):
            await engine.generate(request())
        with pytest.raises(EngineDead):
            await engine.check()

    loop.run(break_it())
    loop.run(stop_engine(engine))
    assert not torch.distributed.is_initialized(), "an engine that fails leaves the process's groups to its next owner"


def test_a_worker_in_half_precision_does_not_serve_for_a_trainer_in_full(policies, loop, exported, monkeypatch):
    """Its engine is another one, built by vLLM's own loader from an exported directory.

    Last of all: vLLM has one set of process groups, and this engine's end takes it from the module's.
    """
    arguments, other = vllm_settings.engine_arguments, {"dtype": "bfloat16", "load_format": "auto"}
    monkeypatch.setattr(vllm_settings, "engine_arguments", lambda *given: {**arguments(*given), **other})
    policy = msgspec.structs.replace(policies.config.policy, path=str(exported))
    half = VllmEngine(msgspec.structs.replace(policies.config, policy=policy), read)
    try:
        with pytest.raises(probe.ParityFault, match="in bfloat16, differ from the trainer's, in float32"):
            loop.run(half.start(policies.versions[0]))
    finally:
        loop.run(stop_engine(half))
    assert not torch.distributed.is_initialized(), "the garbage collector would end those of a later engine too"
