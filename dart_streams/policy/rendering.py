"""Turns to token ids and back, by tokenizer, image processor and chat template of any image-text-to-text model.

Rollout worker and trainer share it, so their tokens agree. The chat template and the environment's texts are tokenized
separately: a page with ``<|im_end|>`` yields characters, not the control token. In a prompt an image is one token, the
chat template's *placeholder*; its :meth:`Renderer.expansion` depends on the image's size alone.
"""

import functools
import hashlib
import re
import threading
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from itertools import groupby
from pathlib import Path
from typing import Any

import msgspec
import torch
from jinja2.exceptions import TemplateError
from PIL import Image
from transformers import AutoConfig, AutoImageProcessor, AutoProcessor

from dart_streams.config import Config, Policy
from dart_streams.episodes import context, prompts
from dart_streams.errors import UserError
from dart_streams.policy.model_folder import refuse_missing
from topics.observations import Observation
from topics.values import BlobRef, MessagePart

CHATML = (
    "{%- for message in messages %}{{ '<|im_start|>' + message['role'] + '\\n' }}"
    "{%- for part in message['content'] %}"
    "{%- if part['type'] == 'image' %}{{ '<|vision_start|><|image_pad|><|vision_end|>' }}"
    "{%- else %}{{ part['text'] }}{%- endif %}{%- endfor %}{{ '<|im_end|>\\n' }}{%- endfor %}"
    "{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{%- endif %}"
)
"""Chat template for Qwen-VL models that have none."""
QWEN_IMAGE = "<|image_pad|>"
MARK = "\ue000text\ue001"
"""Placeholder of a text while the chat template is rendered."""

TODAY = datetime(2026, 1, 1, tzinfo=UTC)
"""What a chat template shows as today's date, so a prompt is the same on each day and in each process."""
RANDOM = re.compile(r"\|\s*random\b|\blipsum\b")
"""What a chat template draws anew each time."""
CACHED_TEXTS = 4096
CACHED_SIZES = 1024

ImageInputs = Mapping[str, torch.Tensor]
"""Output of the image processor, by the model's argument names."""

Answers = Mapping[str, Sequence[int]]
"""Generated tokens of earlier answers, by their texts."""

Shape = tuple[tuple[str, tuple[bool, ...]], ...]
"""Messages of a prompt: each role, and which of its parts are images."""


class UnsupportedModel(UserError):
    """A model that cannot be a policy; the text has the reason."""


class Prompt(msgspec.Struct, frozen=True, kw_only=True):
    """A rendered prompt with one placeholder an image, and the images in order.

    ``sha`` is the SHA-256 (hex) over the token ids and the images' digests.
    """

    token_ids: list[int]
    images: list[BlobRef]
    sha: str


