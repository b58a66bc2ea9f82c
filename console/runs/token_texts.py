"""Texts of the policy's tokens, by the pieces of its tokenizer. Without the library of tokenizers.

A piece is the bytes of one token. Byte-level BPE (GPT-2, Qwen) splits characters, so a text needs its neighbors.
"""

import codecs
import re
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from dart_streams.config import Config
from dart_streams.config.tasks import TaskSet
from dart_streams.config.text import MALFORMED
from dart_streams.policy.hub_models import find_snapshot, hub_model
from dart_streams.policy.recipe import tiny_policy_folder

TOKENIZER = "tokenizer.json"
BYTE = re.compile(r"<0x([0-9A-F]{2})>")
"""A piece of one byte in vocabularies of SentencePiece."""
SPACE = "▁"
"""The space in vocabularies of SentencePiece."""

Pieces = Mapping[int, bytes]


class TokenizerModel(msgspec.Struct, frozen=True):
    """The part of a tokenizer's model that is decoded; Unigram has a list of pieces and scores."""

    vocab: dict[str, int] | list[tuple[str, float]]


class AddedToken(msgspec.Struct, frozen=True):
    """A token beside the model's vocabulary, such as ``<|im_end|>``."""

    id: int
    content: str


class TokenizerFile(msgspec.Struct, frozen=True):
    """The part of ``tokenizer.json`` that is decoded."""

    model: TokenizerModel
    added_tokens: list[AddedToken] = []
    decoder: dict[str, Any] | None = None
    pre_tokenizer: dict[str, Any] | None = None


def byte_characters() -> dict[str, int]:
    """Return the byte of each character in byte-level vocabularies (GPT-2's ``bytes_to_unicode``, inverted)."""
    printable = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(256 + place): byte for place, byte in enumerate(others)}


def has_part(part: dict[str, Any] | None, kind: str) -> bool:
    """Return whether a decoder or pre-tokenizer is of a kind, or a sequence that contains it."""
    if part is None:
        return False
    members = [*part.get("decoders", []), *part.get("pretokenizers", [])]
    return part.get("type") == kind or any(has_part(member, kind) for member in members)


def parse_pieces(data: bytes) -> dict[int, bytes]:
    """Return the bytes of each token in a ``tokenizer.json``; raise :data:`MALFORMED` for another file."""
    file = msgspec.json.decode(data, type=TokenizerFile)
    vocabulary = file.model.vocab
    ids = vocabulary if isinstance(vocabulary, dict) else {piece: at for at, (piece, _) in enumerate(vocabulary)}
    is_byte_level = has_part(file.decoder, "ByteLevel") or has_part(file.pre_tokenizer, "ByteLevel")
    known = byte_characters() if is_byte_level else {}
    pieces = {number: piece_bytes(piece, known) for piece, number in ids.items()}
    return pieces | {token.id: token.content.encode() for token in file.added_tokens}


def piece_bytes(piece: str, known: Mapping[str, int]) -> bytes:
    """Return the bytes of a piece: by ``known`` characters of a byte-level vocabulary, else as SentencePiece."""
    if known:
        return bytes(known[one] for one in piece) if all(one in known for one in piece) else piece.encode()
    if byte := BYTE.fullmatch(piece):
        return bytes([int(byte[1], 16)])
    return piece.replace(SPACE, " ").encode()


def token_texts(tokens: Sequence[int], pieces: Pieces) -> list[str | None]:
    """Return the text of each token; their concatenation is the text of the answer.

    A character of several tokens is in the first of them, and the others are empty. Null: the vocabulary lacks the
    id. Bytes that are no UTF-8 become U+FFFD.
    """
    texts = ["" for _ in tokens]
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    begun = 0  # the token in which the incomplete character begins
    for index, token in enumerate(tokens):
        for byte in pieces.get(token, b""):
            was_incomplete = bool(decoder.getstate()[0])
            decoded = decoder.decode(bytes([byte]))
            texts[begun if was_incomplete else index] += decoded[:1]
            texts[index] += decoded[1:]
            if decoder.getstate()[0] and (decoded or not was_incomplete):
                begun = index
        if token not in pieces or index == len(tokens) - 1:
            texts[begun] += decoder.decode(b"", final=True)
    return [text if token in pieces else None for text, token in zip(texts, tokens, strict=True)]


def read_pieces(config: Config, tasks: TaskSet) -> Pieces:
    """Return the pieces of a run's policy; empty without a tokenizer on this machine."""
    text = config.policy.path
    try:
        if model := hub_model(text):
            folder = find_snapshot(model)
        else:
            folder = Path(text) if text else tiny_policy_folder(config, tasks)
        return parse_pieces((folder / TOKENIZER).read_bytes()) if folder is not None else {}
    except (OSError, *MALFORMED):
        return {}


def format_pieces(pieces: Pieces, tokens: Collection[int]) -> str:
    """Return the pieces of some tokens as a text for a bundle."""
    return msgspec.json.encode({token: pieces[token] for token in sorted(tokens) if token in pieces}).decode()


def parse_stored(text: str) -> Pieces:
    """Return the pieces in a bundle's text; raise :data:`MALFORMED` for another text."""
    return msgspec.json.decode(text.encode(), type=dict[int, bytes])
