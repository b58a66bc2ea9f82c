"""The tiny policy learns from a handful of samples, and trains on the same distribution it is sampled from."""

import hashlib
import io
from collections import Counter
from pathlib import Path

import pytest
import torch
from PIL import Image
from transformers import AutoConfig, AutoModelForImageTextToText

from dart_streams.config import Warmup
from dart_streams.policy import probe, tiny, weights
from dart_streams.policy.rendering import Renderer
from tests.model import plain_transformers
from topics.values import BlobRef, MessagePart
from trainer.data.collate import Collator
from trainer.data.samples import ReadyGroup, TrainingSample
from trainer.data.successes import sft_group
from trainer.learning.model import load
from trainer.learning.schedule import FLOOR, rate_share
from trainer.warmup.build import RAMP, warm_up

STEPS = 12


@pytest.fixture
def model_dir(tmp_path: Path) -> Path:
    tiny.build(tmp_path / "tiny")
    return tmp_path / "tiny"


@pytest.fixture
def renderer(model_dir: Path) -> Renderer:
    return Renderer(model_dir, 3136, 1_003_520)


def demonstrated(renderer: Renderer) -> list[ReadyGroup]:
    """Three demonstrations of one step each."""
    data = probe.draw_screen()
    name = hashlib.sha256(data).hexdigest()
    image = BlobRef(sha256=name, size=len(data))
    prompt = renderer.prompt([MessagePart(role="user", text="Click"), MessagePart(role="user", image=image)])
    answers = [renderer.answer_tokens(f"Action: click(start_box='({x},120)')") for x in (80, 81, 82)]
    samples = [TrainingSample(prompt=prompt.token_ids, images=prompt.images, answer=answer) for answer in answers]
    group = sft_group("demonstrations", [])
    return [ReadyGroup(group=group, samples=samples, images={name: data}, refused=Counter(), read_ms=0.0)]


def test_a_few_steps_lower_the_loss_and_change_the_weights(model_dir, renderer):
    before = weights.digest_file(model_dir / weights.FILE)
    losses: list[float] = []
    settings = Warmup(demonstrations=3, steps=STEPS, batch=4, learning_rate=2e-3)
    warm_up(model_dir, renderer, demonstrated(renderer), settings, lambda _, loss: losses.append(loss))
    assert len(losses) == STEPS
    assert losses[-1] < 0.5 * losses[0]
    assert weights.digest_file(model_dir / weights.FILE) != before
    AutoModelForImageTextToText.from_pretrained(model_dir)


def test_nothing_to_imitate_is_refused(model_dir, renderer):
    with pytest.raises(ValueError, match="no samples"):
        warm_up(model_dir, renderer, [], Warmup(), lambda *_: None)


def test_the_learning_rate_rises_and_falls():
    shares = [rate_share(step, 400, RAMP) for step in range(400)]
    assert shares[0] < 0.1
    assert max(shares) == pytest.approx(1.0, abs=0.01)
    assert shares[-1] == pytest.approx(FLOOR, abs=0.01)


def test_two_builds_from_one_seed_are_the_same(tmp_path, model_dir):
    tiny.build(tmp_path / "again")
    assert weights.digest_file(tmp_path / "again" / weights.FILE) == weights.digest_file(model_dir / weights.FILE)


@pytest.mark.parametrize("architecture", ["qwen2_5_vl", "qwen3_vl"])
def test_a_policy_has_the_width_that_is_asked_for_and_can_be_warmed_up(tmp_path, architecture):
    tiny.build(tmp_path / "wide", architecture=architecture, width=192)
    config = AutoConfig.from_pretrained(tmp_path / "wide")
    assert config.text_config.hidden_size == config.vision_config.out_hidden_size == 192
    assert config.text_config.num_attention_heads == config.vision_config.num_heads == 6
    losses: list[float] = []
    wide = Renderer(tmp_path / "wide", 3136, 1_003_520)
    settings = Warmup(demonstrations=3, steps=STEPS, batch=4, learning_rate=2e-3)
    warm_up(tmp_path / "wide", wide, demonstrated(wide), settings, lambda _, loss: losses.append(loss))
    assert losses[-1] < 0.5 * losses[0]


def test_training_scores_what_generation_saw(model_dir, renderer):
    """Prompts of different lengths, padded together, score as each does alone while it is generated."""
    model = AutoModelForImageTextToText.from_pretrained(model_dir, dtype=torch.float32).eval()
    picture = Image.open(io.BytesIO(probe.draw_screen()))
    prompts = [
        renderer.prompt(
            [MessagePart(role="user", text=text), MessagePart(role="user", image=BlobRef(sha256="s", size=1))]
        )
        for text in ("Click", "Click on the button, please")
    ]
    samples, scores = [], []
    for prompt in prompts:
        asked = plain_transformers.training_inputs(renderer, prompt, [picture], [])
        vision = {name: asked[name] for name in ("pixel_values", "image_grid_thw")}
        generated = model.generate(
            input_ids=asked["input_ids"][None],
            attention_mask=torch.ones_like(asked["input_ids"])[None],
            mm_token_type_ids=asked["mm_token_type_ids"][None],
            **vision,
            max_new_tokens=5,
            min_new_tokens=5,
            do_sample=False,
            suppress_tokens=renderer.banned_tokens,
            return_dict_in_generate=True,
            output_logits=True,
        )
        answer = generated.sequences[0, len(asked["input_ids"]) :]
        samples.append(TrainingSample(prompt=prompt.token_ids, images=prompt.images, answer=answer.tolist()))
        logits = torch.stack(generated.logits, 1)[0]
        logp = logits.masked_fill(~renderer.allowed_mask(logits.shape[-1]), -torch.inf).log_softmax(-1)
        scores.append(logp.gather(-1, answer[:, None])[:, 0])
    with torch.no_grad():
        scorer = load(model_dir, renderer, torch.device("cpu"))
        trained, _ = scorer(Collator(renderer).collate(samples, {"s": probe.draw_screen()}))
    assert torch.allclose(trained, torch.stack(scores), atol=1e-4)


def test_a_warmed_up_policy_has_a_probe_that_agrees_with_its_weights(model_dir, renderer):
    assert probe.read(model_dir) is None
    settings = Warmup(demonstrations=3, steps=1, batch=2)
    warm_up(model_dir, renderer, demonstrated(renderer), settings, lambda *_: None)
    stored = probe.read(model_dir)
    assert stored is not None
    assert stored.logprobs == pytest.approx(plain_transformers.measured_of(model_dir, renderer).logprobs, abs=1e-5)
    assert len(stored.tokens) == len(stored.logprobs) == 4
