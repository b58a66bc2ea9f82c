"""The tiny policy's tokenizer: whole action pieces, whole numbers and known words as single tokens, bytes for the rest.

Each generated token costs one pass through the model, so the usual answer ``Action: click(start_box='(84,120)')`` is
three tokens and the end: the opening, the x with its comma, the y with its closing. Any text round-trips: what is not
a known piece falls apart into bytes.
"""

import json
import re
from pathlib import Path

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers

PAD = "<|endoftext|>"
EOS = "<|im_end|>"
SPECIAL = (
    PAD,
    "<|im_start|>",
    EOS,
    "<|vision_start|>",
    "<|vision_end|>",
    "<|image_pad|>",
    "<|video_pad|>",
)
SIDE = 256
"""Coordinates below this many pixels are single tokens."""

NUMBER_ENDS = ("", ",", ")')")
"""What a number's token includes: nothing, the comma after an x, the closing after a y."""

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
CLOSINGS = (
    ")', end_box='(",
    *(f")', direction='{side}')" for side in ("up", "down", "left", "right")),
    "\\n')",
    "')",
)
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


def words() -> list[str]:
    """Return the words that are single tokens, alone and after a space, in a fixed order."""
    return list(dict.fromkeys([*INSTRUCTIONS.split(), *NAMES.split()]))


def build() -> Tokenizer:
    """Return the tokenizer; the same one each time."""
    pieces = [*OPENINGS, *CLOSINGS, *ROLES]
    pieces += [f"{number}{end}" for end in NUMBER_ENDS for number in range(SIDE)]
    pieces += [space + word for word in words() for space in ("", " ")]
    vocabulary = {token: index for index, token in enumerate(SPECIAL)}
    for token in [*sorted(pre_tokenizers.ByteLevel.alphabet()), *map(byte_level, pieces)]:
        vocabulary.setdefault(token, len(vocabulary))
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[], ignore_merges=True))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(pattern()), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in SPECIAL])
    return tokenizer


def coordinates() -> list[list[int]]:
    """Return, for each kind of number token, the ids of 0, 1, 2 and so on up to ``SIDE``."""
    known = build().get_vocab()
    return [[known[f"{number}{end}"] for number in range(SIDE)] for end in NUMBER_ENDS]


def pattern() -> str:
    """Return the expression whose matches may be single tokens; the first alternative that matches wins."""
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
    """Return ``text`` in the printable alphabet in which the vocabulary is written, one character a byte."""
    split = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False).pre_tokenize_str(text)
    return "".join(piece for piece, _ in split)


CHAT_TEMPLATE = """\
{%- for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' }}\
{%- if message['content'] is string %}{{ message['content'] }}\
{%- else %}{%- for part in message['content'] %}\
{%- if part['type'] == 'image' %}{{ '<|vision_start|><|image_pad|><|vision_end|>' }}\
{%- else %}{{ part['text'] }}{%- endif %}\
{%- endfor %}{%- endif %}{{ '<|im_end|>' }}\
{%- endfor %}\
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{%- endif %}"""


def write(folder: Path) -> None:
    """Write the tokenizer's files into ``folder``, as transformers and vLLM read them."""
    build().save(str(folder / "tokenizer.json"))
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": 4096,
        "pad_token": PAD,
        "eos_token": EOS,
        "additional_special_tokens": [token for token in SPECIAL if token not in (PAD, EOS)],
        "clean_up_tokenization_spaces": False,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(settings, indent=2))
    (folder / "chat_template.jinja").write_text(CHAT_TEMPLATE)
