"""GUI-Actor: the attention head and its loss by hand on four patches, and what both heads learn of one policy."""

import contextlib
import io
import math
import random
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import torch
from aiohttp.test_utils import TestClient, TestServer
from PIL import Image, ImageDraw

from benchmarks.recipes import gui_actor as measure
from benchmarks.recipes import gui_actor_learning as learning
from benchmarks.recipes.gui_actor_screens import TargetScreen
from dart_recipes.gui_actor.grounding import Asked, Grounder
from dart_recipes.gui_actor.head import ActionHead, attention_loss
from dart_recipes.gui_actor.patches import contains
from dart_recipes.gui_actor.serve import GroundingEndpoint
from dart_streams import actions
from dart_streams.actions.dialects import View
from dart_streams.config import Config, parse
from dart_streams.episodes import prompts
from dart_streams.errors import ConfigError, UserError
from dart_streams.policy import probe, tiny
from dart_streams.policy.rendering import Renderer, renderer_of
from dart_streams.store.blobs import ref_of
from tests import events
from topics.values import BlobRef, MessagePart
from trainer.data.collate import Collator
from trainer.learning import model
from workers.env.environment import rescale
from workers.rollout.main import FIXED
from workers.rollout.openai_engine import OpenaiEngine

LEFT = torch.tensor([[True, False, True, False]])
"""Of 2 x 2 patches the left column overlaps the target."""


def test_the_loss_is_the_divergence_from_the_uniform_target():
    even = torch.zeros(1, 4, requires_grad=True)
    loss = attention_loss(even, LEFT)
    assert loss.item() == pytest.approx(math.log(2)), "1/2 log(1/2 / 1/4), twice"
    loss.backward()
    assert even.grad.tolist() == [pytest.approx([-0.25, 0.25, -0.25, 0.25])], "attention less target"


def test_the_loss_asks_for_all_patches_of_the_target():
    one = attention_loss(torch.tensor([[0.8, 0.1, 0.05, 0.05]]).log(), LEFT).item()
    assert one == pytest.approx(0.5 * math.log(0.5 / 0.8) + 0.5 * math.log(0.5 / 0.05))
    both = torch.tensor([[0.45, 0.05, 0.45, 0.05]]).log()
    assert attention_loss(both, LEFT).item() == pytest.approx(math.log(0.5 / 0.45), abs=1e-6) and one > 0.9


def test_the_loss_is_a_mean_over_prompts_and_ignores_absent_patches():
    logits = torch.zeros(2, 4)
    logits[1, 2:] = -torch.inf
    logits.requires_grad_()
    loss = attention_loss(logits, torch.tensor([[True, False, True, False], [True, True, False, False]]))
    assert loss.item() == pytest.approx(math.log(2) / 2)
    loss.backward()
    assert logits.grad.isfinite().all()


def test_the_logits_are_scaled_products_of_the_actor_and_the_patches():
    torch.manual_seed(0)
    head, patches, actor = ActionHead(16), torch.randn(1, 4, 16), torch.randn(1, 16)
    present = torch.ones(1, 4, dtype=torch.bool)
    logits, context = head(patches, present, actor)
    attended = head.attention(patches, patches, patches)[0]
    assert torch.allclose(context, head.norm(patches + attended), atol=1e-6)
    by_hand = [(head.project_patch(context[0, m]) @ head.project_actor(actor[0])).item() / 4 for m in range(4)]
    assert logits[0].tolist() == pytest.approx(by_hand, abs=1e-5)


def test_padding_changes_no_logit_and_gets_no_attention():
    torch.manual_seed(0)
    head, patches, actor = ActionHead(16), torch.randn(1, 4, 16), torch.randn(1, 16)
    alone, _ = head(patches, torch.ones(1, 4, dtype=torch.bool), actor)
    padded = torch.cat([patches, torch.randn(1, 2, 16)], 1)
    logits, _ = head(padded, torch.tensor([[True] * 4 + [False] * 2]), actor)
    assert torch.allclose(logits[:, :4], alone, atol=1e-6)
    assert logits.softmax(-1)[0, 4:].tolist() == [0, 0]


