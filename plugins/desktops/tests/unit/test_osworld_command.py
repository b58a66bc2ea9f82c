import csv
import json
import os
from pathlib import Path

import pytest
import typer

from dart_desktops import command as osworld
from dart_desktops.osworld import tasks
from dart_desktops.osworld.episode_check import TaskCheck, TaskChecker, read_checks
from dart_desktops.osworld.mirror import Mirror, needed_urls
from dart_desktops.osworld.prerequisites import Prerequisites
from dart_desktops.osworld.providers import HeldMachine
from dart_desktops.osworld.sidecar import EvaluatorSidecar
from dart_streams.deadline import Deadline
from dart_streams.errors import UserError

CHECKS = [
    TaskCheck(page="os/a", verdict="runnable", start=0.0, oracle=1.0, needs_files=True, evaluators="package 1.0.2"),
    TaskCheck(page="os/b", verdict="refused", reason="its start | state\nis worth 1", start=1.0, made=True),
    TaskCheck(page="vlc/c", verdict="obstacle", reason="visits the live web"),
    TaskCheck(page="vlc/d", verdict="runnable", start=0.0, replayed="made"),
]


def test_the_table_has_counts_for_each_app():
    lines = osworld.table_of(CHECKS).splitlines()
    assert "| os | 2 | 1 | 0 | 1 | 0 | 1 | 0 |" in lines
    assert lines[-1] == "| all | 4 | 2 | 0 | 1 | 1 | 1 | 1 |"


def test_the_csv_file_has_a_row_for_each_task(tmp_path: Path):
    osworld.write_rows(tmp_path / "rows.csv", CHECKS)
    with (tmp_path / "rows.csv").open(newline="") as file:
        rows = list(csv.reader(file))
    assert rows == [
        list(osworld.COLUMNS),
        ["os/a", "runnable", "published", "", "package 1.0.2", "0", "1", ""],
        ["os/b", "refused", "made", "", "", "1", "", "its start | state\nis worth 1"],
        ["vlc/c", "obstacle", "", "", "", "", "", "visits the live web"],
        ["vlc/d", "runnable", "none", "made", "", "0", "", ""],
    ]
    assert list(tmp_path.iterdir()) == [tmp_path / "rows.csv"]


def test_the_table_is_written_between_its_marks_and_again(tmp_path: Path):
    page = tmp_path / "page.md"
    page.write_text(f"# Title\n\n{osworld.BEGIN}\nold\n{osworld.END}\n\nEnd.\n")
    osworld.write_table(page, CHECKS)
    once = page.read_text()
    osworld.write_table(page, CHECKS)
    assert page.read_text() == once
    assert "old" not in once
    assert once.startswith("# Title\n")
    assert once.endswith("\n\nEnd.\n")
    page.write_text("# No marks\n")
    with pytest.raises(UserError, match="no place"):
        osworld.write_table(page, CHECKS)


def test_results_that_were_cut_off_are_read_as_far_as_they_are_whole(tmp_path: Path):
    lines = tmp_path / "results"
    assert read_checks(lines) == {}
    lines.write_text('{"page":"os/a","verdict":"refused"}\n{"page":"os/a","verdict":"runnable"}\n{"page":"os/b","ver')
    assert {page: found.verdict for page, found in read_checks(lines).items()} == {"os/a": "runnable"}


async def test_a_task_that_breaks_its_check_is_refused_with_the_reason():
    class Broken:
        async def acquire(self, deadline: Deadline) -> HeldMachine:
            raise KeyError("window")

    task = tasks.parse({"evaluator": {"func": "infeasible"}}, "os", "t")
    mirror = Mirror(Path("nowhere"))
    checker = TaskChecker(Broken(), mirror, EvaluatorSidecar(), Prerequisites((), (), mirror))
    found = await checker.check(task)
    assert (found.verdict, found.reason) == ("refused", "KeyError: 'window'")