class Renderer:
    """Renders prompts for the model in ``model_dir``.

    The pixel bounds apply where the image processor supports them, as Qwen's do; others resize by their own settings.
    ``tokens`` are special tokens that texts and answers may contain (``Dialect.tokens``); unknown ones are ignored.
    Raises :class:`UserError` if ``model_dir`` is no model directory, :class:`UnsupportedModel` if its processor or chat
    template does not fit.
    """

    def __init__(self, model_dir: Path, min_pixels: int, max_pixels: int, tokens: Sequence[str] = ()) -> None:
        refuse_missing(model_dir)
        self.config = AutoConfig.from_pretrained(model_dir)
        self.processor = load_processor(model_dir, self.config.model_type)
        self.tokenizer = self.processor.tokenizer
        self.image_processor = self.processor.image_processor
        self.image_bounds: dict[str, int] = {}
        """Bounds that the image processor supports."""
        if "min_pixels" in getattr(self.image_processor.valid_kwargs, "__annotations__", {}):
            self.image_bounds = {"min_pixels": min_pixels, "max_pixels": max_pixels}
            self.image_processor = AutoImageProcessor.from_pretrained(model_dir, **self.image_bounds)
            self.processor.image_processor = self.image_processor
        self.placeholder: int = self.tokenizer.convert_tokens_to_ids(self.processor.image_token)
        self.image_token: int = image_token_of(self.config, self.placeholder)
        """The token of an expansion that image features replace."""
        self.chat_template = self.processor.chat_template or self.tokenizer.chat_template
        if not self.chat_template:
            if self.processor.image_token != QWEN_IMAGE:
                raise UnsupportedModel(f"{model_dir} has no chat template (chat_template.jinja): add the model's own")
            self.chat_template = CHATML
        if drawn := RANDOM.search(str(self.chat_template)):
            raise UnsupportedModel(f"{model_dir}: the chat template draws at random ({drawn[0]}): write it without")
        self._lock = threading.RLock()
        """Held by every use of the tokenizer: each sets it for itself, such as whether it splits control tokens."""
        self._skeleton = functools.lru_cache(maxsize=256)(self._render_skeleton)
        self._text_tokens = functools.lru_cache(maxsize=CACHED_TEXTS)(self._encode_text)
        self.expansion = functools.lru_cache(maxsize=CACHED_SIZES)(self._expand_size)
        self.eos = self._end_of_answer()
        self.pad: int = self.tokenizer.pad_token_id if self.tokenizer.pad_token_id is not None else self.eos
        vocabulary = self.tokenizer.get_vocab()
        self.spoken = {token: int(vocabulary[token]) for token in tokens if token in vocabulary}
        """Special tokens allowed in texts and answers, with their ids."""
        self.banned_tokens: list[int] = sorted(special_tokens(self.tokenizer) - {self.eos} - set(self.spoken.values()))
        """Tokens never sampled: special ones other than the end and the spoken ones."""
        self.allowed_tokens: list[int] = sorted(set(self.tokenizer.get_vocab().values()) - set(self.banned_tokens))
        """Tokens that may be sampled, without ids beyond the tokenizer (a padded embedding)."""

    def prompt(self, turns: Sequence[MessagePart], generated: Answers | None = None) -> Prompt:
        """Render ``turns``, followed by the opening of the answer.

        With the tokens ``generated`` for all texts of the assistant, they stand for these texts: tokenized again, a
        text may have others. If one is missing, all texts are tokenized.
        """
        shape = tuple(
            (part[0].role, tuple(turn.image is not None for turn in part)) for part in prompts.split_messages(turns)
        )
        skeleton = self._skeleton(shape)
        shown = [turn for turn in turns if turn.image is None]
        known = {text: self.without_end(tokens) for text, tokens in (generated or {}).items()}
        if any(turn.role == "assistant" and turn.text not in known for turn in shown):
            known = {}
        texts = (
            known[turn.text] if turn.role == "assistant" and turn.text in known else self._text_tokens(turn.text or "")
            for turn in shown
        )
        token_ids: list[int] = []
        for part in skeleton:
            token_ids += part if part is not None else next(texts)
        images = [turn.image for turn in turns if turn.image is not None]
        return Prompt(token_ids=token_ids, images=images, sha=prompt_digest(token_ids, images))

    def recorded_prompt(self, observations: Sequence[Observation], policy: Policy, sha: str) -> Prompt:
        """Return the prompt of the action after ``observations`` that a rollout worker rendered as ``sha``.

        The worker may have had the tokens of all earlier answers or not; if neither fits, the prompt of texts returns.
        """
        turns = prompts.prompt_turns(observations, policy)
        prompt = self.prompt(turns)
        if prompt.sha == sha:
            return prompt
        taken = [observation.taken for observation in observations if observation.taken is not None]
        generated = {action.text: action.tokens for action in taken if action.tokens}
        spliced = self.prompt(turns, generated) if generated else prompt
        return spliced if spliced.sha == sha else prompt

    def without_end(self, tokens: Sequence[int]) -> list[int]:
        """Return an answer's tokens without its end, which it lacks if it was cut."""
        return list(tokens[:-1] if tokens and tokens[-1] == self.eos else tokens)

    def answer_tokens(self, text: str) -> list[int]:
        """Return the tokens of an answer, including its end."""
        return [*self._text_tokens(text), self.eos]

    def text(self, tokens: Sequence[int]) -> str:
        """Return the text of generated ``tokens``, without special tokens other than the spoken ones."""
        names = {number: token for token, number in self.spoken.items()}
        runs = ((spoken, list(run)) for spoken, run in groupby(tokens, key=names.get))
        return "".join(self._decode(run) if spoken is None else spoken * len(run) for spoken, run in runs)

    def _decode(self, tokens: list[int]) -> str:
        with self._lock:
            return str(self.tokenizer.decode(tokens, skip_special_tokens=True, clean_up_tokenization_spaces=False))

    def allowed_mask(self, vocabulary: int) -> torch.Tensor:
        """Return a boolean mask (vocabulary,) over logits: True where a token may be sampled."""
        mask_V = torch.zeros(vocabulary, dtype=torch.bool)
        mask_V[self.allowed_tokens] = True
        return mask_V

    def pixels(self, images: Sequence[Image.Image]) -> ImageInputs:
        """Return the image processor's output for all ``images``."""
        inputs = self.image_processor(images=list(images), return_tensors="pt")
        return {name: value for name, value in inputs.items() if isinstance(value, torch.Tensor)}

    def expanded(self, prompt: Sequence[int], sizes: Sequence[tuple[int, int]]) -> list[int]:
        """Return a prompt's tokens as the model reads them; ``sizes`` are its images' (width, height)."""
        remaining = iter(sizes)
        tokens: list[int] = []
        for token in prompt:
            tokens += self.expansion(*next(remaining)) if token == self.placeholder else [token]
        return tokens

    def _expand_size(self, width: int, height: int) -> list[int]:
        """Return the tokens that the model reads for an image of this size."""
        blank = Image.new("RGB", (width, height))
        with self._lock:
            inputs = self.processor(text=[self.processor.image_token], images=[blank], add_special_tokens=False)
        return [int(token) for token in inputs["input_ids"][0]]

    def _encode_text(self, text: str) -> list[int]:
        token_ids: list[int] = []
        for piece in re.split(f"({'|'.join(map(re.escape, self.spoken))})", text) if self.spoken else [text]:
            if piece in self.spoken:
                token_ids.append(self.spoken[piece])
            else:
                with self._lock:
                    token_ids += self.tokenizer(piece, add_special_tokens=False, split_special_tokens=True)["input_ids"]
        return token_ids

    def _end_of_answer(self) -> int:
        """Return the token that ends an answer: the chat template's special token after it, or the tokenizer's end."""
        after = self._rendered((("user", (False,)), ("assistant", (False,))), answer_follows=False).rpartition(MARK)[2]
        first = self.tokenizer(after, add_special_tokens=False)["input_ids"][:1]
        if first and first[0] in special_tokens(self.tokenizer):
            return int(first[0])
        if self.tokenizer.eos_token_id is None:
            raise UnsupportedModel(
                "the model's answers have no end: its chat template writes no special token after one, and its "
                "tokenizer has no eos_token"
            )
        return int(self.tokenizer.eos_token_id)

    def _rendered(self, shape: Shape, answer_follows: bool = True) -> str:
        """Return the chat template's text for messages of this shape, with ``MARK`` for each text."""
        empty = []
        for role, parts in shape:
            content = [{"type": "image"} if image else {"type": "text", "text": MARK} for image in parts]
            empty.append({"role": role, "content": content})
        try:
            return str(
                self.tokenizer.apply_chat_template(
                    empty,
                    chat_template=self.chat_template,
                    tokenize=False,
                    add_generation_prompt=answer_follows,
                    strftime_now=TODAY.strftime,
                )
            )
        except TemplateError as error:
            raise UnsupportedModel(f"the model's chat template refuses the turns of a prompt: {error}") from None

    def _render_skeleton(self, shape: Shape) -> list[list[int] | None]:
        """Return the chat template's tokens for messages of this shape, with None for each text.

        Raises :class:`UnsupportedModel` if it drops or repeats a text or an image.
        """
        parts: list[list[int] | None] = []
        for piece in self._rendered(shape).split(MARK):
            with self._lock:
                parts += [list(self.tokenizer(piece, add_special_tokens=False)["input_ids"]), None]
        parts.pop()
        turns, images = sum(len(of_message) for _, of_message in shape), sum(sum(of_message) for _, of_message in shape)
        shown = sum(part.count(self.placeholder) for part in parts if part is not None)
        if (parts.count(None), shown) != (turns - images, images):
            raise UnsupportedModel(
                f"the model's chat template makes {parts.count(None)} texts and {shown} images "
                f"({self.processor.image_token}) of {turns - images} texts and {images} images"
            )
        return parts


