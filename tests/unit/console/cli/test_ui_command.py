"""``dart-streams ui``: its address for scripts, and what it refuses."""

import contextlib
import json
import signal
import socket
import subprocess
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import IO

import pytest

from console.cli import page_address, ui
from console.launch.services.daemon import free_port
from dart_streams.errors import ConfigError, ServiceUnavailable, UserError
from tests.command_line import invoke
from tests.fork_server import PROGRAM, Forked

BUNDLE = Path(__file__).parents[2] / "golden" / "bundle.v1.dart"


def failure(*arguments: str) -> UserError:
    done = invoke("ui", *arguments)
    assert isinstance(done.exception, UserError), done.output
    return done.exception


@contextlib.contextmanager
def served(*options: object, **streams: int) -> Iterator[Forked]:
    """Serve a page as a process, and end it by a signal."""
    process = Forked([PROGRAM, "ui", "--port", "0", *map(str, options)], **streams)
    try:
        yield process
    finally:
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=120)
    assert process.returncode == 0


def read_to(end: bytes, stream: IO[bytes] | None) -> bytes:
    """Return what a process prints, up to a line that has ``end``."""
    text = b""
    while end not in text:
        line = stream.readline() if stream else b""
        assert line, text
        text += line
    return text


def refuse_stranger(address: str) -> urllib.request.Request:
    """Ask for the run without the token; return the request."""
    request = urllib.request.Request(f"{address}api/run")
    with pytest.raises(urllib.error.HTTPError) as refused:
        urllib.request.urlopen(request, timeout=120)
    assert refused.value.code == 401
    return request


@pytest.mark.parametrize("host", ["0.0.0.0", "192.168.1.5", "::", "gui.example"])
def test_an_address_on_the_network_is_refused_without_tls(host: str):
    error = failure(str(BUNDLE), "--host", host)
    assert isinstance(error, ConfigError)
    assert "--certificate" in str(error)
    assert "ssh -L" in str(error)


def test_a_network_address_is_taken_if_a_proxy_stands_in_front():
    with served(BUNDLE, "--host", "0.0.0.0", "--behind-proxy", "--json", stdout=subprocess.PIPE) as process:
        address = json.loads(read_to(b"}", process.stdout))
        assert address["address"].startswith("http://127.0.0.1:")
        refuse_stranger(address["address"])


def test_half_a_certificate_or_a_broken_one_is_refused(tmp_path: Path):
    (tmp_path / "cert.pem").write_text("no certificate")
    assert "go together" in str(failure(str(BUNDLE), "--certificate", str(tmp_path / "cert.pem")))
    both = ("--certificate", str(tmp_path / "cert.pem"), "--key", str(tmp_path / "no.pem"))
    assert "can't be used" in str(failure(str(BUNDLE), "--host", "0.0.0.0", *both))


def test_a_taken_port_is_named_and_not_blamed_for_an_address_elsewhere():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        error = failure(str(BUNDLE), "--port", str(port))
    assert isinstance(error, ServiceUnavailable)
    assert str(port) in str(error)
    assert "--port" in str(error)
    error = failure(str(BUNDLE), "--host", "192.0.2.1", "--behind-proxy", "--port", "0")
    assert isinstance(error, ServiceUnavailable)
    assert "--host" in str(error)
    assert "--port" not in str(error)


def test_options_that_contradict_and_what_is_no_run_are_named(tmp_path: Path):
    error = failure(str(BUNDLE), "--port", "0", "--address-file", str(tmp_path / "no" / "ui.json"))
    assert "No such file" in str(error)
    config = tmp_path / "config.toml"
    config.write_text("")
    assert "--config" in str(failure(str(BUNDLE), "--config", str(config)))
    assert "no run" in str(failure("nothing", "--state", str(tmp_path)))
    (tmp_path / "torn.dart").write_bytes(b"x" * 100)
    assert "no bundle" in str(failure(str(tmp_path / "torn.dart")))


def test_a_script_gets_the_address_and_the_token_and_a_signal_ends_it(tmp_path: Path):
    file = tmp_path / "ui.json"
    with served(BUNDLE, "--json", "--address-file", file, stdout=subprocess.PIPE) as process:
        address = json.loads(read_to(b"}", process.stdout))
        assert json.loads(file.read_bytes()) == address
        assert file.stat().st_mode & 0o077 == 0
        assert address["url"] == f"{address['address']}?token={address['token']}"
        request = refuse_stranger(address["address"])
        request.add_header("Authorization", f"Bearer {address['token']}")
        with urllib.request.urlopen(request, timeout=120) as answer:
            assert json.load(answer)["header"]["kind"] == "bundle"


