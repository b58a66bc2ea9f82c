"""The tiny demo policy: an untrained Qwen-VL architecture, small enough to learn on two cores.

It has the classes of UI-TARS-1.5-7B or Qwen3-VL (:mod:`dart_streams.policy.tiny_architectures`), so code for one works
for the other. Coordinates start as points on a line (:func:`align_coordinates`), so neighbors share what is learned.

Action pieces, numbers and known words are single tokens, everything else bytes. Each generated token costs a pass
through the model: ``Action: click(start_box='(84,120)')`` is three tokens (opening, x with comma, y with closing) and
the end. Any text round-trips.
"""

import json
import math
import re
from pathlib import Path

import torch
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers
from torch import Tensor
from transformers import AutoModelForImageTextToText, PreTrainedConfig
from transformers.utils import logging as transformers_logging

from dart_streams.policy.tiny_architectures import ARCHITECTURES, CONTEXT, WIDTH, image_settings, text_settings

WAVE_SIZE = 0.2
PERIODS = (8.0, 512.0)
"""Shortest and longest wave (pixels) in a coordinate's initial embedding."""

PAD = "<|endoftext|>"
EOS = "<|im_end|>"
SPECIAL = (PAD, "<|im_start|>", EOS, "<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>")
SIDE = 256
"""Coordinates below this many pixels are single tokens."""

NUMBER_ENDS = ("", ",", ")')")
"""Endings of a number's token: none, the comma after an x, the closing after a y."""

CLICK = "Action: click(start_box='("
OPENINGS = (
    CLICK,
    "Action: left_double(start_box='(",
    "Action: right_single(start_box='(",
    "Action: drag(start_box='(",
    "Action: scroll(start_box='(",
    "Action: type(content='",
    "Action: hotkey(key='",
    "Action: finished(content='",
    "Action: wait()",
    "Action: call_user()",
)
CLOSINGS = (")', end_box='(", *(f")', direction='{side}')" for side in ("up", "down", "left", "right")), "\\n')", "')")
ROLES = ("system\n", "user\n", "assistant\n")

INSTRUCTIONS = """
You use a computer Answer with one action click Click the button on tab Tab link color colored box widget radio
checkbox text textarea then Select select and Submit submit press Press Expand expand section below Enter enter into
field Focus textbox input 1st 2nd 3rd Close dialog by clicking in labeled Cancel OK Find center of circle grid
coordinate all shades Copy copy paste it from first second third area Switch between tabs to find scroll Scroll list
item number Draw checkboxes using example right left when finished shape largest smallest small large item letter
digit triangle circle rectangle a an with spinner hit Hit username password fields login Login Choose choose date
datepicker as Playing win game Use drag Drag slider set Set ONE TWO red green blue olive lime black white grey gray
purple orange yellow cyan pink magenta brown aqua Ok Okay No Yes no yes ok next Next Previous previous back Back
cancel
"""
NAMES = """
Kenda Karrie Joye Cheree Deneen Tula Briana Beaulah Vina Vanda Cierra Leonie Bernardine Keli Renda Marcella Kanesha
Enola Nathalie Annis Nieves Lyda Livia Kasie Tora Macie Agustina Dolores Ashlea Cristin Jerald Teodoro Rex Riley Jess
Emile Donovan Keneth Chas Thaddeus Sergio Michel Myron Olin Dannie Juan Alan Ignacio Truman Augus
"""

CHAT_TEMPLATE = """\
{%- for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' }}\
{%- if message['content'] is string %}{{ message['content'] }}\
{%- else %}{%- for part in message['content'] %}\
{%- if part['type'] == 'image' %}{{ '<|vision_start|><|image_pad|><|vision_end|>' }}\
{%- else %}{{ part['text'] }}{%- endif %}\
{%- endfor %}{%- endif %}{{ '<|im_end|>' }}\
{%- endfor %}\
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{%- endif %}"""


