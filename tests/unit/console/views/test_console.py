"""What others have written cannot control the terminal, wherever a command shows it."""

import io
import json
import logging
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import msgspec
import pytest
import structlog
import tomli_w
from _pytest.logging import LogCaptureHandler
from rich.panel import Panel
from rich.table import Table
from rich.text import Text
from rich.tree import Tree

from console.cli import config as config_command
from console.cli import main, output, trace
from console.lineage.lineage import Node
from console.repair.dead_letters import describe_letter
from console.runs.bundle import BundleRecord
from console.views import terminal
from console.views.console import PlainConsole
from dart_streams.bus.dead_letters import ERROR
from dart_streams.errors import UserError
from dart_streams.telemetry import setup
from dart_streams.visible_text import escape_unseen
from tests.sources import PRODUCT, ROOT

HOSTILE = {
    "a title": "\x1b]0;owned\x07",
    "the clipboard": "\x1b]52;c;cm0gLXJm\x07",
    "a cleared screen": "\x1b[2J\x1b[H",
    "a line that is overwritten": "fail\rok",
    "one byte instead of two": "\x9b2J",
    "a device's control string": "\x90+q\x9c",
    "backspaces": "fail\x08\x08\x08\x08ok",
    "text in reverse": "\u202egpj.exe",
    "another line": "a\u2028b",
    "half a pair": "\ud800",
    "deleted": "\x7f",
}
CONTROL = re.compile("[\x00-\x08\x0b-\x1a\x1c-\x1f\x7f-\x9f\u2028-\u202e\ud800-\udfff]|\x1b(?!\\[[0-9;]*m)")
"""All but line ends and the colors that a terminal's console writes itself."""

hostile = pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE)


class Row(msgspec.Struct):
    place: str
    fields: dict[str, str]


def console() -> PlainConsole:
    return PlainConsole(file=io.StringIO(), force_terminal=True, width=60)


def written(shown: PlainConsole) -> str:
    assert isinstance(shown.file, io.StringIO)
    return shown.file.getvalue()


@hostile
def test_no_way_of_printing_lets_a_text_control_the_terminal(text: str):
    grid = Table.grid()
    grid.add_row(text, Text(text))
    for shown in (text, Text(text), Panel(Text(text), title=text), grid, Tree(text), Panel(grid)):
        on = console()
        on.print(shown)
        on.print(text, markup=False, soft_wrap=True, highlight=False)
        assert not CONTROL.search(written(on)), shown
        assert "\\u" in written(on)


def test_a_table_keeps_its_edges_whatever_its_cells_hold():
    table = Table()
    table.add_column("value")
    table.add_row("\x1b[31mred")
    table.add_row("plain")
    on = PlainConsole(file=io.StringIO(), width=60)
    on.print(table)
    assert len({len(line) for line in written(on).splitlines()}) == 1


@hostile
def test_rows_notes_errors_and_json_show_escapes(text: str, capsys: pytest.CaptureFixture[str], monkeypatch):
    monkeypatch.setattr(output, "notes", PlainConsole(stderr=True, highlight=False))
    row = Row(text, {text: text})
    output.show([row], as_json=False, title=text)
    output.show([], as_json=False, empty=text)
    output.note(text)
    assert main.show_error(UserError(text)) == UserError.exit_code
    if "\ud800" not in text:
        output.show([row], as_json=True)
    printed = capsys.readouterr()
    assert not CONTROL.search(printed.out + printed.err)
    if "\ud800" not in text:
        assert json.loads(printed.out[printed.out.index("[\n") :])[0] == msgspec.to_builtins(row), "the same in JSON"


@hostile
def test_a_dead_letter_and_a_lineage_show_escapes(text: str, capsys: pytest.CaptureFixture[str]):
    body = text.encode(errors="replace")
    letter = BundleRecord(partition=0, offset=1, at_ms=2, key=body, value=body, headers=[(ERROR, body)])
    output.show([describe_letter(letter)], as_json=False)
    on = console()
    on.print(Tree(trace.label(Node(kind="request", id=text, ms=1.0, fields={"name": text, "more": [text]}))))
    assert not CONTROL.search(capsys.readouterr().out + written(on))


