"""Turns to token ids and back, for any directory of the Qwen2.5-VL class (the tiny policy, UI-TARS-1.5-7B).

The rollout worker and the trainer render with this one module, so a prompt has the same tokens in both. The chat
template and the environment's texts are tokenised apart: a page that writes ``<|im_end|>`` gets its characters, not
the control token.
"""

import functools
import hashlib
import re
from collections.abc import Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

import msgspec
import torch
from PIL import Image
from transformers import AutoConfig, AutoImageProcessor, AutoTokenizer

from dart_streams.config import Policy
from dart_streams.errors import UserError
from dart_streams.prompts import messages
from topics.values import BlobRef, MessagePart

CHATML = (
    "{%- for message in messages %}{{ '<|im_start|>' + message['role'] + '\\n' }}"
    "{%- for part in message['content'] %}"
    "{%- if part['type'] == 'image' %}{{ '<|vision_start|><|image_pad|><|vision_end|>' }}"
    "{%- else %}{{ part['text'] }}{%- endif %}{%- endfor %}{{ '<|im_end|>\\n' }}{%- endfor %}"
    "{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{%- endif %}"
)
"""For directories that bring no chat template: the one of Qwen2.5-VL."""

CACHED_TEXTS = 4096


class Prompt(msgspec.Struct, frozen=True, kw_only=True):
    """A rendered prompt: one image-pad token an image (as vLLM wants it), the images in order, and its name.

    ``sha`` is the SHA-256 (hex) over the token ids and the images' own digests.
    """

    token_ids: list[int]
    images: list[BlobRef]
    sha: str


