"""Episodes of several screens with the prefix cache on: each prompt is computed once, with the weights that serve."""

import asyncio
import hashlib
import io
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from PIL import Image

from dart_streams.actions.dialects import View
from dart_streams.actions.dialects.native import Native
from dart_streams.actions.dialects.ui_tars import UiTars
from dart_streams.config import Config, Policy
from dart_streams.config.trainer import Publish
from dart_streams.episodes import prompts
from dart_streams.policy import resident_weights
from tests import events
from tests.model import adapted_versions
from tests.model.engines import stop_engine
from tests.model.held_answers import LONG, hold, until_begun
from tests.model.test_vllm_engine import SCREENS, Policies, close, read, serve
from topics.action_requests import ActionRequest
from topics.values import BlobRef, Sampling
from topics.weights import WeightVersion
from trainer.version_writer import VersionWriter
from workers.rollout.engine import Generation
from workers.rollout.vllm_caches import EngineCaches
from workers.rollout.vllm_engine import VllmEngine, compare_history

STEPS = 9
SIZE = (308, 224)
"""Of a screen: 88 tokens."""


def draw(number: int) -> BlobRef:
    image = Image.effect_noise(SIZE, 60).convert("RGB")
    image.paste((number * 37 % 256, 80, 160), (number, number, number + 90, number + 90))
    stream = io.BytesIO()
    image.save(stream, "PNG")
    data = stream.getvalue()
    ref = BlobRef(sha256=hashlib.sha256(data).hexdigest(), size=len(data), width=SIZE[0], height=SIZE[1])
    SCREENS[ref.sha256] = data
    return ref


class Episode:
    """A trajectory that the engine answers; its prompts drop screens in blocks."""

    def __init__(self, engine: VllmEngine, name: str, first: BlobRef | None = None) -> None:
        self.engine = engine
        self.name = name
        self.steps = [prompts.PromptStep(None, "", first or draw(0))]
        self.asked: list[ActionRequest] = []
        self.answers: list[Generation] = []

    def request(self, tokens: int) -> ActionRequest:
        turns = prompts.turns_of("Click.", View(*SIZE), self.steps, self.engine.config.policy)
        sampling = Sampling(max_tokens=tokens, temperature=0.0 if tokens == LONG else 1.0)  # a drawn one may end early
        fields = {"trajectory_id": self.name, "turns": turns, "sampling": sampling}
        return events.action_request(f"{self.name}/{len(self.asked)}", **fields)

    def generated(self, step: int) -> dict[str, list[int]]:
        return {answer.text: answer.tokens for answer in self.answers[:step]}

    async def step(self, tokens: int = 12) -> None:
        self.asked.append(self.request(tokens))
        answer = await self.engine.generate(self.asked[-1])
        self.answers.append(answer)
        self.steps.append(prompts.PromptStep(answer.text, "", draw(len(self.steps))))

    async def play(self, steps: int) -> None:
        for _ in range(steps):
            await self.step()


class OtherPolicies(Policies):
    """Versions that differ in every layer, those of the vision tower too."""

    def publish(self, number: int) -> WeightVersion:
        state = {
            name: tensor * (1 + 0.1 * number) if tensor.dim() > 1 else tensor
            for name, tensor in self.model.state_dict().items()
        }
        return self.release(state, number, str(self.folder / f"version-{number}"), self.probe(state))

    def all_true(self, episode: Episode, served: dict[int, Path], first: int = 0) -> bool:
        """Return whether the log-probabilities are transformers', each token's with the version that it names."""
        return all(self.is_true(episode, step, served) for step in range(first, len(episode.answers)))

    def is_true(self, episode: Episode, step: int, served: dict[int, Path]) -> bool:
        """Return whether those of one step are."""
        wanted: list[float] = []
        asked, made, generated = episode.asked[step], episode.answers[step], episode.generated(step)
        for span in made.versions:
            place = msgspec.structs.replace(self.versions[0], uri=str(served[span.version]))
            self.versions.append(place)
            wanted += self.score(asked, made.tokens, -1, generated)[0][span.start : span.end]
            self.versions.pop()
        return close(made.logprobs, wanted)


@pytest.fixture(scope="module")
def policies(tmp_path_factory: pytest.TempPathFactory) -> OtherPolicies:
    return OtherPolicies(tmp_path_factory.mktemp("policies"))


