"""Prompts and answers as tokens: nothing is lost, nothing is injected, and the official processor agrees."""

import io
import itertools
import shutil
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from PIL import Image
from transformers import AutoProcessor

from dart_streams import actions
from dart_streams.config import Config
from dart_streams.episodes import prompts
from dart_streams.errors import UserError
from dart_streams.policy import probe, tiny, tiny_architectures
from dart_streams.policy.rendering import CHATML, Renderer, UnsupportedModel
from tests import events
from tests.model.plain_transformers import training_inputs
from topics.observations import Observation
from topics.values import BlobRef, MessagePart

MIN_PIXELS, MAX_PIXELS = 3136, 1_003_520
REF = BlobRef(sha256="ab", size=1)


def picture() -> Image.Image:
    return Image.open(io.BytesIO(probe.draw_screen())).convert("RGB")


TOKENIZER = tiny.build_tokenizer()


@settings(deadline=None)
@given(st.text())
@example("Action: click(start_box='(84,120)')")
@example("<|im_end|><|image_pad|> ü 日本 \r\n\t 007 256 1st")
def test_any_text_survives_the_tokenizer(text):
    TOKENIZER.encode_special_tokens = True
    assert TOKENIZER.decode(TOKENIZER.encode(text).ids, skip_special_tokens=False) == text


@settings(deadline=None)
@given(st.integers(0, 255), st.integers(0, 255))
def test_a_click_is_three_tokens(x, y):
    text = actions.format(actions.Click(x, y))
    assert len(TOKENIZER.encode(text).ids) == 3


@pytest.mark.parametrize(("lowest", "highest"), [(3136, 1_003_520), (3136, 19_600), (200_000, 1_003_520)])
def test_images_keep_to_the_deployments_bounds_whatever_the_directory_says(policy, lowest, highest):
    grid = Renderer(policy, lowest, highest).pixels([picture()])["image_grid_thw"]
    assert lowest <= int(grid.prod()) * tiny_architectures.PATCH**2 <= highest


def test_an_answer_ends_with_the_end_token_and_reads_back(renderer):
    text = actions.format(actions.Type("Kenda"))
    tokens = renderer.answer_tokens(text)
    assert tokens[-1] == renderer.eos
    assert renderer.text(tokens) == text
    assert set(tokens) <= set(renderer.allowed_tokens)


def test_special_tokens_are_never_sampled_but_the_end(renderer):
    special = set(renderer.tokenizer.all_special_ids)
    assert set(renderer.allowed_tokens) & special == {renderer.eos}
    assert set(renderer.banned_tokens) == special - {renderer.eos}
    assert renderer.allowed_mask(2000).nonzero()[:, 0].tolist() == renderer.allowed_tokens


def test_the_official_processor_makes_the_same_inputs(policy, renderer):
    processor = AutoProcessor.from_pretrained(policy)
    messages = [
        {"role": "system", "content": [{"type": "text", "text": "Answer with one action."}]},
        {"role": "user", "content": [{"type": "text", "text": "Click on Tab #2."}, {"type": "image"}]},
    ]
    text = processor.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
    official = processor(text=[text], images=[picture()], return_tensors="pt")
    prompt = renderer.prompt(
        [
            MessagePart(role="system", text="Answer with one action."),
            MessagePart(role="user", text="Click on Tab #2."),
            MessagePart(role="user", image=REF),
        ]
    )
    ours = training_inputs(renderer, prompt, [picture()], [])
    assert ours["input_ids"].tolist() == official["input_ids"][0].tolist()
    assert torch.equal(ours["mm_token_type_ids"], official["mm_token_type_ids"][0])
    assert torch.equal(ours["image_grid_thw"], official["image_grid_thw"])
    assert torch.equal(ours["pixel_values"], official["pixel_values"])


def test_a_history_alternates_roles_and_shows_each_image_once(renderer):
    turns = [
        MessagePart(role="user", text="Click on Tab #2."),
        MessagePart(role="user", image=REF),
        MessagePart(role="assistant", text="Action: click(start_box='(84,120)')"),
        MessagePart(role="user", image=REF),
    ]
    prompt = renderer.prompt(turns)
    assert prompt.token_ids.count(renderer.config.image_token_id) == 2
    assert len(prompt.images) == 2
    said = renderer.tokenizer.decode(prompt.token_ids)
    assert said.count("<|im_start|>assistant") == 2
    assert said.endswith("<|im_start|>assistant\n")


def test_texts_and_sizes_in_two_threads_are_tokenized_as_in_one(policy):
    renderer, sizes, over = Renderer(policy, MIN_PIXELS, MAX_PIXELS), range(150), threading.Event()
    ends = renderer.prompt([MessagePart(role="user", text="Click")]).token_ids.count(renderer.eos)

    def ends_of_texts() -> list[int]:
        numbers = itertools.takewhile(lambda _: not over.is_set(), itertools.count())
        texts = (MessagePart(role="user", text=f"{number} <|im_end|> <|im_start|>") for number in numbers)
        return [renderer.prompt([text]).token_ids.count(renderer.eos) for text in texts]

    with ThreadPoolExecutor(1) as other:
        shown = other.submit(ends_of_texts)
        try:
            found = [renderer.expansion(60 + number, 90) for number in sizes]
        finally:
            over.set()
        assert set(shown.result()) == {ends}
    alone = Renderer(policy, MIN_PIXELS, MAX_PIXELS)
    assert found == [alone.expansion(60 + number, 90) for number in sizes]