class Renderer:
    """Renders prompts for the model in ``model_dir``; the bounds on an image's pixels are those of the deployment.

    ``tokens`` are special tokens that texts and answers may have (``Dialect.tokens``); those that the model does not
    know are left out. Raises :class:`UserError` if ``model_dir`` is not a directory of a Qwen2.5-VL class model.
    """

    def __init__(self, model_dir: Path, min_pixels: int, max_pixels: int, tokens: Sequence[str] = ()) -> None:
        refuse_missing(model_dir)
        self.config = AutoConfig.from_pretrained(model_dir)
        if not hasattr(self.config, "image_token_id"):
            raise UserError(f"{model_dir}: {self.config.model_type!r} is not a Qwen2.5-VL class model (policy.path)")
        self.tokenizer = AutoTokenizer.from_pretrained(model_dir)
        self.image_processor = AutoImageProcessor.from_pretrained(
            model_dir, min_pixels=min_pixels, max_pixels=max_pixels
        )
        self.chat_template = self.tokenizer.chat_template or CHATML
        self.eos: int = self.tokenizer.eos_token_id
        self.pad: int = self.tokenizer.pad_token_id if self.tokenizer.pad_token_id is not None else self.eos
        vocabulary = self.tokenizer.get_vocab()
        self.spoken = {token: int(vocabulary[token]) for token in tokens if token in vocabulary}
        """The special tokens that texts and answers may have, with their ids."""
        self.banned_tokens: list[int] = sorted(
            set(self.tokenizer.all_special_ids) - {self.eos} - set(self.spoken.values())
        )
        """What may never be sampled: every special token but the end and the spoken ones."""
        self.allowed_tokens: list[int] = sorted(set(self.tokenizer.get_vocab().values()) - set(self.banned_tokens))
        """What may be sampled; ids beyond the tokenizer (a padded embedding) are not among them."""
        self._skeleton = functools.lru_cache(maxsize=256)(self._render_skeleton)
        self._text_tokens = functools.lru_cache(maxsize=CACHED_TEXTS)(self._encode_text)

    def prompt(self, turns: Sequence[MessagePart]) -> Prompt:
        """Render ``turns``, in order, followed by the opening of the answer."""
        shape = tuple((part[0].role, tuple(turn.image is not None for turn in part)) for part in messages(turns))
        skeleton = self._skeleton(shape)
        texts = (turn.text or "" for turn in turns if turn.image is None)
        token_ids: list[int] = []
        for part in skeleton:
            token_ids += part if part is not None else self._text_tokens(next(texts))
        images = [turn.image for turn in turns if turn.image is not None]
        return Prompt(token_ids=token_ids, images=images, sha=digest(token_ids, images))

    def answer_tokens(self, text: str) -> list[int]:
        """Return the tokens of an answer, its end included."""
        return [*self._text_tokens(text), self.eos]

    def text(self, tokens: Sequence[int]) -> str:
        """Return the text of generated ``tokens``, without the end and other special tokens but the spoken ones."""
        names = {number: token for token, number in self.spoken.items()}
        runs = ((spoken, list(run)) for spoken, run in groupby(tokens, key=names.get))
        return "".join(self._decode(run) if spoken is None else spoken * len(run) for spoken, run in runs)

    def _decode(self, tokens: list[int]) -> str:
        return str(self.tokenizer.decode(tokens, skip_special_tokens=True, clean_up_tokenization_spaces=False))

    def allowed_mask(self, vocabulary: int) -> torch.Tensor:
        """Return a boolean mask (vocabulary,) over a model's logits: True where a token may be sampled."""
        mask_V = torch.zeros(vocabulary, dtype=torch.bool)
        mask_V[self.allowed_tokens] = True
        return mask_V

    def pixels(self, images: Sequence[Image.Image]) -> tuple[torch.Tensor, torch.Tensor]:
        """Return (patches, grid): float32 patches of all images in a row, and per image its (t, h, w) in patches."""
        made = self.image_processor(images=list(images), return_tensors="pt")
        return made["pixel_values"], made["image_grid_thw"]

    def _encode_text(self, text: str) -> list[int]:
        token_ids: list[int] = []
        for piece in re.split(f"({'|'.join(map(re.escape, self.spoken))})", text) if self.spoken else [text]:
            if piece in self.spoken:
                token_ids.append(self.spoken[piece])
            else:
                token_ids += self.tokenizer(piece, add_special_tokens=False, split_special_tokens=True)["input_ids"]
        return token_ids

    def _render_skeleton(self, shape: tuple[tuple[str, tuple[bool, ...]], ...]) -> list[list[int] | None]:
        """Return the chat template's own tokens for messages of this shape, with None where a text goes."""
        mark = "\ue000text\ue001"
        marked: list[Any] = []
        for role, images in shape:
            content = [{"type": "image"} if image else {"type": "text", "text": mark} for image in images]
            marked.append({"role": role, "content": content})
        rendered: Any = self.tokenizer.apply_chat_template(
            marked, chat_template=self.chat_template, tokenize=False, add_generation_prompt=True
        )
        parts: list[list[int] | None] = []
        for piece in rendered.split(mark):
            parts += [list(self.tokenizer(piece, add_special_tokens=False)["input_ids"]), None]
        return parts[:-1]


def renderer_of(model_dir: Path, policy: Policy) -> Renderer:
    """Return the renderer of a deployment's policy for the model in ``model_dir``."""
    return Renderer(model_dir, policy.min_pixels, policy.max_pixels, policy.dialect.made.tokens)


def refuse_missing(model_dir: Path) -> None:
    """Raise :class:`UserError` unless ``model_dir`` looks like a Hugging Face model directory."""
    if not model_dir.is_dir():
        raise UserError(f"no model directory {model_dir}: set policy.path, or leave it empty for the tiny demo policy")
    for name in ("config.json", "preprocessor_config.json", "tokenizer_config.json"):
        if not (model_dir / name).is_file():
            raise UserError(f"{model_dir} has no {name}: policy.path must be a complete Hugging Face model directory")


def expand(token_ids: Sequence[int], pad: int, counts: Sequence[int]) -> list[int]:
    """Return ``token_ids`` with the n-th ``pad`` repeated ``counts[n]`` times."""
    remaining = iter(counts)
    expanded: list[int] = []
    for token in token_ids:
        expanded += [token] * next(remaining) if token == pad else [token]
    return expanded


def digest(token_ids: Sequence[int], images: Sequence[BlobRef]) -> str:
    """Return the name of a prompt: SHA-256 (hex) over its token ids and its images' digests."""
    state = hashlib.sha256(",".join(map(str, token_ids)).encode())
    for image in images:
        state.update(b"|" + image.sha256.encode())
    return state.hexdigest()
