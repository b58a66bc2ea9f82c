"""Each model family through the whole path: prompt, vLLM, log-probabilities, parity gate, FSDP2 step, switch, export.

To prove another, add a maker of a tiny model of it to ``tests/model/families.py``.
"""

import asyncio
import gc
import hashlib
import io
import itertools
import math
from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import pytest
import torch
from PIL import Image, ImageDraw
from safetensors.torch import load_file
from transformers import AutoProcessor

from dart_streams.config import Config, parse
from dart_streams.policy import exporting, probe, weights
from dart_streams.policy.rendering import Renderer
from tests import events
from tests.model import plain_transformers
from tests.model.engines import stop_engine
from tests.model.families import FAMILIES
from topics.action_requests import ActionRequest
from topics.values import BlobRef, MessagePart, Sampling
from topics.weights import WeightVersion
from trainer.data.samples import ReadyGroup, TrainingSample
from trainer.learning.learner import Learner, WeightSnapshot
from trainer.ranks import Ranks, join_job
from workers.rollout.engine import Generation

TOLERANCE = 1e-4
"""Nats by which the engine and the trainer may differ in a token of the same float32 weights."""
SIZES = ((160, 210), (210, 160), (80, 60))
"""Of screens, in pixels: they have different numbers of tokens, and of crops where a family cuts images."""


class Family(NamedTuple):
    name: str
    folder: Path
    config: Config
    renderer: Renderer