@pytest.fixture(scope="module")
def config(policies: OtherPolicies) -> Config:
    replace = msgspec.structs.replace
    blocks: dict[str, Any] = {"max_images": 4, "min_images": 2, "max_texts": 3, "min_texts": 1}
    rows: Policy = replace(policies.config.policy, **blocks)
    trainer = replace(policies.config.trainer, publish=Publish(dtype="bfloat16", full_every=9))
    rollout = replace(policies.config.rollout, max_in_flight=64)
    return replace(policies.config, policy=rows, trainer=trainer, rollout=rollout)


@pytest.fixture(scope="module")
def engine(policies: OtherPolicies, config: Config, loop: asyncio.Runner) -> Iterator[VllmEngine]:
    started = VllmEngine(config, read)
    loop.run(started.start(policies.versions[0]))
    yield started
    loop.run(stop_engine(started))


@pytest.fixture(scope="module")
def pairs(policies: OtherPolicies) -> dict[str, Sequence[WeightVersion]]:
    """Of each kind a version and the one that follows it."""
    return {
        "full": policies.versions[:2],
        "delta": written_deltas(policies),
        "adapter": adapted_versions.published(policies.directory, policies.folder)[1:],
    }


def written_deltas(policies: OtherPolicies) -> list[WeightVersion]:
    """Return a full version in bfloat16, and a delta of one value in ten."""
    writer, random = VersionWriter(Publish(dtype="bfloat16", full_every=9)), torch.Generator().manual_seed(0)
    state = {name: value.bfloat16() for name, value in policies.model.state_dict().items()}
    found = []
    for number in (40, 41):
        uri = f"{policies.folder}/delta-{number}"
        measured = policies.probe({name: value.float() for name, value in state.items()})
        own, base, *_ = writer.write(uri, number, state, measured)
        fields = {"kind": own.kind, "file_sha256": own.file_sha256, "base": base}
        version = events.weight_version(number, uri=uri, sha256=own.sha256)
        found.append(msgspec.structs.replace(version, **fields))
        state = {
            name: torch.where(torch.rand(value.shape, generator=random) < 0.1, value * 1.5, value)
            for name, value in state.items()
        }
    return found


def whole(versions: Sequence[WeightVersion], folder: Path) -> dict[int, Path]:
    """Return the place of each version's whole weights."""
    return {each.version: resident_weights.materialize_weights(each, folder / str(each.version)) for each in versions}


async def count_encodings(engine: VllmEngine) -> int:
    return await engine.thread.call(lambda core: core.caches.encodings)


def test_prompts_that_extend_each_other_are_computed_once_and_true(engine, loop, policies, tmp_path):
    serve(engine, loop, policies.versions[0])
    first = draw(0)
    episodes = [Episode(engine, f"e{number}", first) for number in range(3)]

    async def play_all():
        before = await count_encodings(engine)
        await asyncio.gather(*(episode.play(STEPS) for episode in episodes))
        return await count_encodings(engine) - before

    encoded, places = loop.run(play_all()), whole(policies.versions[:1], tmp_path)
    assert encoded == 1 + 3 * (STEPS - 1), "each screen once, though they are shown several times"
    for episode in episodes:
        assert policies.all_true(episode, places)
        extending = [answer for step, answer in enumerate(episode.answers) if step not in (0, 4, 7)]
        assert all(0.4 * answer.prompt_tokens < answer.cached_tokens < answer.prompt_tokens for answer in extending)
        dropped = [episode.answers[step] for step in (4, 7)]
        assert all(answer.cached_tokens < 88 for answer in dropped), "behind the first screen nothing is the same"


def test_without_the_cache_the_same_is_computed_in_whole(engine, loop, policies):
    serve(engine, loop, policies.versions[0])
    episode = Episode(engine, "greedy")
    loop.run(episode.play(STEPS))

    def switch_cache(core: Any, on: bool) -> None:
        core.llm.engine_core.engine_core.scheduler.kv_cache_manager.enable_caching = on

    async def score_again(on: bool) -> list[list[float]]:
        await engine.thread.call(lambda core: switch_cache(core, on))
        scored = []
        for step, (asked, made) in enumerate(zip(episode.asked, episode.answers, strict=True)):
            prompt = engine.renderer.prompt(asked.turns, episode.generated(step))
            images, _ = await engine.images.get(prompt.images)
            scored.append((await engine.thread.score(prompt, images, Sampling(), made.tokens)).logprobs)
        await engine.thread.call(lambda core: switch_cache(core, True))
        return scored

    off, on = loop.run(score_again(False)), loop.run(score_again(True))
    for made, without, with_cache in zip(episode.answers, off, on, strict=True):
        assert close(made.logprobs, without)
        assert close(with_cache, without)


