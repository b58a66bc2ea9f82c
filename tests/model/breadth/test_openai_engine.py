"""The openai engine against vLLM's own OpenAI server with the tiny policy: what it says of its tokens is true."""

import asyncio
import io
import json
import math
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
import structlog
import torch
from PIL import Image
from transformers import AutoModelForImageTextToText

from dart_streams.config import Config, parse
from dart_streams.errors import AccessRefused, UserError
from dart_streams.policy import probe, tiny, weights
from dart_streams.policy.rendering import Renderer
from tests import events
from tests.model import plain_transformers
from tests.model.breadth import vllm_server
from tests.model.engines import stop_engine
from tests.model.test_vllm_engine import SCREENS, read, screen
from topics.action_requests import ActionRequest
from topics.values import MessagePart, Sampling
from topics.weights import WeightVersion
from workers.rollout.main import FIXED
from workers.rollout.openai_engine import OpenaiEngine
from workers.rollout.vllm_engine import VllmEngine

KEY = "a key that is in no log"


def request(number: int, images: int = 1, text: str = "Click button 7.", **sampling) -> ActionRequest:
    turns = [MessagePart(role="system", text="You use a computer."), MessagePart(role="user", text=text)]
    for index in range(images):
        turns.append(MessagePart(role="user", image=screen(10 * number + index)))
        if index < images - 1:
            turns.append(MessagePart(role="assistant", text="Action: click(start_box='(5,6)')"))
    return events.action_request(f"r{number}", turns=turns, sampling=Sampling(**{"max_tokens": 12, **sampling}))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("policy") / "tiny"
    tiny.build(made)
    # As Qwen2.5-VL has it: a server fills in from it whatever a request leaves open.
    fields = {"do_sample": True, "temperature": 1e-6, "top_k": 1, "top_p": 0.001, "repetition_penalty": 1.05}
    (made / "generation_config.json").write_text(json.dumps({**fields, "presence_penalty": 1.5, "min_p": 0.9}))
    return made


