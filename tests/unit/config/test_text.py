"""Files as people have them: read, or refused with what they are and the way out."""

import codecs
from pathlib import Path

import pytest

from dart_streams.config import load, tasks
from dart_streams.config.text import json_of, text_of
from dart_streams.connection import auth
from dart_streams.errors import ConfigError

TOML = '[env]\nslots = 3\n[run]\nstate_dir = "é"\n'


@pytest.mark.parametrize(
    "content",
    [
        TOML.encode(),
        codecs.BOM_UTF8 + TOML.encode(),
        TOML.replace("\n", "\r\n").encode(),
        TOML.replace("\n", "\r").encode(),
        codecs.BOM_UTF8 + TOML.replace("\n", "\r\n").encode().rstrip(),
    ],
    ids=["plain", "byte order mark", "CRLF", "CR", "all of it, without a last line end"],
)
def test_a_configuration_is_read_with_any_line_ends(tmp_path: Path, content: bytes):
    file = tmp_path / "c.toml"
    file.write_bytes(content)
    assert (load(file).env.slots, load(file).run.state_dir) == (3, "é")


@pytest.mark.parametrize(
    "content, reason",
    [
        (TOML.encode("utf-16"), "is in UTF-16: .*iconv -f UTF-16 -t UTF-8"),
        (codecs.BOM_UTF16_BE + TOML.encode("utf-16-be"), "is in UTF-16: .*iconv"),
        (TOML.encode("utf-16-le"), "is in UTF-16LE without a byte order mark: .*iconv -f UTF-16LE"),
        (TOML.encode("utf-16-be"), "is in UTF-16BE without a byte order mark: .*iconv -f UTF-16BE"),
        (codecs.BOM_UTF32_LE + TOML.encode("utf-32-le"), "is in UTF-32: .*iconv"),
        (TOML.encode("latin-1"), r"has the byte 0xe9 in line 4, which is no UTF-8 \(Latin-1, perhaps\).*-f LATIN1"),
        (TOML.encode() + b"\0" * 4096, "ends with 4096 NUL bytes, as after a crash of its machine"),
        (TOML.encode().replace(b"slots", b"sl\0ts"), "has a NUL byte in line 2: it is damaged"),
    ],
)
def test_a_file_in_another_encoding_is_refused_with_its_name(tmp_path: Path, content: bytes, reason: str):
    file = tmp_path / "c.toml"
    file.write_bytes(content)
    for read in (load, tasks.load):
        with pytest.raises(ConfigError, match=rf"c\.toml {reason}"):
            read(file)
    with pytest.raises(ConfigError, match=reason):
        json_of(content, "list.json", dict)


def test_a_secret_is_read_without_the_byte_order_mark_of_an_editor(tmp_path: Path):
    file = tmp_path / "password"
    file.write_bytes(codecs.BOM_UTF8 + b"geheim\r\n")
    assert auth.read_secret(f"file:{file}", "bus.login.password") == "geheim"
    file.write_bytes("geheim".encode("utf-16"))
    with pytest.raises(ConfigError, match=r"bus\.login\.password: .*password is in UTF-16") as refused:
        auth.read_secret(f"file:{file}", "bus.login.password")
    assert "geheim" not in str(refused.value)


@pytest.mark.parametrize(
    "content, reason",
    [
        (b"", "list.json is empty"),
        (b"{", "list.json is not JSON"),
        (b"[1]", "list.json: Expected `object`"),
        (b'{"a":' * 100_000, "nested too deeply"),
    ],
)
def test_what_is_wrong_with_a_json_file_is_said_with_its_name(content: bytes, reason: str):
    with pytest.raises(ConfigError, match=reason):
        json_of(content, "list.json", dict[str, object])


def test_a_line_of_many_is_named_by_its_number_in_the_file():
    with pytest.raises(ConfigError, match=r"set\.jsonl has the byte 0xe9 in line 7"):
        text_of(b"\xe9", "set.jsonl", first_line=7)
