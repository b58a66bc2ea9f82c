"""Texts of tokens, by the pieces of byte-level and SentencePiece vocabularies."""

import itertools
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from console.runs import token_texts as texts
from dart_streams.config import Config, parse
from dart_streams.config.tasks import TaskSet

CHARACTERS = {byte: character for character, byte in texts.byte_characters().items()}


def vocabulary(*pieces: bytes) -> bytes:
    """Return a byte-level tokenizer's file with these pieces and a control token."""
    vocab = {"".join(CHARACTERS[byte] for byte in piece): number for number, piece in enumerate(pieces)}
    added = [{"id": len(pieces), "content": "<|im_end|>", "special": True}]
    decoder = {"type": "Sequence", "decoders": [{"type": "ByteLevel"}]}
    model = {"type": "BPE", "vocab": vocab, "merges": []}
    return json.dumps({"model": model, "added_tokens": added, "decoder": decoder}).encode()


def test_pieces_of_both_kinds_of_vocabularies_are_bytes_of_the_text():
    pieces = texts.parse_pieces(vocabulary(b" click", b"\n", "é".encode(), b"\xf0\x9f"))
    assert [pieces[number] for number in range(5)] == [b" click", b"\n", "é".encode(), b"\xf0\x9f", b"<|im_end|>"]
    model = {"type": "Unigram", "vocab": [["<0xE2>", 0.0], ["▁open", -1.5], ["a▁b", -2]]}
    assert texts.parse_pieces(json.dumps({"model": model}).encode()) == {0: b"\xe2", 1: b" open", 2: b"a b"}


@pytest.mark.parametrize(
    ("parts", "expected"),
    [
        ([b"a", "€".encode()[:1], "€".encode()[1:2], "€".encode()[2:] + b"b"], ["a", "€", "", "b"]),
        ([b"x\xf0\x9f", b"\x98\x80\xf0", b"\x9f\x98\x80"], ["x😀", "😀", ""]),
        ([b"\xe2\x82", b"A"], ["�", "A"]),
        ([b"a", b"\xe2\x82"], ["a", "�"]),
        ([], []),
    ],
)
def test_a_character_is_in_the_token_where_it_begins(parts: list[bytes], expected: list[str]):
    assert texts.token_texts(range(len(parts)), dict(enumerate(parts))) == expected


def test_an_unknown_token_has_no_text_and_ends_a_character():
    assert texts.token_texts([0, 9, 1], {0: b"a\xe2", 1: b"b"}) == ["a�", None, "b"]


@given(st.lists(st.binary(max_size=5), max_size=12))
def test_texts_together_are_the_text_of_the_answer(parts: list[bytes]):
    found = texts.token_texts(range(len(parts)), dict(enumerate(parts)))
    assert "".join(text or "" for text in found) == b"".join(parts).decode(errors="replace")


@given(st.text(max_size=20), st.data())
def test_cuts_at_any_byte_lose_no_character(text: str, data):
    whole = text.encode()
    cuts = sorted(data.draw(st.sets(st.integers(0, len(whole)), max_size=6)) | {0, len(whole)})
    parts = [whole[start:end] for start, end in itertools.pairwise(cuts)]
    found = texts.token_texts(range(len(parts)), dict(enumerate(parts)))
    assert "".join(part or "" for part in found) == text


def test_a_bundle_has_the_pieces_of_its_tokens_alone():
    stored = texts.format_pieces({1: b"\xff", 2: b"two", 3: b"three"}, {1, 3, 7})
    assert texts.parse_stored(stored) == {1: b"\xff", 3: b"three"}


def test_the_tokenizer_of_a_folder_is_read_and_a_missing_one_is_none(tmp_path: Path):
    config: Config = parse({"policy": {"path": str(tmp_path)}}, "test")
    assert texts.read_pieces(config, TaskSet(())) == {}
    (tmp_path / "tokenizer.json").write_bytes(b"no JSON")
    assert texts.read_pieces(config, TaskSet(())) == {}
    (tmp_path / "tokenizer.json").write_bytes(vocabulary(b"A"))
    assert texts.read_pieces(config, TaskSet(())) == {0: b"A", 1: b"<|im_end|>"}