@pytest.fixture(scope="module")
def url(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    log = tmp_path_factory.mktemp("server") / "log"
    with vllm_server.served(folder, Config(), KEY, log) as base:
        yield base
    assert KEY not in log.read_text()


def settings(folder: Path, url: str, base: Path | None = None, **fields) -> Config:
    openai = {"base_url": url, "model": vllm_server.NAME, "api_key": "env:TEST_KEY", "trainable": True, **fields}
    return parse(
        {
            "policy": {"path": str(folder)},
            "rollout": {"engine": "openai", "max_in_flight": 8, "openai": openai},
            "env": {"request_timeout_s": 120.0},
            "run": {"minutes": 9.0 if openai["trainable"] else 0.0},
            "trainer": {"weights_uri": str(base or "")},
        }
    )


@pytest.fixture(scope="module")
def engine(folder: Path, url: str, loop: asyncio.Runner) -> Iterator[OpenaiEngine]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TEST_KEY", KEY)
        made = OpenaiEngine(settings(folder, url), read)
    loop.run(made.start(FIXED))
    yield made
    loop.run(made.stop())


@pytest.fixture(scope="module")
def in_process(folder: Path, loop: asyncio.Runner, tmp_path_factory: pytest.TempPathFactory) -> Iterator[VllmEngine]:
    """The vllm engine with the same weights."""
    base = tmp_path_factory.mktemp("version")
    model = AutoModelForImageTextToText.from_pretrained(folder, dtype=torch.float32)
    sha256 = weights.save(model.state_dict(), str(base / "0"))
    config = parse({"policy": {"path": str(folder)}, "trainer": {"weights_uri": str(base)}})
    made = VllmEngine(config, read)
    version = events.weight_version(uri=str(base / "0"), sha256=sha256)
    loop.run(made.start(version))
    yield made
    loop.run(stop_engine(made))


def first_version(base: Path, stored: probe.Probe) -> WeightVersion:
    """Return a first version as the trainer publishes it, as far as the engine reads it: its probe."""
    (base / "v0").mkdir()
    (base / "v0" / weights.PROBE).write_bytes(msgspec.json.encode(stored))
    return events.weight_version(uri=str(base / "v0"))


def test_an_endpoint_that_agrees_with_the_trainer_about_its_probe_starts(
    engine, folder, url, loop, monkeypatch, tmp_path
):
    monkeypatch.setenv("TEST_KEY", KEY)
    stored = plain_transformers.measured_of(folder, engine.renderer)
    made = OpenaiEngine(settings(folder, url, tmp_path), read)
    with structlog.testing.capture_logs() as logged:
        loop.run(made.start(first_version(tmp_path, stored)))
    loop.run(made.stop())
    [checked] = [line for line in logged if line["event"] == "parity checked"]
    assert checked["tokens"] >= 0.5 * len(stored.tokens)


def test_an_endpoint_that_disagrees_is_refused_with_the_likely_reasons(
    engine, folder, url, loop, monkeypatch, tmp_path
):
    """As one that serves another model of the same tokenizer and chat template does."""
    monkeypatch.setenv("TEST_KEY", KEY)
    stored = plain_transformers.measured_of(folder, engine.renderer)
    other = msgspec.structs.replace(stored, logprobs=[value - 0.1 for value in stored.logprobs])
    made = OpenaiEngine(settings(folder, url, tmp_path), read)
    with pytest.raises(probe.ParityFault, match=r"by 0\.1.* nats .*parity_nats.*policy\.path"):
        loop.run(made.start(first_version(tmp_path, other)))
    loop.run(made.stop())


def test_group_rollouts_differ_despite_the_generation_config(engine, loop):
    async def draw():
        return await asyncio.gather(*(engine.generate(request(7)) for _ in range(8)))

    assert len({tuple(made.tokens) for made in loop.run(draw())}) == 8
    engine.explicit = False
    try:
        assert len({tuple(made.tokens) for made in loop.run(draw())}) == 1, "the server fills in top_k = 1"
    finally:
        engine.explicit = True


def test_parts_that_are_messages_of_their_own_give_the_trainers_prompt(engine, loop):
    """As those of UI-TARS: three messages of the user before the answer."""
    asked = request(8, images=2)
    turns = [msgspec.structs.replace(turn, separate=True) for turn in asked.turns]
    made = loop.run(engine.generate(msgspec.structs.replace(asked, turns=turns)))
    assert made.tokens
    assert made.prompt_sha == engine.renderer.prompt(turns).sha != engine.renderer.prompt(asked.turns).sha


@pytest.mark.parametrize("images", [0, 1, 2])
def test_log_probabilities_are_those_of_the_engine_in_process(engine, in_process, loop, images):
    """At the same weights, within the gate that a worker must pass: else its tokens were of another policy."""
    asked = request(3, images=images)
    made = loop.run(engine.generate(asked))
    assert 0 < len(made.tokens) == len(made.logprobs) <= 12
    renderer = in_process.renderer
    prompt = renderer.prompt(asked.turns)
    encode = loop.run(in_process.thread.call(lambda core: core.image_encoder(renderer)))
    shown = [encode(SCREENS[ref.sha256]) for ref in prompt.images]
    scored = loop.run(in_process.thread.score(prompt, shown, Sampling(), made.tokens)).logprobs
    gate = in_process.config.rollout.vllm.parity_nats
    differences = [abs(one - other) for one, other in zip(made.logprobs, scored, strict=True)]
    assert max(differences) < gate, differences
    assert max(map(abs, scored)) > 100 * gate, "no log-probability of an undecided policy is near 0"


def test_an_answer_is_as_the_trainer_wants_it(engine, loop, folder):
    asked = request(1, images=2)
    made = loop.run(engine.generate(asked))
    config = Config()
    renderer = Renderer(folder, config.policy.min_pixels, config.policy.max_pixels)
    assert made.prompt_sha == renderer.prompt(asked.turns).sha
    assert made.text == renderer.text(made.tokens)
    assert [(span.version, span.start, span.end) for span in made.versions] == [(0, 0, len(made.tokens))]
    assert made.prompt_tokens == len(renderer.prompt(asked.turns).token_ids) + 2 * (48 - 1)


def test_tokens_that_the_trainers_policy_never_draws_are_not_drawn(engine, loop):
    """The untrained policy is all but undecided: forbidden tokens would show up within some thousand draws."""

    async def draw():
        asked = [request(number, images=0, temperature=2.0, max_tokens=64) for number in range(32)]
        return await asyncio.gather(*map(engine.generate, asked))

    drawn = {token for made in loop.run(draw()) for token in made.tokens}
    assert len(drawn) > 300
    assert not drawn & set(engine.renderer.banned_tokens)


def test_a_prompt_that_the_endpoint_reads_otherwise_gives_no_tokens(engine, loop):
    """The page's text is a control token to the server, and characters to the trainer."""
    made = loop.run(engine.generate(request(2, text="Click <|im_end|> now.", temperature=0.0)))
    assert made.text
    assert (made.tokens, made.logprobs, made.versions, made.prompt_sha) == ([], [], [], "")


def test_greedy_at_the_endpoint_is_greedy_in_process(engine, in_process, loop):
    asked = request(5, images=2, temperature=0.0)
    assert loop.run(engine.generate(asked)).tokens == loop.run(in_process.generate(asked)).tokens


def test_without_training_only_the_text_counts(folder, url, loop, monkeypatch):
    monkeypatch.setenv("TEST_KEY", KEY)
    made = OpenaiEngine(settings(folder, url, trainable=False, instructions="Look."), read)

    async def one():
        await made.start(FIXED)
        try:
            return await made.generate(request(4, images=1, temperature=0.0))
        finally:
            await made.stop()

    generation = loop.run(one())
    assert generation.text
    assert generation.tokens == []
    assert generation.prompt_tokens > 48


def test_a_wrong_key_ends_the_start_and_is_not_shown(folder, url, loop, monkeypatch):
    monkeypatch.setenv("TEST_KEY", "not the key")
    made = OpenaiEngine(settings(folder, url), read)
    with pytest.raises(AccessRefused, match=r"401.*rollout\.openai\.api_key") as refused:
        loop.run(made.start(FIXED))
    loop.run(made.stop())
    assert "not the key" not in str(refused.value)


def test_a_server_of_another_rendering_cannot_be_trained_with(folder, url, loop, monkeypatch, tmp_path):
    """The same weights with another chat template: the start says so, before anything was generated for training."""
    monkeypatch.setenv("TEST_KEY", KEY)
    other = tmp_path / "other"
    tiny.build(other)
    template = other / "chat_template.jinja"
    template.write_text(template.read_text().replace("assistant", "user"))
    made = OpenaiEngine(settings(other, url), read)
    with pytest.raises(UserError, match=r"rollout\.openai\.trainable = true.*run\.minutes"):
        loop.run(made.start(FIXED))
    loop.run(made.stop())


def test_log_probabilities_are_at_the_temperature_that_was_asked_for(engine, loop, folder):
    """The trainer divides logits by it: the server's must be those of what it drew from (processed_logprobs)."""
    asked = request(6, images=1, temperature=0.5)
    made = loop.run(engine.generate(asked))
    limits = Config().policy
    renderer = Renderer(folder, limits.min_pixels, limits.max_pixels)
    prompt = renderer.prompt(asked.turns)
    shown = [Image.open(io.BytesIO(SCREENS[ref.sha256])) for ref in prompt.images]
    inputs = plain_transformers.training_inputs(renderer, prompt, shown, made.tokens)
    start = inputs.pop("answer_start")
    batch = {name: value[None] if value.ndim == 1 else value for name, value in inputs.items()}
    model = AutoModelForImageTextToText.from_pretrained(folder, dtype=torch.float32).eval()
    with torch.no_grad():
        logits = model(**batch).logits[0, start - 1 : -1]
    logits = logits.masked_fill(~renderer.allowed_mask(logits.shape[-1]), -math.inf)
    found, tokens = torch.tensor(made.logprobs), torch.tensor(made.tokens)[:, None]
    gate = Config().rollout.vllm.parity_nats
    off = {t: (found - (logits / t).log_softmax(-1).gather(-1, tokens)[:, 0]).abs().max().item() for t in (0.5, 1.0)}
    assert off[0.5] < gate < off[1.0]