def test_a_configuration_shows_escapes_which_are_the_same_in_toml(tmp_path, capsys: pytest.CaptureFixture[str]):
    file, value = tmp_path / "c.toml", "".join(text for text in HOSTILE.values() if "\ud800" not in text)
    file.write_text(tomli_w.dumps({"policy": {"path": value}, "run": {"id": "x", "more": {"\x1b[2J": 1}}}))
    with pytest.raises(UserError):
        config_command.check([file])
    refused = capsys.readouterr().out
    file.write_text(tomli_w.dumps({"policy": {"path": value}}))
    config_command.show_config(file)
    shown = capsys.readouterr().out
    assert not CONTROL.search(refused + shown)
    assert tomllib.loads(shown)["policy"]["path"] == value


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def logs():
    before = structlog.get_config(), logging.root.handlers[:], logging.root.level
    stream = Terminal()
    setup.start_logs("env-0", stream)
    yield stream
    structlog.configure(**before[0])
    logging.root.handlers[:] = before[1]
    logging.root.setLevel(before[2])


@hostile
def test_a_log_line_on_a_terminal_shows_escapes(text: str, logs: Terminal):
    for handler in logging.root.handlers[:]:  # pytest-xdist ends where it has to send half a pair that pytest captured
        if isinstance(handler, LogCaptureHandler):
            logging.root.removeHandler(handler)
    log = structlog.get_logger()
    log.warning(text, reason=text, places=[text], names={text: text})
    logging.getLogger("kafka").warning("rejected: %s", text)
    try:
        raise ValueError(text)
    except ValueError:
        log.exception("broke")
    assert not CONTROL.search(logs.getvalue())
    assert logs.getvalue().count("\\u") >= 3


@hostile
def test_the_display_of_a_run_shows_escapes(text: str):
    nothing = {"left_s": None, "summary": None, "lag": {}}
    texts = dict.fromkeys(("run_id", "phase", "news", "page"), text)
    moment = terminal.Moment(phase_s=1.0, children=((text, 2),), **texts, **nothing)
    on = console()
    on.print(terminal.draw_panel(moment))
    on.print(terminal.format_line(moment), soft_wrap=True, highlight=False)
    assert not CONTROL.search(written(on))


def test_text_in_any_script_stays_as_it_is():
    text = "Zürich, 東京, العربية, emoji 🙂, a tab\tand a line\nend, ‘quotes’, no\u00a0break"
    assert escape_unseen(text) == text


def test_every_command_prints_on_this_console():
    files = [file for folder in PRODUCT for file in (ROOT / folder).rglob("*.py")]
    found = [str(file) for file in files if re.search(r"(?<!Plain)\bConsole\(", file.read_text())]
    assert not found, "use PlainConsole"


def test_what_is_piped_is_not_wrapped(monkeypatch):
    monkeypatch.delenv("COLUMNS", raising=False)
    table, file = Table("id", "other"), io.StringIO()
    table.add_row("x" * 100, "y" * 100)
    PlainConsole(file=file).print(table)
    assert "x" * 100 in file.getvalue() and max(map(len, file.getvalue().splitlines())) < 220


PRINTS = """
import sys
from pathlib import Path
from console.views.console import PlainConsole
console = PlainConsole(lasting=True)
for number in range(20_000):
    console.print(f"line {number} of what nobody reads")
Path(sys.argv[1]).write_text("the end")
"""


@pytest.mark.parametrize("output", ["a closed pipe", "/dev/full"])
def test_a_lasting_console_outlives_its_reader_and_a_full_disk(tmp_path: Path, output: str):
    """``run | head`` ended the run, and so did a full disk under ``run > file``."""
    command = [sys.executable, "-c", PRINTS, str(tmp_path / "end")]
    if output == "/dev/full":
        with Path(output).open("w") as full:
            done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, cwd=ROOT, check=False)
        code, said = done.returncode, done.stderr
    else:
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=ROOT) as process:
            assert process.stdout is not None and process.stderr is not None
            assert process.stdout.readline() == b"line 0 of what nobody reads\n"
            process.stdout.close()
            said, code = process.stderr.read(), process.wait()
    assert (tmp_path / "end").read_text() == "the end"
    assert (said, code) == (b"", 0)
