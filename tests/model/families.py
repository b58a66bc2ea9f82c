"""Model families made from scratch, tiny, with random weights, as Hugging Face directories: nothing is downloaded."""

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

import torch
from tokenizers import AddedToken
from transformers import (
    CLIPImageProcessor,
    Idefics3Config,
    Idefics3ForConditionalGeneration,
    Idefics3ImageProcessor,
    Idefics3Processor,
    LlavaConfig,
    LlavaForConditionalGeneration,
    LlavaProcessor,
    PreTrainedTokenizerFast,
)

from dart_streams.policy import tiny

IDEFICS3_SPECIAL = (
    "<image>",
    "<fake_token_around_image>",
    "<end_of_utterance>",
    "<global-img>",
    *(f"<row_{row}_col_{column}>" for row in range(1, 7) for column in range(1, 7)),
)
IDEFICS3_TEMPLATE = (
    "<|im_start|>{% for message in messages %}{{message['role'] | capitalize}}"
    "{% if message['content'][0]['type'] == 'image' %}{{':'}}{% else %}{{': '}}{% endif %}"
    "{% for line in message['content'] %}{% if line['type'] == 'text' %}{{line['text']}}"
    "{% elif line['type'] == 'image' %}{{ '<image>' }}{% endif %}{% endfor %}<end_of_utterance>\n{% endfor %}"
    "{% if add_generation_prompt %}{{ 'Assistant:' }}{% endif %}"
)
"""That of SmolVLM."""
CROP = 56
PATCH = 14
SCALE = 2
CROP_TOKENS = (CROP // PATCH) ** 2 // SCALE**2


TEXT = {
    "model_type": "llama",
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "max_position_embeddings": 4096,
    "initializer_range": 0.08,
    "bos_token_id": None,
}
VISION = {
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "image_size": CROP,
    "patch_size": PATCH,
    "initializer_range": 0.08,
}


def idefics3(folder: Path, seed: int = 0) -> None:
    """Write a model of the Idefics3 (SmolVLM) family.

    It has plain rotary positions, tied embeddings, and images cut into crops with tokens of text between them; its
    answers end with another token than its tokenizer's end of text.
    """
    made = tiny.build_tokenizer()
    made.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in IDEFICS3_SPECIAL])
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=made, eos_token=tiny.PAD, pad_token=tiny.PAD, model_max_length=4096
    )
    images = Idefics3ImageProcessor(size={"longest_edge": 2 * CROP}, max_image_size={"longest_edge": CROP})
    processor = Idefics3Processor(images, tokenizer, image_seq_len=CROP_TOKENS, chat_template=IDEFICS3_TEMPLATE)
    processor.save_pretrained(folder)
    pad, end = (tokenizer.convert_tokens_to_ids(token) for token in (tiny.PAD, "<end_of_utterance>"))
    own = {"vocab_size": len(tokenizer), "eos_token_id": end, "pad_token_id": pad, "tie_word_embeddings": True}
    text = {**TEXT, **own}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = Idefics3ForConditionalGeneration(
            Idefics3Config(
                text_config=text,
                vision_config=VISION,
                scale_factor=SCALE,
                image_token_id=tokenizer.convert_tokens_to_ids("<image>"),
                pad_token_id=pad,
                tie_word_embeddings=True,
            )
        )
    model.generation_config.eos_token_id = end
    model.save_pretrained(folder)
    (folder / "chat_template.jinja").write_text(IDEFICS3_TEMPLATE)


LLAVA_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n"
    "{% for line in message['content'] %}{{ '<image>' if line['type'] == 'image' else line['text'] }}{% endfor %}"
    "<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def llava(folder: Path, seed: int = 0) -> None:
    """Write a model of the LLaVA family, which reads the last layer but one of its vision tower (CLIP).

    vLLM has other names for that tower than transformers, so it is trained here and not served.
    """
    made = tiny.build_tokenizer()
    made.add_special_tokens([AddedToken("<image>", special=True, normalized=False)])
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=made, eos_token="<|im_end|>", pad_token=tiny.PAD, model_max_length=4096
    )
    side = {"height": CROP, "width": CROP}
    images = CLIPImageProcessor(size=side, crop_size=side)
    LlavaProcessor(
        images,
        tokenizer,
        patch_size=PATCH,
        vision_feature_select_strategy="default",
        chat_template=LLAVA_TEMPLATE,
        num_additional_image_tokens=1,
    ).save_pretrained(folder)
    text = {**TEXT, "vocab_size": len(tokenizer), "tie_word_embeddings": False}
    vision = {**VISION, "model_type": "clip_vision_model", "num_hidden_layers": 3, "projection_dim": 64}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = LlavaForConditionalGeneration(
            LlavaConfig(
                text_config=text,
                vision_config=vision,
                image_token_index=tokenizer.convert_tokens_to_ids("<image>"),
                tie_word_embeddings=False,
            )
        )
    model.generation_config.eos_token_id = tokenizer.eos_token_id
    model.save_pretrained(folder)


FAMILIES: Mapping[str, Callable[[Path], None]] = {
    "qwen2_5_vl": partial(tiny.build, architecture="qwen2_5_vl"),
    "qwen3_vl": partial(tiny.build, architecture="qwen3_vl"),
    "idefics3": idefics3,
}
"""By the model type of their configurations."""