@pytest.mark.parametrize(
    ("kind", "mode"), [("full", "keep"), ("delta", "keep"), ("adapter", "keep"), ("full", "finish"), ("full", "abort")]
)
def test_nothing_of_the_old_weights_is_read_after_a_switch(
    engine, loop, policies, pairs, kind, mode, tmp_path, monkeypatch
):
    old, new = pairs[kind]
    serve(engine, loop, old)
    episode, places = Episode(engine, kind), whole((old, new), tmp_path)
    monkeypatch.setattr(engine, "mode", mode)

    async def switch_in_the_middle():
        await episode.play(3)
        held.clear()
        under_way = asyncio.ensure_future(episode.step(LONG))
        await until_begun(engine)
        await engine.load(new)
        await under_way
        await episode.play(3)

    held = hold(engine, loop, monkeypatch)
    held.set()
    loop.run(switch_in_the_middle())
    assert policies.all_true(episode, places)
    versions = [[span.version for span in answer.versions] for answer in episode.answers]
    assert versions[:3] == [[old.version]] * 3
    through = {"keep": [old.version, new.version], "finish": [old.version], "abort": [new.version]}
    assert versions[3] == through[mode]
    assert versions[4:] == [[new.version]] * 3
    assert episode.answers[2].cached_tokens
    assert episode.answers[5].cached_tokens


@pytest.mark.parametrize("kept", ["drop_prefixes", "drop_encodings"])
def test_a_cache_that_outlives_its_weights_shows_in_the_log_probabilities(
    engine, loop, policies, kept, tmp_path, monkeypatch
):
    """So the tests above would see a switch that forgets to empty one of both."""
    serve(engine, loop, policies.versions[0])
    episode, places = Episode(engine, kept), whole(policies.versions[:2], tmp_path)
    loop.run(episode.play(3))
    with monkeypatch.context() as broken:
        broken.setattr(EngineCaches, kept, lambda _: None)
        serve(engine, loop, policies.versions[1])
    loop.run(episode.step())
    assert not policies.is_true(episode, 3, places)
    serve(engine, loop, policies.versions[1])
    loop.run(episode.step())
    assert policies.is_true(episode, 4, places)


def test_the_encoder_cache_is_as_large_as_its_requests_need(engine, loop, config):
    capacity = loop.run(engine.thread.call(lambda core: core.caches.capacity))
    assert capacity == 64 * 4 * 48 == config.rollout.max_in_flight * config.policy.max_images * 48


def test_a_prompt_has_its_answers_as_they_were_generated(engine, loop, policies):
    serve(engine, loop, policies.versions[0])
    episode = Episode(engine, "exact")
    loop.run(episode.play(4))
    assert "other" in {answer.recalled for answer in episode.answers}, "drawn from all tokens, few are the usual ones"
    prompts_seen = [engine.renderer.prompt(asked.turns, episode.generated(n)) for n, asked in enumerate(episode.asked)]
    assert [prompt.sha for prompt in prompts_seen] == [answer.prompt_sha for answer in episode.answers]
    for before, answer, after in zip(prompts_seen, episode.answers, prompts_seen[1:], strict=False):
        shown = [*before.token_ids, *answer.tokens]
        assert after.token_ids[: len(shown)] == shown


def test_an_answer_of_other_tokens_than_its_text_has_is_noticed(policies):
    renderer, text = policies.renderer, "click(start_box='(12,34)')"
    usual = renderer.answer_tokens(text)
    other = [token for character in text for token in renderer.answer_tokens(character)[:-1]]
    assert renderer.text(other) == text
    assert other != usual[:-1]
    assert compare_history(renderer, Native(), usual, text) == "same"
    assert compare_history(renderer, Native(), usual[:-1], text) == "same", "cut before its end"
    assert compare_history(renderer, Native(), other, text) == "other"
    assert compare_history(renderer, UiTars(prompt="box"), usual, text) == "rewritten"