def drawn_example(number: int, split: str = "demonstration") -> TargetScreen:
    """Return a white screen with one black button of 40 x 30 pixels to click."""
    rng = random.Random(number)
    left, top = rng.randrange(120), rng.randrange(180)
    image = Image.new("RGB", (160, 210), "white")
    ImageDraw.Draw(image).rectangle((left, top, left + 40, top + 30), fill="black")
    data = io.BytesIO()
    image.save(data, "PNG")
    box = (left, top, left + 40, top + 30)
    middle = (left + 20, top + 15)
    return TargetScreen(f"drawn/button#{number}", split, "Click the button.", data.getvalue(), 160, 210, middle, box)


@pytest.fixture(scope="module")
def grounder(policy: Path, renderer: Renderer) -> Grounder:
    torch.manual_seed(0)
    return Grounder(policy, renderer)


def test_a_screen_is_cut_as_the_language_model_sees_it(renderer):
    assert measure.ask(renderer, Config().policy, drawn_example(0)).grid == (6, 8, 160, 210)


def test_the_policy_reads_as_the_trainer_does(grounder, renderer):
    ref = probe.probe_turns()[1].image
    screen = Collator(renderer).encode(probe.draw_screen())
    asked = Asked(renderer.prompt(probe.probe_turns()), [screen])
    wanted = model.probe_of(grounder.scorer, renderer)
    assert ref is not None and asked.prompt.images == [ref]
    longer = measure.ask(renderer, Config().policy, drawn_example(0))
    logp = []
    with torch.no_grad():
        for end, token in enumerate(wanted.tokens):
            last_BD = grounder.read([asked, longer], [wanted.tokens[:end], []]).last_BD
            logits_BV = grounder.policy.get_output_embeddings()(last_BD)
            logp.append(logits_BV.masked_fill(grounder.scorer.forbidden_V, -torch.inf).log_softmax(-1)[0, token].item())
    assert logp == pytest.approx(wanted.logprobs, abs=1e-4), "also beside a longer prompt"


def test_the_actor_token_sees_the_instruction_and_the_screen(grounder, renderer):
    first = measure.ask(renderer, Config().policy, drawn_example(0))
    other = measure.ask(renderer, Config().policy, drawn_example(1))
    said = Asked(renderer.prompt([MessagePart(role="user", text="Wait."), *probe.probe_turns()[1:]]), first.images)
    with torch.no_grad():
        one, two, three = (grounder.attend([each]).actor_BD for each in (first, other, said))
        together = grounder.attend([first, other, said])
    assert not torch.allclose(one, two, atol=1e-2) and not torch.allclose(one, three, atol=1e-2)
    assert torch.allclose(together.actor_BD, torch.cat([one, two, three]), atol=1e-4), "in a batch as alone"
    assert together.logits_BM.shape == (3, 48)


@pytest.fixture(scope="module")
def compared(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[TargetScreen], measure.HeldoutHits]:
    """Both heads after a short training on drawn screens, and the folder of the attention head."""
    config = parse(
        {"warmup": {"steps": 60, "batch": 16, "learning_rate": 2e-3, "width": 64}, "policy": {"max_images": 1}}
    )
    examples = [drawn_example(number) for number in range(400)]
    examples += [drawn_example(number, "heldout") for number in range(1000, 1064)]
    folder = tmp_path_factory.mktemp("gui_actor") / "policy"
    return folder, examples, measure.compare(config, examples, 0, folder)


def test_both_heads_learn_where_to_click(compared):
    _, examples, hits = compared
    shown = measure.report(examples, hits)
    assert len(hits.coordinates) == len(hits.attention) == len(hits.verified) == 64
    by_chance = 40 * 30 / (160 * 210)
    assert shown["attention"]["rate"] > 0.8 and shown["verified"]["rate"] > 0.5, shown
    assert shown["coordinates"]["rate"] > 2 * by_chance, shown


def test_a_saved_head_proposes_the_same_places(compared, renderer):
    folder, examples, hits = compared
    again = Grounder(folder, renderer)
    again.load_heads(folder)
    heldout = [example for example in examples if example.split == "heldout"]
    asked = [measure.ask(renderer, Config().policy, example) for example in heldout]
    assert measure.hits_of(heldout, again.locate(asked, verified=False)) == hits.attention
    assert measure.hits_of(heldout, again.locate(asked)) == hits.verified


def test_a_policy_without_a_head_is_refused(grounder, policy):
    with pytest.raises(UserError, match=r"has no gui_actor\.safetensors"):
        grounder.load_heads(policy)


