import os
from pathlib import Path

import pytest

from dart_streams.cli import osworld
from dart_streams.errors import UserError
from workers.env.osworld import tasks
from workers.env.osworld.episode_check import TaskCheck, done_before
from workers.env.osworld.mirror import needed

CHECKS = [
    TaskCheck(page="os/a", verdict="runnable", start=0.0, oracle=1.0),
    TaskCheck(page="os/b", verdict="refused", reason="its start | state\nis worth 1", start=1.0, made=True),
    TaskCheck(page="vlc/c", verdict="obstacle", reason="visits the live web"),
]


def test_the_table_has_a_row_for_each_task_and_counts_for_each_app():
    lines = osworld.table_of(CHECKS).splitlines()
    assert "| os | 2 | 1 | 1 | 1 | 0 |" in lines
    assert "| all | 3 | 1 | 1 | 1 | 1 |" in lines
    assert lines[-3:] == [
        "| os/a |  | 0 | 1 |  |",
        "| os/b | made | 1 |  | its start / state is worth 1 |",
        "| vlc/c |  |  |  | visits the live web |",
    ]


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
    assert done_before(lines) == {}
    lines.write_text('{"page":"os/a","verdict":"refused"}\n{"page":"os/a","verdict":"runnable"}\n{"page":"os/b","ver')
    assert {page: found.verdict for page, found in done_before(lines).items()} == {"os/a": "runnable"}


@pytest.mark.skipif(
    not os.environ.get("DART_OSWORLD"), reason="needs a checkout of OSWorld: set DART_OSWORLD to its folder"
)
def test_every_task_of_osworld_is_known():
    everything = osworld.chosen("", "test_all.json", "")
    without_accounts = osworld.chosen("", "test_nogdrive.json", "")
    assert (len(everything), len(without_accounts)) == (369, 361)
    assert len({url for task in everything for url in needed(task)}) > 500
    assert sum(task.evaluator.infeasible for task in everything) == 29
    assert all(tasks.settled_score(task, True) in {0.0, 1.0} for task in everything)
