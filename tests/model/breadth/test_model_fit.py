"""A model that cannot be the policy is refused with the reason, before anything of it is loaded or started."""

import json
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
from transformers import BertConfig, CLIPConfig, MllamaConfig

from console.cli.policy import fit_of
from console.sizing import model_fit
from dart_streams.config import parse
from dart_streams.episodes import prompts
from dart_streams.episodes.context import INSTRUCTION_TOKENS, estimate_longest
from dart_streams.errors import UserError
from dart_streams.policy import fit, tiny
from dart_streams.policy.rendering import UnsupportedModel, count_longest, renderer_of
from dart_streams.policy.tiny_architectures import CONTEXT
from tests.command_line import invoke
from tests.model.families import FAMILIES, llava
from tests.sources import ROOT

LIMITS = parse({}).policy


def check(folder: Path) -> str:
    return fit.check(folder, LIMITS.min_pixels, LIMITS.max_pixels)


@pytest.fixture(scope="module")
def qwen(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model") / "qwen"
    tiny.build(folder)
    (folder / "model.safetensors").unlink()
    return folder


@pytest.fixture
def copy(qwen: Path, tmp_path: Path) -> Path:
    shutil.copytree(qwen, tmp_path / "copy")
    return tmp_path / "copy"


def changed(file: Path, **values: Any) -> None:
    file.write_text(json.dumps({**json.loads(file.read_text()), **values}))


@pytest.mark.parametrize("name", FAMILIES)
def test_a_proven_family_fits(name, tmp_path):
    from workers.rollout import vllm_fit

    FAMILIES[name](tmp_path / name)
    assert check(tmp_path / name).lower().startswith(name.replace("_", "")) or name == "qwen2_5_vl"
    vllm_fit.check(tmp_path / name)


@pytest.mark.parametrize(
    ("config", "why"),
    [
        (BertConfig(), "no model of images and text of the type 'bert'"),
        (CLIPConfig(), "no model of images and text of the type 'clip'"),
        (MllamaConfig(), "has no get_image_features"),
    ],
)
def test_a_type_that_transformers_does_not_train_as_one_is_refused(copy, config, why):
    config.save_pretrained(copy)
    with pytest.raises(UnsupportedModel, match=why):
        check(copy)


def test_an_unknown_type_is_refused_by_its_name(copy):
    changed(copy / "config.json", model_type="qwen9_vl")
    with pytest.raises(UnsupportedModel, match="qwen9_vl"):
        check(copy)


@pytest.mark.parametrize(
    ("template", "why"),
    [
        ("{% for m in messages %}{% for p in m['content'] %}{{ p['text'] }}{% endfor %}{% endfor %}", "0 images"),
        (
            "{% for m in messages %}{% for p in m['content'] %}{% if p['type'] == 'image' %}<|image_pad|><|image_pad|>"
            "{% else %}{{ p['text'] }}{% endif %}{% endfor %}{% endfor %}",
            "6 images",
        ),
        (
            "{% for m in messages %}{% if m['role'] != 'system' %}{% for p in m['content'] %}"
            "{% if p['type'] == 'image' %}<|image_pad|>{% else %}{{ p['text'] }}{% endif %}{% endfor %}{% endif %}"
            "{% endfor %}",
            "4 texts and 3 images .* of 5 texts",
        ),
        (
            "{% for m in messages %}{% if m['role'] == 'system' %}{{ raise_exception('no system role') }}{% endif %}"
            "{% endfor %}",
            "no system role",
        ),
    ],
)
def test_a_chat_template_that_does_not_show_what_it_is_given_is_refused(copy, template, why):
    (copy / "chat_template.jinja").write_text(template)
    with pytest.raises(UnsupportedModel, match=why):
        check(copy)


def test_a_quantized_model_is_refused(copy):
    changed(copy / "config.json", quantization_config={"quant_method": "awq", "bits": 4})
    with pytest.raises(UserError, match=r"quantized weights .*awq"):
        check(copy)


def test_a_model_whose_answers_have_no_end_is_refused(copy):
    settings = json.loads((copy / "tokenizer_config.json").read_text())
    del settings["eos_token"]
    (copy / "tokenizer_config.json").write_text(json.dumps(settings))
    (copy / "chat_template.jinja").write_text(
        "{% for m in messages %}{% for p in m['content'] %}"
        "{% if p['type'] == 'image' %}<|image_pad|>{% else %}{{ p['text'] }}{% endif %}{% endfor %}{% endfor %}"
    )
    with pytest.raises(UnsupportedModel, match="answers have no end"):
        check(copy)


def test_a_directory_without_a_processor_is_refused(copy):
    (copy / "preprocessor_config.json").unlink()
    with pytest.raises(UserError, match=r"no preprocessor_config\.json or processor_config\.json"):
        check(copy)


def test_a_model_that_vllm_does_not_implement_is_refused(copy):
    from workers.rollout import vllm_fit

    changed(copy / "config.json", architectures=["NobodysModel"])
    with pytest.raises(UnsupportedModel, match="NobodysModel"):
        vllm_fit.check(copy)


def test_a_model_whose_weights_have_other_names_in_vllm_is_refused(tmp_path):
    from workers.rollout import vllm_fit

    llava(tmp_path / "llava")
    assert check(tmp_path / "llava") == "LlavaForConditionalGeneration"
    with pytest.raises(UnsupportedModel, match=r"other names for weights .*'vision_tower\.embeddings'"):
        vllm_fit.check(tmp_path / "llava")


def test_the_longest_prompt_is_counted_as_it_is_rendered(qwen):
    config = parse({"policy": {"max_images": 2, "max_texts": 3, "max_tokens": 24}})
    renderer = renderer_of(qwen, config.policy)
    longest = count_longest(renderer, config, steps=9)
    turns = prompts.longest_prompt("", (160, 210), 9, config.policy)
    shown = sum(turn.image is not None for turn in turns)
    rendered = renderer.expanded(renderer.prompt(turns).token_ids, [(160, 210)] * shown)
    assert (longest.images, longest.image, longest.answers) == (2, 48, 3)
    assert longest.prompt == len(rendered) + 3 * 24 + INSTRUCTION_TOKENS
    estimate = estimate_longest(784, config, steps=9)
    assert estimate.prompt <= longest.prompt, "an estimate refuses nothing that fits"


def test_a_context_that_is_too_small_is_refused_with_what_is_too_long(copy):
    model = json.loads((copy / "config.json").read_text())
    model["text_config"]["max_position_embeddings"] = 256
    (copy / "config.json").write_text(json.dumps(model))
    config = parse({"policy": {"path": str(copy), "max_images": 2, "max_tokens": 64}})
    found = fit_of(copy, config)
    assert found.context == 256 < found.prompt
    assert "2 screens of 48" in found.reason
    assert "context 256" in found.reason
    fitting = parse({"policy": {"path": str(copy), "max_images": 1, "max_texts": 0, "max_tokens": 64}})
    assert not fit_of(copy, fitting).reason


def test_another_environments_program_says_that_a_model_fits(qwen, tmp_path, monkeypatch):
    """The program is this environment's interpreter on this checkout, as the other environment would start it."""
    program = tmp_path / "dart-streams"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m console.cli "$@"\n')
    program.chmod(0o755)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    found = model_fit.check_model(qwen, program, parse({}))
    assert (found.architecture, found.reason) == ("Qwen2_5_VLForConditionalGeneration", "")
    assert 0 < found.prompt < found.context == CONTEXT


def test_the_command_says_why_a_model_does_not_fit(copy):
    """In JSON, of which a run makes its refusal, and to a person."""
    BertConfig().save_pretrained(copy)
    done = invoke("policy", "check", copy, "--json")
    assert done.exit_code == 1
    assert "of the type 'bert'" in json.loads(done.stdout)["reason"]
    refused = invoke("policy", "check", copy)
    assert isinstance(refused.exception, UserError)
    assert "of the type 'bert'" in str(refused.exception)