def test_the_page_of_a_bundle_is_written_into_one_file(tmp_path: Path, monkeypatch):
    done = invoke("ui", BUNDLE, "--export", tmp_path / "x.html", "--json")
    assert done.exit_code == 0, (done.output, done.exception)
    assert json.loads(done.stdout) == {"file": str(tmp_path / "x.html")}
    assert 'id="archive"' in (tmp_path / "x.html").read_text()
    assert [path.name for path in tmp_path.iterdir()] == ["x.html"]
    assert "no folder" in str(failure(str(BUNDLE), "--export", str(tmp_path / "no" / "x.html")))
    monkeypatch.setattr("console.views.page.export.SILENT_S", 1.0)
    nobody = tmp_path / "nobody.toml"
    nobody.write_text('[bus]\nservers = "127.0.0.1:1"\nwait_s = 0.2\n')
    error = failure("--config", str(nobody), "--export", str(tmp_path / "y.html"))
    assert isinstance(error, ServiceUnavailable)
    assert not (tmp_path / "y.html").exists()


def test_a_page_that_was_started_again_comes_back_where_it_was(tmp_path: Path):
    file, none = tmp_path / "ui.json", page_address.PageAddress(url="", address="", token="")
    assert page_address.read_address(None) == page_address.read_address(file) == none
    port = free_port()
    known = page_address.PageAddress(url="", address=f"http://127.0.0.1:{port}/", token="secret")
    page_address.announce(known, file, as_json=False)
    assert page_address.read_address(file) == known
    with ui.open_listener("127.0.0.1", 0, known, any_free=False) as again:
        assert again.getsockname()[1] == port
        with ui.open_listener("127.0.0.1", 0, known, any_free=False) as taken:
            assert taken.getsockname()[1] != port, "it is taken by another by now"
    file.chmod(0o644)
    assert page_address.read_address(file) == none
    file.write_text("torn")
    file.chmod(0o600)
    assert page_address.read_address(file) == none


@pytest.mark.parametrize(("text", "reason"), [(None, "can't be read"), ("short", "needs 16 characters")])
def test_a_token_file_that_is_missing_or_short_is_refused(text: str | None, reason: str, tmp_path: Path):
    file = tmp_path / "token"
    if text is not None:
        file.write_text(text)
    error = failure(str(BUNDLE), "--port", "0", "--token-file", str(file))
    assert reason in str(error)


def test_the_token_of_a_file_opens_the_page_and_is_not_printed(tmp_path: Path):
    token = "0123456789abcdef0123"
    (tmp_path / "token").write_text(f"{token}\n")
    with served(BUNDLE, "--token-file", tmp_path / "token", stderr=subprocess.PIPE) as process:
        printed = read_to(b"http://", process.stderr).decode()
        assert token not in printed
        request = refuse_stranger(printed.rpartition("watch it at ")[2].strip())
        request.add_header("Authorization", f"Bearer {token}")
        assert json.load(urllib.request.urlopen(request, timeout=120))


def test_feedback_on_a_bundle_or_into_a_file_is_refused(tmp_path: Path):
    assert "a bundle takes no feedback" in str(failure(str(BUNDLE), "--feedback"))
    config = tmp_path / "run.toml"
    config.write_text("[feedback]\nenabled = true\n")
    assert "only reads" in str(failure("--config", str(config), "--feedback", "--export", str(tmp_path / "x.html")))
    config.write_text("")
    assert "feedback.enabled = true" in str(failure("--config", str(config), "--feedback"))


def test_the_address_for_feedback_has_another_token_and_both_come_back(tmp_path: Path):
    config, file, token = tmp_path / "run.toml", tmp_path / "ui.json", tmp_path / "token"
    config.write_text('[bus]\nservers = "127.0.0.1:1"\n[feedback]\nenabled = true\n')
    command = ("--config", config, "--feedback", "--json", "--address-file", file)
    known = []
    for port in (free_port(), 0):
        with served(*command, "--port", port, stdout=subprocess.PIPE) as process:
            known.append(json.loads(read_to(b"}", process.stdout)))
            rights = urllib.request.Request(f"{known[-1]['address']}api/rights")
            for name, right in (("token", False), ("feedback_token", True)):
                rights.add_header("Authorization", f"Bearer {known[-1][name]}")
                assert json.load(urllib.request.urlopen(rights, timeout=120))["feedback"] is right
    assert known[0] == known[1], "a page that is started again keeps both"
    assert known[0]["feedback_url"].endswith(f"?token={known[0]['feedback_token']}")
    assert known[0]["feedback_token"] != known[0]["token"]
    token.write_text("0123456789abcdef0123")
    options = ("--feedback", "--token-file", str(token), "--feedback-token-file", str(token))
    assert "give it another one" in str(failure("--config", str(config), "--port", "0", *options))