def load_processor(model_dir: Path, model_type: str) -> Any:
    """Return a model's processor; raise :class:`UnsupportedModel` unless it has image processor and tokenizer."""
    try:
        processor = AutoProcessor.from_pretrained(model_dir)
    except (OSError, ValueError, TypeError, KeyError, ImportError) as error:
        raise UnsupportedModel(
            f"{model_dir}: the processor of this {model_type!r} model does not load: {error}"
        ) from error
    missing = [name for name in ("tokenizer", "image_processor", "image_token") if not getattr(processor, name, None)]
    if missing:
        raise UnsupportedModel(
            f"{model_dir}: {model_type!r} is no model of images and text here: its {type(processor).__name__} has no "
            f"{' and no '.join(missing)}"
        )
    return processor


def special_tokens(tokenizer: Any) -> set[int]:
    """Return the control tokens: those with a role, and those added as special."""
    added = {token for token, content in tokenizer.added_tokens_decoder.items() if content.special}
    return added | set(tokenizer.all_special_ids)


def image_token_of(config: Any, placeholder: int) -> int:
    """Return the token that image features replace, by the model's configuration."""
    token = getattr(config, "image_token_id", None)
    token = getattr(config, "image_token_index", None) if token is None else token
    return int(placeholder if token is None else token)


def renderer_of(model_dir: Path, policy: Policy) -> Renderer:
    """Return the renderer of a deployment's policy for the model in ``model_dir``."""
    return Renderer(model_dir, policy.min_pixels, policy.max_pixels, policy.dialect.build().tokens)


def count_longest(renderer: Renderer, config: Config, steps: int) -> context.LongestPrompt:
    """Return the longest prompt of episodes of ``steps`` steps."""
    policy, size = config.policy, context.largest_screen(config)
    _, answers = context.shown_counts(policy, steps)
    prompt = renderer.prompt(prompts.longest_prompt("", size, steps, policy))
    image = len(renderer.expansion(*size))
    return context.LongestPrompt(
        images=len(prompt.images),
        image=image,
        answers=answers,
        answer=policy.max_tokens,
        words=len(prompt.token_ids) - len(prompt.images) + context.reserved_tokens(config, answers),
    )


def prompt_digest(token_ids: Sequence[int], images: Sequence[BlobRef]) -> str:
    """Return the name of a prompt: SHA-256 (hex) over its token ids and its images' digests."""
    state = hashlib.sha256(",".join(map(str, token_ids)).encode())
    for image in images:
        state.update(b"|" + image.sha256.encode())
    return state.hexdigest()