@pytest.mark.skipif(
    not os.environ.get("DART_OSWORLD"), reason="needs a checkout of OSWorld: set DART_OSWORLD to its folder"
)
def test_every_task_of_osworld_is_known():
    everything, unusable = osworld.select_tasks("", "test_all.json", "")
    without_accounts, _ = osworld.select_tasks("", "test_nogdrive.json", "")
    assert (len(everything), len(without_accounts), unusable) == (369, 361, [])
    assert len({url for task in everything for url in needed_urls(task)}) > 500
    assert sum(task.evaluator.infeasible for task in everything) == 29
    assert all(tasks.settled_score(task, True) in {0.0, 1.0} for task in everything)


def test_files_of_a_copy_are_taken_and_missing_ones_listed(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    folder = tmp_path / "checkout" / "evaluation_examples"
    (folder / "examples" / "os").mkdir(parents=True)
    files = [{"url": f"https://a.example/{name}.txt", "path": f"/home/user/{name}.txt"} for name in ("here", "gone")]
    config = [{"type": "download", "parameters": {"files": files}}]
    task = {"instruction": "Do it.", "config": config, "evaluator": {"func": "infeasible"}}
    (folder / "examples" / "os" / "t1.json").write_text(json.dumps(task))
    (folder / "test_all.json").write_text(json.dumps({"os": ["t1"]}))
    (tmp_path / "copy").mkdir()
    (tmp_path / "copy" / "here.txt").write_text("here")
    with pytest.raises(typer.Exit) as ended:
        osworld.mirror(tmp_path / "mirror", osworld=str(tmp_path / "checkout"), source=tmp_path / "copy", by_task=True)
    printed = capsys.readouterr()
    assert ended.value.exit_code == 1
    assert "1 files taken, 1 are not in the copy" in printed.err
    assert "os/t1" in printed.out
    assert "here.txt" not in printed.out


def test_a_bad_task_is_listed_and_the_others_are_surveyed(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    folder = tmp_path / "checkout" / "evaluation_examples"
    (folder / "examples" / "os").mkdir(parents=True)
    good = {"id": "another", "instruction": "Do it.", "evaluator": {"func": "infeasible"}}
    (folder / "examples" / "os" / "good.json").write_text(json.dumps(good))
    (folder / "examples" / "os" / "bad.json").write_text("{")
    (folder / "test_all.json").write_text(json.dumps({"os": ["bad", "good"]}))
    with pytest.raises(typer.Exit) as ended:
        osworld.mirror(tmp_path / "mirror", osworld=str(tmp_path / "checkout"))
    printed = capsys.readouterr()
    assert ended.value.exit_code == 1
    assert "files of 1 tasks" in printed.out or "nothing" in printed.out
    assert "left out os/bad: " in printed.err
    (folder / "test_all.json").write_text(json.dumps({"os": ["good"]}))
    osworld.mirror(tmp_path / "mirror", osworld=str(tmp_path / "checkout"))


def test_missing_web_pages_are_counted_and_made(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    folder = tmp_path / "checkout" / "evaluation_examples"
    (folder / "examples" / "chrome").mkdir(parents=True)
    tab = {"type": "chrome_open_tabs", "parameters": {"urls_to_open": ["https://a.example/x"]}}
    task = {"instruction": "Do it.", "config": [tab], "evaluator": {"func": "infeasible"}}
    (folder / "examples" / "chrome" / "t.json").write_text(json.dumps(task))
    (folder / "test_all.json").write_text(json.dumps({"chrome": ["t"]}))
    checkout = str(tmp_path / "checkout")
    with pytest.raises(typer.Exit):
        osworld.pages(tmp_path / "pages", osworld=checkout)
    assert "1 addresses are missing" in capsys.readouterr().err
    osworld.pages(tmp_path / "pages", osworld=checkout, make=True, as_json=True)
    found = json.loads(capsys.readouterr().out)
    assert [(page["url"], page["state"]) for page in found] == [("https://a.example/x", "made")]
