"""Proposals from files, and the rows and counts of what became of them."""

import codecs
from pathlib import Path

import msgspec
import pytest

from console.cli.propose import proposals_in, seed_range
from console.runs.run_log import LogRecord, RecordMetadata
from console.runs.run_state import RunState
from console.runs.task_history import proposal_rows
from console.views.report_metrics import proposal_fields
from dart_streams.config import parse
from dart_streams.errors import UserError
from tests.command_line import invoke
from topics.task_verdicts import TaskVerdict
from topics.tasks import ProposedTask


def test_a_page_has_a_task_for_each_seed_and_lines_say_all_themselves(tmp_path: Path):
    for name in ("b", "a"):
        (tmp_path / f"{name}.html").write_text(f"<p>{name}")
    (tmp_path / "notes.txt").write_text("no page")
    found = proposals_in(tmp_path, "miniwob", range(2, 4), 5, "me")
    assert [task.task_id for task in found] == ["miniwob/a#2", "miniwob/a#3", "miniwob/b#2", "miniwob/b#3"]
    assert {(task.max_steps, task.maker) for task in found} == {(5, "me")}
    assert found[0].document == "<p>a"
    assert proposals_in(tmp_path / "b.html", "miniwob", range(1), 5, "me")[0].task_id == "miniwob/b#0"
    lines = tmp_path / "made.jsonl"
    lines.write_bytes(b"\n\n".join(map(msgspec.json.encode, found)))
    assert proposals_in(lines, "other", range(9), 1, "other") == found


@pytest.mark.parametrize("separator", ["\u2028", "\u2029", "\x85", "\x7f", "\ufeff"])
@pytest.mark.parametrize(("mark", "end"), [(b"", b"\n"), (codecs.BOM_UTF8, b"\n"), (b"", b"\r\n"), (b"", b"")])
def test_lines_end_at_line_feeds_only_with_any_byte_order_mark(tmp_path: Path, separator: str, mark: bytes, end: bytes):
    task = ProposedTask(task_id="miniwob/a#1", max_steps=5, maker="me", document=f"<p>a{separator}b é")
    lines, page = tmp_path / "made.jsonl", tmp_path / "a.html"
    lines.write_bytes(mark + b"\n".join([msgspec.json.encode(task)] * 2) + end)
    page.write_bytes(mark + task.document.encode())
    assert proposals_in(lines, "other", range(9), 1, "other") == [task, task]
    assert proposals_in(page, "miniwob", range(1, 2), 5, "me") == [task]


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("made.jsonl", '{"task_id": "a/b#0"}\n', r"made.jsonl, line 1: no proposed task: .*max_steps"),
        ("made.jsonl", "\n{", "made.jsonl, line 2: no proposed task"),
        ("made.txt", "x", "has no task: name a page"),
        ("gone.html", None, "can't be read"),
    ],
)
def test_a_file_without_tasks_is_refused_with_its_line(tmp_path: Path, name: str, text: str | None, words: str):
    if text is not None:
        (tmp_path / name).write_text(text)
    with pytest.raises(UserError, match=words):
        proposals_in(tmp_path / name, "miniwob", range(1), 5, "me")


@pytest.mark.parametrize("text", ["", "3", "3:3", "4:3", "a:b", "-1:3"])
def test_seeds_are_a_range(text: str):
    assert seed_range("3:5") == range(3, 5)
    with pytest.raises(UserError, match="such as 0:8"):
        seed_range(text)


def test_a_deployment_without_the_key_takes_no_proposals(tmp_path: Path):
    config = tmp_path / "run.toml"
    config.write_text("")
    done = invoke("propose", tmp_path / "page.html", "--config", config)
    assert isinstance(done.exception, UserError) and "set tasks.proposals = true" in str(done.exception)


def test_rows_and_counts_say_what_became_of_each_proposal():
    state = RunState()
    events = [ProposedTask(task_id=f"miniwob/p#{n}", max_steps=5, maker="me", document="<p>") for n in range(3)]
    reasons = {0: "", 1: "its check ended with reward 0"}
    events += [
        TaskVerdict(
            task_id=f"miniwob/p#{n}", accepted=not reason, reason=reason, max_steps=5, maker="me", trajectory_id=""
        )
        for n, reason in reasons.items()
    ]
    state.fold(LogRecord(RecordMetadata("tasks", 0, offset, 0), event) for offset, event in enumerate(events))
    rows = [(row.task, row.state, row.reason) for row in proposal_rows(state)]
    assert rows == [
        ("miniwob/p#0", "accepted", ""),
        ("miniwob/p#1", "refused", reasons[1]),
        ("miniwob/p#2", "waiting", ""),
    ]
    counts = {"accepted": 1, "refused": 1, "waiting": 1}
    assert proposal_fields(parse({"tasks": {"proposals": True}}), state) == {"proposals": counts}
    assert proposal_fields(parse({}), state) == {}
