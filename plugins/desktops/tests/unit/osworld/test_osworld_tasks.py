import json
import re
from pathlib import Path
from typing import Any

import pytest

from dart_desktops.osworld import tasks
from dart_streams.errors import ConfigError
from plugins.desktops.tests.unit.osworld.parsed_tasks import comparison, download, parse_task

ONE = comparison("compare_text_file", "https://a.example/gold.txt")
FILE, GOLD = ONE["result"], ONE["expected"]


def test_a_task_without_setup_has_its_page_and_its_instruction():
    parsed = parse_task(ONE, related_apps=["os"])
    assert (parsed.page, parsed.instruction, parsed.config) == ("os/t1", "Do it.", ())
    assert parsed.evaluator.checks[0].expected == tasks.Getter(
        "cloud_file", {"path": "https://a.example/gold.txt", "dest": "gold.txt"}
    )


def test_a_task_needs_its_downloads_and_reference_files_once():
    two = {"path": ["https://a.example/1", "https://a.example/2"], "dest": ["1", "2"]}
    several = {
        "func": ["a", "b"],
        "result": [FILE, FILE],
        "expected": [{"type": "cloud_file", "multi": True, **two}, {}],
        "postconfig": [download("https://a.example/later")],
    }
    parsed = parse_task(several, download("https://a.example/start", "https://a.example/gold.txt"))
    assert parsed.urls() == [f"https://a.example/{name}" for name in ("start", "gold.txt", "later", "1", "2")]
    assert parsed.cloud_files() == [("https://a.example/1", "1"), ("https://a.example/2", "2")]
    assert "postconfig" not in parsed.evaluator.source, "the worker carries it out, not the sidecar"


@pytest.mark.parametrize(
    "evaluator, reason",
    [
        ({**ONE, "weight": 2}, "no key 'weight'"),
        ({**ONE, "conj": "xor"}, "'xor'"),
        ({**ONE, "func": []}, "names no metric"),
        ({**ONE, "func": ["infeasible", "exact_match"]}, "no other metric"),
        ({**ONE, "func": ["a", "b"]}, "result has to be a list of 2"),
        ({**ONE, "func": ["a", "b"], "result": [FILE]}, "result has to be a list of 2"),
        ({**ONE, "result": [FILE]}, "result has to be one for 1"),
        ({"func": "exact_match", "expected": GOLD}, "no result"),
        ({**ONE, "expected": {"path": "x"}}, "expected has no type"),
        ({**ONE, "expected": {**GOLD, "path": ["x", "y"]}}, "as many paths as names"),
        ({**ONE, "postconfig": [{"type": "dance"}]}, "'dance'"),
    ],
)
def test_an_evaluator_of_an_unknown_form_is_refused_with_what_is_wrong(evaluator: dict[str, Any], reason: str):
    with pytest.raises(ConfigError, match=reason):
        parse_task(evaluator)


def test_a_note_of_an_evaluator_is_no_key():
    assert parse_task({**ONE, "_note": "ours"}).evaluator.checks[0].metric == "compare_text_file"


def test_a_task_that_cannot_be_done_is_worth_1_only_if_the_policy_gave_up():
    infeasible = parse_task({"func": "infeasible"})
    assert [tasks.settled_score(infeasible, gave_up) for gave_up in (False, True)] == [0.0, 1.0]
    assert [tasks.settled_score(parse_task(ONE), gave_up) for gave_up in (False, True)] == [None, 0.0]


def checkout(tmp_path: Path, **files: object) -> Path:
    """A folder with files of tasks: what each says, as JSON or as it is."""
    folder = tmp_path / "examples" / "os"
    folder.mkdir(parents=True)
    for name, content in files.items():
        path = folder / f"{name}.json"
        path.write_bytes(content if isinstance(content, bytes) else json.dumps(content).encode())
    return tmp_path


GOOD = {"id": "t1", "instruction": "Do it.", "evaluator": ONE}


def test_a_task_is_named_by_its_file_whatever_the_id_within_it(tmp_path: Path):
    folder = checkout(tmp_path, t1=GOOD, t2={**GOOD, "id": "another"}, t3={"instruction": "Do it.", "evaluator": ONE})
    assert [tasks.load(folder, f"os/{name}").page for name in ("t1", "t2", "t3")] == ["os/t1", "os/t2", "os/t3"]


UNUSABLE = {
    "cut off": (b"{", "not JSON"),
    "empty": (b"", "is empty"),
    "a list": ([GOOD], "Expected `object`"),
    "utf-16": (json.dumps(GOOD).encode("utf-16"), "is in UTF-16"),
    "nested": (b'{"a":' * 100_000, "nested too deeply"),
    "without an evaluator": ({"id": "x", "instruction": "Do it."}, "evaluator"),
    "with another instruction": ({**GOOD, "instruction": ["Do it."]}, r"\$.instruction"),
    "with steps of another form": ({**GOOD, "config": 5}, r"\$.config"),
    "with a step of no type": ({**GOOD, "config": [{"type": ["sleep"]}]}, "step 1"),
    "with other steps before the evaluation": ({**GOOD, "evaluator": {**ONE, "postconfig": 5}}, "steps are a list"),
    "with apps of another form": ({**GOOD, "related_apps": 5}, r"\$.related_apps"),
    "with a gold file without a path": ({**GOOD, "evaluator": {**ONE, "expected": {"type": "cloud_file"}}}, "texts"),
    "with a malformed URL": (
        {**GOOD, "evaluator": {**ONE, "expected": {**GOLD, "path": "https://[a.example/gold.txt"}}},
        "no URL 'https",
    ),
}


def test_a_bad_file_has_its_reason_and_affects_no_other_task(tmp_path: Path):
    names = {name.replace(" ", "-"): content for name, (content, _) in UNUSABLE.items()}
    folder = checkout(tmp_path, t1=GOOD, t2=b"\xef\xbb\xbf" + json.dumps(GOOD).encode(), **names)
    pages = ["os/t1", *(f"os/{name}" for name in names), "os/missing", "os/\0", f"os/{'x' * 300}", "os/t2"]
    found, unusable = tasks.load_all(folder, pages)
    assert [task.page for task in found] == ["os/t1", "os/t2"]
    assert [task.page for task in unusable] == pages[1:-1]
    for task, (_, reason) in zip(unusable, UNUSABLE.values(), strict=False):
        assert re.search(reason, task.reason), task
        assert task.page.removeprefix("os/") in task.reason
