import json
from pathlib import Path
from typing import Any

import pytest

from dart_streams.errors import ConfigError
from workers.env.osworld import tasks

FILE = {"type": "vm_file", "path": "/home/user/a.txt", "dest": "a.txt"}
GOLD = {"type": "cloud_file", "path": "https://a.example/gold.txt", "dest": "gold.txt"}
ONE = {"func": "compare_text_file", "result": FILE, "expected": GOLD}


def task(evaluator: dict[str, Any], **further: Any) -> tasks.OsworldTask:
    return tasks.parse({"id": "t1", "instruction": " Do it. ", "evaluator": evaluator, **further}, "os", "t1")


def test_a_task_without_setup_has_its_page_and_its_instruction():
    parsed = task(ONE, related_apps=["os"], proxy=True)
    assert (parsed.page, parsed.instruction, parsed.config, parsed.proxy) == ("os/t1", "Do it.", (), True)
    assert parsed.evaluator.checks[0].expected == tasks.Getter(
        "cloud_file", {"path": "https://a.example/gold.txt", "dest": "gold.txt"}
    )


def test_what_a_task_needs_is_what_it_downloads_and_compares_with_each_once():
    files = [{"url": url, "path": "/x"} for url in ("https://a.example/start", "https://a.example/gold.txt")]
    later = [{"type": "download", "parameters": {"files": [{"url": "https://a.example/later", "path": "/y"}]}}]
    several = {
        "func": ["a", "b"],
        "result": [FILE, FILE],
        "expected": [
            {
                "type": "cloud_file",
                "multi": True,
                "path": ["https://a.example/1", "https://a.example/2"],
                "dest": ["1", "2"],
            },
            {},
        ],
        "postconfig": later,
    }
    parsed = task(several, config=[{"type": "download", "parameters": {"files": files}}])
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
        task(evaluator)


def test_a_note_of_an_evaluator_is_no_key():
    assert task({**ONE, "_note": "ours"}).evaluator.checks[0].metric == "compare_text_file"


def test_a_task_that_cannot_be_done_is_worth_1_only_if_the_policy_gave_up():
    infeasible = task({"func": "infeasible"})
    assert [tasks.settled_score(infeasible, gave_up) for gave_up in (False, True)] == [0.0, 1.0]
    assert [tasks.settled_score(task(ONE), gave_up) for gave_up in (False, True)] == [None, 0.0]


def test_a_file_is_found_by_app_and_id_and_errors_name_it(tmp_path: Path):
    folder = tmp_path / "examples" / "os"
    folder.mkdir(parents=True)
    (folder / "t1.json").write_text(json.dumps({"id": "t1", "instruction": "Do it.", "evaluator": ONE}))
    (folder / "t2.json").write_text(json.dumps({"id": "t1", "instruction": "Do it.", "evaluator": ONE}))
    (folder / "t3.json").write_text("{")
    assert tasks.load(tmp_path, "os/t1").task_id == "t1"
    for page, reason in (("os/t2", "the id within is 't1'"), ("os/t3", "not JSON"), ("os/t4", "no OSWorld task os/t4")):
        with pytest.raises(ConfigError, match=reason):
            tasks.load(tmp_path, page)