def test_a_model_of_another_family_is_refused(tmp_path):
    tiny.build(tmp_path / "qwen3", architecture="qwen3_vl", width=64)
    with pytest.raises(UserError, match=r"no model of the Qwen2\.5-VL family"):
        Grounder(tmp_path / "qwen3", renderer_of(tmp_path / "qwen3", Config().policy))


def test_both_heads_draw_the_same_demonstrations():
    """The order of :func:`trainer.warmup.build.warm_up`."""
    drawn = list(learning.draw_batches("0123456789", 4, 3, seed=7))
    generator = random.Random(7)
    assert drawn == [generator.choices("0123456789", k=4) for _ in range(3)]


def test_intervals_of_rates_and_differences():
    assert measure.rate_of([True] * 8 + [False] * 2) == {"rate": 0.8, "low": 0.49, "high": 0.943}
    assert measure.rate_of([False] * 10) == {"rate": 0.0, "low": 0.0, "high": 0.278}
    ones, others = [True, True, True, False], [True, False, True, False]
    spread = 1.959964 * math.sqrt(3 / 16 / 4)
    wanted = {"difference": 0.25, "low": round(0.25 - spread, 3), "high": round(0.25 + spread, 3)}
    assert measure.difference_of(ones, others) == wanted


SCREEN = drawn_example(2000)


async def read_screen(ref: BlobRef) -> bytes:
    return SCREEN.image


def asking(folder: Path, url: str, **openai: Any) -> Config:
    """Return the recipe's configuration for an endpoint, with other settings of it."""
    tables = {"policy": {"path": str(folder)}, "env": {"request_timeout_s": 120.0}}
    return parse({"recipe": "gui-actor", **tables, "rollout": {"openai": {"base_url": url, **openai}}})


@contextlib.asynccontextmanager
async def endpoint(folder: Path, renderer: Renderer) -> AsyncIterator[tuple[str, GroundingEndpoint]]:
    grounder = Grounder(folder, renderer)
    grounder.load_heads(folder)
    made = GroundingEndpoint(grounder)
    async with TestServer(made.application()) as server:
        yield str(server.make_url("/v1")), made


async def test_the_rollout_workers_engine_clicks_where_the_head_says(compared, renderer):
    folder, *_ = compared
    async with endpoint(folder, renderer) as (url, served):
        config = asking(folder, url)
        engine = OpenaiEngine(config, read_screen)
        await engine.start(FIXED)
        ref = ref_of(SCREEN.image, "image/png", 160, 210)
        size = prompts.policy_size(ref, config.policy)
        turns = prompts.turns_of(SCREEN.instruction, View(*size), [prompts.PromptStep(None, "", ref)], config.policy)
        asked: list[Asked] = []
        served.grounder.locate = lambda each, real=served.grounder.locate: asked.extend(each) or real(each)
        made = await engine.generate(events.action_request("r1", turns=turns))
        await engine.stop()
    assert asked[0].prompt.token_ids == renderer.prompt(turns).token_ids, "the prompt of the training"
    action = actions.parse(made.text)
    clicked = rescale(action, size, (160, 210))
    assert isinstance(clicked, actions.Click) and contains(SCREEN.box, (clicked.x, clicked.y)), made.text
    assert (made.tokens, made.logprobs, made.versions) == ([], [], [])


async def test_a_run_that_would_train_on_its_answers_is_refused(compared, renderer):
    folder, *_ = compared
    with pytest.raises(ConfigError, match="answers without them cannot be trained on"):
        parse({"recipe": "gui-actor", "run": {"minutes": 5}})
    async with endpoint(folder, renderer) as (url, _):
        engine = OpenaiEngine(asking(folder, url, trainable=True, instructions=""), read_screen)
        with pytest.raises(UserError, match="the endpoint's first answer cannot be trained on"):
            await engine.start(FIXED)
        await engine.stop()


@pytest.mark.parametrize(
    ("messages", "reason"),
    [
        ([], "length >= 1"),
        ([{"role": "user", "content": "Click."}], "no image"),
        ([{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "http://x/1.png"}}]}], "data URL"),
        ([{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:;base64,AA=="}}]}], "unusable"),
    ],
)
async def test_a_request_without_a_usable_screen_is_rejected(grounder, messages, reason):
    async with TestClient(TestServer(GroundingEndpoint(grounder).application())) as client:
        answer = await client.post("/v1/chat/completions", json={"messages": messages})
        assert answer.status == 400 and reason in (await answer.json())["error"]["message"]
