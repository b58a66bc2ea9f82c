"""A wrong bundle, id, prefix or option is named in one line, with exit code 2; nothing changes."""

import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
import structlog

from benchmarks import bundle as making
from benchmarks.curation_world import Odds, task_set
from console.cli import main
from console.runs import bundle as bundles
from console.runs.bundle import Bundle
from dart_streams.config import parse

CONFIG = parse({"bus": {"prefix": "dart.r."}, "env": {"slots": 2}})


@pytest.fixture
def made(tmp_path: Path) -> Path:
    path = tmp_path / "run.dart"
    tasks = task_set(2)
    making.write(path, CONFIG, tasks, making.play_rollouts(CONFIG, tasks, 12, Odds()))
    return path


def whole(path: Path) -> None:
    """Leave a bundle as it is."""


def truncated(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def damaged(path: Path) -> None:
    section = Bundle(path).sections["trajectories"]
    data = bytearray(path.read_bytes())
    data[section.start + section.size // 2] ^= 0xFF
    path.write_bytes(data)


def newer(path: Path) -> None:
    claim(path, version=bundles.VERSION + 1)


def expansive(path: Path) -> None:
    sections = Bundle(path).directory.sections
    claim(path, sections=[msgspec.structs.replace(section, raw_size=1 << 25) for section in sections])


def claim(path: Path, **changed: Any) -> None:
    body = msgspec.json.encode(msgspec.structs.replace(Bundle(path).directory, **changed))
    path.write_bytes(path.read_bytes() + body + struct.pack("<I", len(body)) + bundles.MAGIC)


def absent(path: Path) -> None:
    path.unlink()


NEWER = f"has version {bundles.VERSION + 1}, this program reads up to {bundles.VERSION}: upgrade dart_streams"
COMMANDS = (
    ("replay", "BUNDLE"),
    ("replay", "BUNDLE", "--set", "curation.entropy.keep=0.5"),
    ("replay", "BUNDLE", "--into", "shadow."),
    ("replay", "BUNDLE", "--requests"),
    ("capture", "BUNDLE", "--verify"),
    ("trace", "g000000", "--bundle", "BUNDLE"),
    ("trace", "--coverage", "--bundle", "BUNDLE"),
    ("store", "rebuild", "--bundle", "BUNDLE"),
    ("store", "diff", "--bundle", "BUNDLE"),
)


def refused(path: Path, arguments: tuple[str, ...], monkeypatch, capsys) -> str:
    """Run a command that must end with exit code 2 and an error, and change nothing; return the error."""
    before = {one: one.read_bytes() for one in path.parent.rglob("*") if one.is_file()}
    monkeypatch.setattr("sys.argv", ["dart-streams", *(str(path) if a == "BUNDLE" else a for a in arguments)])
    monkeypatch.chdir(path.parent)
    try:
        with pytest.raises(SystemExit) as ended:
            main.main()
    finally:
        structlog.reset_defaults()
    result = capsys.readouterr()
    assert ended.value.code == 2
    assert result.out == ""
    assert result.err.count("error: ") == 1
    assert "Traceback" not in result.err
    assert {one: one.read_bytes() for one in path.parent.rglob("*") if one.is_file()} == before
    return result.err


@pytest.mark.parametrize("arguments", COMMANDS, ids=" ".join)
@pytest.mark.parametrize(
    ("spoil", "says"),
    [(truncated, "its end is missing"), (newer, NEWER), (expansive, "DART_BUNDLE_BYTES"), (absent, "no bundle")],
    ids=["truncated", "newer", "expansive", "absent"],
)
def test_a_bundle_that_cannot_be_used_is_refused_by_every_command(
    made: Path, arguments: tuple[str, ...], spoil: Callable[[Path], None], says: str, monkeypatch, capsys
):
    spoil(made)
    result = refused(made, arguments, monkeypatch, capsys)
    assert says in result
    assert made.name in result


@pytest.mark.parametrize(
    ("spoil", "arguments", "says"),
    [
        (damaged, ("replay", "BUNDLE"), "damaged in trajectories"),
        (damaged, ("capture", "BUNDLE", "--verify"), "damaged in trajectories"),
        (whole, ("trace", "g00000", "--bundle", "BUNDLE"), "did you mean 'g0000"),
        (whole, ("trace", "--bundle", "BUNDLE"), "give an id"),
        (whole, ("trace", "g000000", "--run", "nobody"), "nobody"),
        (whole, ("capture", "nobody"), "nobody"),
        (whole, ("replay", "BUNDLE", "--into", "dart.r."), "is the prefix of the run itself"),
        (whole, ("replay", "BUNDLE", "--into", "sha dow."), "is no prefix for topics"),
        (whole, ("replay", "BUNDLE", "--into", "shadow.", "--topics", "observations"), "has no observations"),
        (whole, ("replay", "BUNDLE", "--plot", "p.svg"), "give it at least one --set"),
        (whole, ("replay", "BUNDLE", "--requests"), "has no action-requests"),
        (whole, ("replay", "BUNDLE", "--requests", "--into", "shadow."), "three replays"),
        (whole, ("replay", "BUNDLE", "--requests", "--run", "nobody"), "name one of them"),
        (whole, ("replay", "--requests", "--run", "nobody"), "nobody"),
        (whole, ("replay",), "name a bundle"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_damage_is_reported_with_advice(
    made: Path, spoil: Callable[[Path], None], arguments: tuple[str, ...], says: str, monkeypatch, capsys
):
    spoil(made)
    assert says in refused(made, arguments, monkeypatch, capsys)