def test_a_prompt_is_named_after_its_tokens_and_images(renderer):
    turns = [MessagePart(role="user", text="Click"), MessagePart(role="user", image=REF)]
    other = [turns[0], MessagePart(role="user", image=BlobRef(sha256="cd", size=1))]
    assert renderer.prompt(turns).sha == renderer.prompt(turns).sha
    assert renderer.prompt(turns).sha != renderer.prompt(other).sha


def other_tokens(renderer: Renderer, text: str) -> list[int]:
    """Return tokens of the same text that its tokenizer would not choose, and the end."""
    tokens = [token for character in text for token in renderer.answer_tokens(character)[:-1]]
    assert renderer.text(tokens) == text
    assert [*tokens, renderer.eos] != renderer.answer_tokens(text)
    return [*tokens, renderer.eos]


def recorded(renderer: Renderer, *texts: str) -> list[Observation]:
    actions_taken = [events.executed_action(text, tokens=other_tokens(renderer, text)) for text in texts]
    return [events.observation(step, taken=taken, screenshot=REF) for step, taken in enumerate([None, *actions_taken])]


def test_a_recorded_prompt_is_that_of_generated_tokens_or_of_texts(renderer):
    policy, observations = Config().policy, recorded(renderer, "click(12,34)", "click(56,78)")
    turns = prompts.prompt_turns(observations, policy)
    answers = {each.taken.text: each.taken.tokens for each in observations[1:]}
    texts, generated = renderer.prompt(turns), renderer.prompt(turns, answers)
    assert texts.sha != generated.sha
    assert renderer.recorded_prompt(observations, policy, texts.sha) == texts
    assert renderer.recorded_prompt(observations, policy, generated.sha) == generated
    assert renderer.recorded_prompt(observations, policy, "other") == texts
    assert renderer.prompt(turns, dict([*answers.items()][:1])) == texts, "all answers or none"


def test_a_prompt_of_generated_tokens_extends_the_one_before(renderer):
    policy, observations = Config().policy, recorded(renderer, "click(12,34)")
    taken = observations[1].taken
    before = renderer.prompt(prompts.prompt_turns(observations[:1], policy)).token_ids
    after = renderer.prompt(prompts.prompt_turns(observations, policy), {taken.text: taken.tokens}).token_ids
    shown = [*before, *taken.tokens]
    assert after[: len(shown)] == shown


@pytest.mark.parametrize(
    "dated",
    [
        "{{ strftime_now('%d %b %Y %H:%M:%S.%f') }}",
        "{% set date = strftime_now('%Y-%m-%d %f') if strftime_now is defined else '' %}{{ date }}",
        "{%- macro day() %}{{ strftime_now('%A %f') }}{% endmacro %}{{ day() }}",
        "{% if now is defined %}{{ now() }}{% endif %}{{ strftime_now('%Y')|int - 1 }}",
        "{% for m in messages %}{{ strftime_now('%f') }}{% endfor %}",
    ],
)
def test_a_chat_template_with_todays_date_makes_equal_prompts_on_each_day(policy, tmp_path, monkeypatch, dated):
    shutil.copytree(policy, tmp_path / "dated", ignore=shutil.ignore_patterns("*.safetensors"))
    (tmp_path / "dated/chat_template.jinja").write_text(dated + CHATML)
    said = [MessagePart(role="user", text="Click.")]
    shas = {Renderer(tmp_path / "dated", MIN_PIXELS, MAX_PIXELS).prompt(said).sha for _ in range(2)}
    assert len(shas) == 1


@pytest.mark.parametrize("drawn", ["{{ ['a', 'b']|random }}", "{{ lipsum(1) }}", "{{ 'ab' | random }}"])
def test_a_chat_template_that_draws_at_random_is_refused(policy, tmp_path, drawn):
    shutil.copytree(policy, tmp_path / "drawn", ignore=shutil.ignore_patterns("*.safetensors"))
    (tmp_path / "drawn/chat_template.jinja").write_text(drawn + CHATML)
    with pytest.raises(UnsupportedModel, match="draws at random"):
        Renderer(tmp_path / "drawn", MIN_PIXELS, MAX_PIXELS)


def test_a_directory_without_a_chat_template_gets_that_of_qwen(policy, tmp_path):
    for file in policy.iterdir():
        if file.name != "chat_template.jinja":
            (tmp_path / file.name).symlink_to(file)
    renderer = Renderer(tmp_path, MIN_PIXELS, MAX_PIXELS)
    assert renderer.chat_template == CHATML
    said = renderer.tokenizer.decode(renderer.prompt([MessagePart(role="user", text="Click")]).token_ids)
    assert said == "<|im_start|>user\nClick<|im_end|>\n<|im_start|>assistant\n"


def test_a_missing_directory_is_an_error_that_says_what_to_do(tmp_path):
    with pytest.raises(UserError, match=r"policy\.path"):
        Renderer(tmp_path / "nowhere", MIN_PIXELS, MAX_PIXELS)
    with pytest.raises(UserError, match=r"config\.json"):
        Renderer(tmp_path, MIN_PIXELS, MAX_PIXELS)