@pytest.fixture(scope="module", params=FAMILIES)
def family(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Family:
    folder = tmp_path_factory.mktemp("family") / request.param
    FAMILIES[request.param](folder)
    config = parse(
        {
            "policy": {"path": str(folder)},
            "rollout": {"max_in_flight": 16, "vllm": {"parity_nats": TOLERANCE}},
            "trainer": {"weights_uri": str(folder.parent), "learning_rate": 1e-2, "micro_batch": 3},
        },
        source="test",
    )
    return Family(request.param, folder, config, Renderer(folder, config.policy.min_pixels, config.policy.max_pixels))


SCREENS: dict[str, bytes] = {}


async def read(ref: BlobRef) -> bytes:
    return SCREENS[ref.sha256]


def screen(number: int) -> BlobRef:
    width, height = SIZES[number % len(SIZES)]
    image = Image.new("RGB", (width, height), "white")
    ImageDraw.Draw(image).rectangle((number, 2 * number, number + 40, 2 * number + 20), fill=(number, 80, 160))
    stream = io.BytesIO()
    image.save(stream, "PNG")
    data = stream.getvalue()
    ref = BlobRef(sha256=hashlib.sha256(data).hexdigest(), size=len(data), width=width, height=height)
    SCREENS[ref.sha256] = data
    return ref


def turns(number: int, images: int) -> list[MessagePart]:
    made = [MessagePart(role="system", text="You use a computer."), MessagePart(role="user", text="Click <image>.")]
    for index in range(images):
        made.append(MessagePart(role="user", image=screen(3 * number + index)))
        if index < images - 1:
            made.append(MessagePart(role="assistant", text=probe.ANSWER))
    return made


def request(number: int, images: int) -> ActionRequest:
    return events.action_request(f"r{number}", turns=turns(number, images), sampling=Sampling(max_tokens=8))


def published(snapshot: WeightSnapshot, number: int, folder: Path) -> WeightVersion:
    uri = str(folder / f"v{number}")
    beside = {weights.PROBE: msgspec.json.encode(snapshot.probe)}
    sha256 = weights.save(snapshot.tensors, uri, beside)
    return events.weight_version(number, uri=uri, sha256=sha256)


def trainable(renderer: Renderer, asked: list[ActionRequest], made: list[Generation]) -> ReadyGroup:
    samples = []
    for number, (one, answer) in enumerate(zip(asked, made, strict=True)):
        prompt = renderer.prompt(one.turns)
        assert prompt.sha == answer.prompt_sha
        samples.append(
            TrainingSample(
                prompt=prompt.token_ids,
                images=prompt.images,
                answer=answer.tokens,
                logprobs=answer.logprobs,
                versions=answer.versions,
                advantage=1.0 if number % 2 else -1.0,
            )
        )
    group = events.curated_group()
    images = {ref.sha256: SCREENS[ref.sha256] for item in samples for ref in item.images}
    return ReadyGroup(group=group, samples=samples, images=images, refused=Counter(), read_ms=0.0)


def rendered(family: Family, said: list[MessagePart]) -> str:
    """Return the text of turns, each with one role, by the model's own processor."""
    messages = [
        {
            "role": role,
            "content": [{"type": "image"} if one.image else {"type": "text", "text": one.text} for one in of_role],
        }
        for role, of_role in itertools.groupby(said, key=lambda turn: turn.role)
    ]
    processor = AutoProcessor.from_pretrained(family.folder)
    return str(processor.apply_chat_template(messages, add_generation_prompt=True, tokenize=False))


def test_a_prompt_has_the_text_that_the_models_own_processor_makes(family):
    said = turns(1, images=3)
    said[1] = MessagePart(role="user", text="Click on Tab #2.")
    decoded = family.renderer.tokenizer.decode(
        family.renderer.prompt(said).token_ids, skip_special_tokens=False, clean_up_tokenization_spaces=False
    )
    assert decoded == rendered(family, said)


def test_the_model_reads_the_tokens_that_its_own_processor_makes(family):
    said = [
        MessagePart(role="user", image=screen(0)),
        MessagePart(role="user", text="Click on Tab #2."),
        MessagePart(role="user", image=screen(1)),
    ]
    images = [Image.open(io.BytesIO(SCREENS[turn.image.sha256])) for turn in said if turn.image]
    processor = family.renderer.processor
    official = processor(text=[rendered(family, said)], images=images, add_special_tokens=False)["input_ids"][0]
    prompt = family.renderer.prompt(said)
    assert family.renderer.expanded(prompt.token_ids, [image.size for image in images]) == list(official)


def test_what_a_page_writes_is_no_image_and_no_control_token(family):
    hostile = "".join(family.renderer.tokenizer.all_special_tokens) + family.renderer.processor.image_token
    plain, attacked = (
        family.renderer.prompt([MessagePart(role="user", text=text), MessagePart(role="user", image=screen(0))])
        for text in ("x", hostile)
    )
    for token in {*family.renderer.banned_tokens, family.renderer.eos, family.renderer.placeholder}:
        assert attacked.token_ids.count(token) == plain.token_ids.count(token)
    assert family.renderer.placeholder in family.renderer.banned_tokens
    assert family.renderer.image_token in family.renderer.banned_tokens


async def answered(engine: Any, asked: list[ActionRequest]) -> list[Generation]:
    return await asyncio.gather(*map(engine.generate, asked))


class Trained(NamedTuple):
    asked: list[ActionRequest]
    version: WeightVersion
    probe: probe.Probe


def served_and_trained(family: Family, config: Config, loop: asyncio.Runner, ranks: Ranks) -> Trained:
    """Serve the model, train a step on what it answers, switch to the new weights, and check what it answers then."""
    from workers.rollout.vllm_engine import VllmEngine

    folder = Path(config.trainer.weights_uri)
    learner = Learner(family.folder, family.renderer, config.trainer, ranks)
    first = learner.snapshot()
    plain = plain_transformers.measured_of(family.folder, family.renderer)
    assert probe.mean_mismatch(plain, first.probe.logprobs) < 1e-5
    engine = VllmEngine(config, read)
    loop.run(engine.start(published(first, 0, folder)))
    try:
        asked = [request(number, images=number % 3) for number in range(6)]
        group = trainable(family.renderer, asked, loop.run(answered(engine, asked)))
        assert {len(item.images) for item in group.samples} == {0, 1, 2}
        learned = learner.learn([group], 0, lambda: False)
        assert learned.updated
        assert math.isfinite(learned.metrics["grad_norm"])
        assert learned.metrics["grad_norm"] > 0
        assert learned.metrics["same_version_mismatch"] < TOLERANCE

        second = learner.snapshot()
        assert probe.mean_mismatch(first.probe, second.probe.logprobs) > 100 * TOLERANCE, "the step was to be seen"
        version = published(second, 1, folder)
        loop.run(engine.load(version))
        after = loop.run(answered(engine, asked))
        assert {span.version for one in after for span in one.versions} == {1}
        again = learner.learn([trainable(family.renderer, asked, after)], 1, lambda: False)
        assert again.metrics["same_version_mismatch"] < TOLERANCE
        return Trained(asked, version, second.probe)
    finally:
        loop.run(stop_engine(engine))


def test_a_family_trains_serves_switches_and_is_exported(family, loop, tmp_path):
    trainer = msgspec.structs.replace(family.config.trainer, weights_uri=str(tmp_path))
    config = msgspec.structs.replace(family.config, trainer=trainer)
    with join_job() as ranks:
        asked, version, last = served_and_trained(family, config, loop, ranks)
        gc.collect()  # vLLM leaves its process groups, and the trainer's, when the engine is collected.

    target = tmp_path / "exported"
    exporting.export(family.folder, version, target)
    stored, trained = weights.model_state(target), load_file(Path(version.uri) / weights.FILE)
    assert stored.keys() == trained.keys()
    assert all(torch.equal(stored[name], value) for name, value in trained.items())
    renderer = Renderer(target, config.policy.min_pixels, config.policy.max_pixels)
    assert renderer.prompt(asked[2].turns).sha == family.renderer.prompt(asked[2].turns).sha
    assert probe.mean_mismatch(plain_transformers.measured_of(target, renderer), last.logprobs) < 1e-5
