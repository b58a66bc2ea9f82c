"""Prompts that are longer than a model's context are refused from its config.json, before anything is started."""

import json
from pathlib import Path
from typing import Any

import pytest

from console.cli.config import errors_in
from dart_streams.config import Config, parse
from dart_streams.episodes import context
from dart_streams.episodes.context import (
    LongestPrompt,
    context_of,
    context_refusal,
    estimate_longest,
    most_steps,
    pixels_per_token,
)
from tests.task_files import write_tasks

QWEN = {"vision_config": {"patch_size": 14, "spatial_merge_size": 2}}
OSWORLD = {"env": {"backend": "osworld", "osworld": {"lease_url": "http://127.0.0.1:1"}}}


def model(folder: Path, context: int, **fields: Any) -> Path:
    (folder / "config.json").write_text(json.dumps({"text_config": {"max_position_embeddings": context}} | fields))
    return folder


def test_screens_earlier_answers_words_and_the_answer_count():
    config = parse({"policy": {"max_images": 2, "max_texts": 5, "max_tokens": 24}, **OSWORLD})
    longest = estimate_longest(784, config, steps=4)
    assert (longest.images, longest.image, longest.answers, longest.answer) == (2, 1225, 3, 24)
    assert longest.prompt == 2 * 1225 + 3 * 24 + longest.words
    assert 64 <= longest.words < 80


def test_what_calls_return_counts_with_the_answers_where_calls_are_offered():
    env = {"backend": "desktop", "desktop": {"calls": True}}
    plain, offering = (parse({"policy": {"max_texts": 5}, "env": one}) for one in ({"backend": "desktop"}, env))
    words = [estimate_longest(784, config, steps=4).words for config in (plain, offering)]
    assert words[1] - words[0] == 3 * 2000 // 5


@pytest.mark.parametrize(
    ("env", "image"),
    [
        ({"backend": "miniwob"}, 48),
        ({"backend": "simulated"}, 48),
        ({"backend": "desktop", "desktop": {"width": 640, "height": 480}}, 23 * 17),
        ({"backend": "elsewhere"}, 1225),
    ],
)
def test_the_largest_screen_is_the_environments_or_the_policys_bound(env, image):
    assert estimate_longest(784, parse({"env": env}), steps=1).image == image


def test_one_token_decides():
    longest = LongestPrompt(images=1, image=400, answers=2, answer=30, words=40)
    assert longest.refusal(longest.prompt + 30) == ""
    reason = longest.refusal(longest.prompt + 29)
    assert all(part in reason for part in ("500 tokens", "1 screens of 400", "2 earlier answers of 30", "529"))
    assert "policy.max_tokens" in reason


@pytest.mark.parametrize(
    ("config", "tokens"),
    [
        ({"max_position_embeddings": 512}, 512),
        ({"text_config": {"max_position_embeddings": 512}, "max_position_embeddings": 9}, 512),
        ({"max_position_embeddings": 512, "rope_scaling": {"type": "linear", "factor": 4.0}}, 2048),
        ({"max_position_embeddings": 512, "rope_scaling": {"type": "yarn", "factor": 4.0}}, 512),
        ({"max_position_embeddings": 512, "rope_scaling": {"rope_type": "llama3", "factor": 8.0}}, 512),
        ({"max_position_embeddings": 512, "model_type": "gemma3_text", "rope_scaling": {"factor": 8.0}}, 512),
        ({"max_position_embeddings": 512, "rope_scaling": {"type": "mrope", "mrope_section": [1]}}, 512),
        ({"text_config": {"max_position_embeddings": 512, "rope_parameters": {"factor": 2}}}, 1024),
        ({}, 0),
        ({"max_position_embeddings": "512"}, 0),
    ],
)
def test_a_models_own_bound_is_read(config, tokens):
    assert context_of(config) == tokens


def test_a_model_whose_images_are_counted_otherwise_is_judged_by_its_words():
    assert (pixels_per_token(QWEN), pixels_per_token({"vision_config": {"patch_size": 14}})) == (784, 0)
    assert pixels_per_token({"vision_config": {"patch_size": [14, 14], "spatial_merge_size": 2}}) == 0


@pytest.mark.parametrize("written", [None, "", "[]", "{}", '{"max_position_embeddings": null}'])
def test_what_is_not_known_refuses_nothing(tmp_path: Path, written: str | None):
    if written is not None:
        (tmp_path / "config.json").write_text(written)
    assert context_refusal(tmp_path, Config(), 10) == ""


def test_an_episode_has_as_many_steps_as_the_tasks_allow(tmp_path: Path):
    config = parse({"tasks": {"file": str(tmp_path / "tasks.toml")}, "policy": {"max_texts": 7}})
    assert most_steps(config) == 8
    write_tasks(tmp_path, "box", max_steps=3)
    assert most_steps(config) == 3


@pytest.mark.parametrize(("tokens", "fits"), [(4096, True), (512, False)])
def test_the_check_of_a_configuration_says_it(tmp_path: Path, tokens: int, fits: bool):
    model(tmp_path, tokens, **QWEN)
    write_tasks(tmp_path, "box", max_steps=9)
    file = tmp_path / "config.toml"
    file.write_text(f'[policy]\npath = "{tmp_path}"\nmax_images = 8\nmax_tokens = 40\n[env]\nbackend = "simulated"\n')
    errors = errors_in(file)
    assert (errors == []) == fits
    if not fits:
        [error] = errors
        assert "8 screens of 48, 5 earlier answers of 40" in error
        assert "context 512" in error


def test_the_sample_of_a_small_context_and_large_screens(tmp_path: Path):
    """3,584 tokens of prompt for a context of 512, which every check took."""
    reason = context_refusal(model(tmp_path, 512, **QWEN), parse({"policy": {"max_tokens": 128}, **OSWORLD}), 15)
    assert "but the model's context 512" in reason
    assert context.largest_screen(parse(OSWORLD)) == (1001, 1001)