def build(folder: Path, seed: int = 0, architecture: str = "qwen2_5_vl", width: int = WIDTH) -> None:
    """Write the untrained policy as a Hugging Face directory; leaves the global random state alone."""
    folder.mkdir(parents=True)
    write_tokenizer(folder)
    images = json.dumps(image_settings(architecture), indent=2)
    (folder / "preprocessor_config.json").write_text(images, encoding="utf-8")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = AutoModelForImageTextToText.from_config(build_configuration(architecture, width))
        for embeddings in (model.get_input_embeddings(), model.get_output_embeddings()):
            align_coordinates(embeddings.get_parameter("weight").data)
    model.generation_config.do_sample = True
    transformers_logging.disable_progress_bar()
    model.save_pretrained(folder)


def build_configuration(architecture: str = "qwen2_5_vl", width: int = WIDTH) -> PreTrainedConfig:
    """Return an architecture of a width with this tokenizer's vocabulary."""
    ids = {token: index for index, token in enumerate(SPECIAL)}
    text = text_settings(build_tokenizer().get_vocab_size(), ids[EOS], ids[PAD], width)
    return ARCHITECTURES[architecture](text, ids)


def align_coordinates(weight_VD: Tensor) -> None:
    """Overwrite the embeddings of coordinate tokens with random waves of their value."""
    value_S = torch.arange(SIDE, dtype=torch.float32)
    shortest, longest = map(math.log, PERIODS)
    known = build_tokenizer().get_vocab()
    for end in NUMBER_ENDS:
        rows = [known[f"{number}{end}"] for number in range(SIDE)]
        period_D = torch.empty(weight_VD.shape[1]).uniform_(shortest, longest).exp()
        phase_D = torch.rand(weight_VD.shape[1]) * 2 * math.pi
        wave_SD = torch.cos(2 * math.pi * value_S[:, None] / period_D + phase_D)
        weight_VD[rows] = wave_SD * math.sqrt(2) * WAVE_SIZE


def build_tokenizer() -> Tokenizer:
    """Return the tokenizer; deterministic."""
    pieces = [*OPENINGS, *CLOSINGS, *ROLES]
    pieces += [f"{number}{end}" for end in NUMBER_ENDS for number in range(SIDE)]
    pieces += [space + word for word in [*INSTRUCTIONS.split(), *NAMES.split()] for space in ("", " ")]
    vocabulary = {token: index for index, token in enumerate(SPECIAL)}
    for token in [*sorted(pre_tokenizers.ByteLevel.alphabet()), *map(byte_level, pieces)]:
        vocabulary.setdefault(token, len(vocabulary))
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[], ignore_merges=True))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(piece_pattern()), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in SPECIAL])
    return tokenizer


def piece_pattern() -> str:
    """Return the regular expression of potential single tokens; the first matching alternative wins."""
    number = r"(?:25[0-5]|2[0-4][0-9]|1[0-9][0-9]|[1-9]?[0-9])"
    alternatives = [
        *(re.escape(piece) for piece in (*OPENINGS, *ROLES)),
        rf"(?<=_box='\(){number},(?=[0-9])",
        rf"(?<=[0-9],){number}\)'\)",
        *(re.escape(piece) for piece in CLOSINGS),
        r" ?\p{L}+",
        r"[123](?:st|nd|rd)",
        number,
    ]
    return "|".join(alternatives)


def byte_level(text: str) -> str:
    """Return ``text`` in the vocabulary's printable alphabet, one character a byte."""
    split = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False).pre_tokenize_str(text)
    return "".join(piece for piece, _ in split)


def write_tokenizer(folder: Path) -> None:
    """Write the tokenizer's files into ``folder`` for transformers and vLLM."""
    build_tokenizer().save(str(folder / "tokenizer.json"))
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": CONTEXT,
        "pad_token": PAD,
        "eos_token": EOS,
        "additional_special_tokens": [token for token in SPECIAL if token not in (PAD, EOS)],
        "clean_up_tokenization_spaces": False,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(settings, indent=2), encoding="utf-8")
    (folder / "chat_template.jinja").write_text(CHAT_TEMPLATE, encoding="utf-8")
