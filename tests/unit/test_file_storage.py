"""Errors of stores of files, and the bounds of S3's requests; real stores are in tests/model and tests/objects."""

import errno
import hashlib
from pathlib import Path

import fsspec
import pytest
from botocore.exceptions import ConnectTimeoutError, EndpointConnectionError, ReadTimeoutError

from dart_streams.errors import ConfigError
from dart_streams.file_storage import S3_TRIES, StorageUnreachable, is_outage, open_storage
from dart_streams.s3_session import SILENT_S, SLOWEST_BYTES_S, BoundedSession, longest_s

PLACE = {"endpoint_url": "http://127.0.0.1:1"}


@pytest.mark.parametrize(
    ("error", "outage"),
    [
        (ReadTimeoutError(**PLACE), True),
        (ConnectTimeoutError(**PLACE), True),
        (EndpointConnectionError(**PLACE), True),
        (ConnectionResetError("reset"), True),
        (TimeoutError(), True),
        (OSError(errno.EIO, "InternalError"), True),
        (ValueError("a library's own"), True),
        (FileNotFoundError("no such bucket"), False),
        (PermissionError("Forbidden"), False),
        (OSError(errno.ENOSPC, "full"), False),
        (OSError("unknown"), False),
        (ConfigError("misspelt"), False),
        (StorageUnreachable("awaited by the caller already"), False),
    ],
)
def test_errors_of_an_outage_are_retried_and_others_raised(error: Exception, outage: bool):
    assert is_outage(error) is outage


@pytest.mark.parametrize("name", ["a::b", "run #2", "lr=0.1,bs=8", "50%25 of*[a]", "\u0436 \u00df", "memory:"])
def test_a_path_is_one_folder_whatever_its_letters(tmp_path: Path, name: str):
    source = tmp_path / "source"
    source.write_bytes(b"weights")
    storage = open_storage(str(tmp_path / name / "v7"))
    storage.make_folder()
    storage.put(source, "model")
    storage.write("probe", b"{}")
    assert storage.digest("model") == hashlib.sha256(b"weights").hexdigest()
    assert {*map(str, tmp_path.rglob("*"))} == {
        *map(str, (source, tmp_path / name, tmp_path / name / "v7")),
        *(f"{tmp_path / name}/v7/{file}" for file in ("model", "probe")),
    }


@pytest.mark.parametrize(
    ("headers", "size"),
    [({}, 0), ({"Content-Length": "5000000"}, 5_000_000), ({"X-Amz-Decoded-Content-Length": b"7"}, 7)],
)
def test_a_request_may_take_longer_with_a_larger_body(headers: dict[str, str | bytes], size: int):
    assert longest_s(headers) == SILENT_S + size / SLOWEST_BYTES_S


def test_requests_to_s3_are_bounded_beside_a_users_options(monkeypatch: pytest.MonkeyPatch):
    own = {"retries": {"total_max_attempts": 7}, "s3": {"addressing_style": "path"}}
    monkeypatch.setitem(fsspec.config.conf, "s3", {"config_kwargs": own.copy()})
    filesystem = open_storage("s3://bucket/x").filesystem
    assert filesystem.config_kwargs == own | {"http_session_cls": BoundedSession}
    assert filesystem.retries == S3_TRIES
