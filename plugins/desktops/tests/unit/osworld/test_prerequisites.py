from pathlib import Path
from typing import Any

import pytest

from dart_desktops.osworld.mirror import Mirror
from dart_desktops.osworld.pages import WebPages
from dart_desktops.osworld.placeholder_pages import make_pages
from dart_desktops.osworld.prerequisites import Prerequisites
from plugins.desktops.tests.unit.osworld.parsed_tasks import download, parse_task, step

RULE = {"func": "exact_match", "result": {"type": "vm_command_line", "command": "x"}}


def obstacle(
    folder: Path,
    *config: dict[str, Any],
    evaluator: dict[str, Any] = RULE,
    ours: bool = True,
    pages: WebPages | None = None,
    **further: Any,
) -> str | None:
    metrics, getters = {"exact_match", "compare_image_text"}, {"vm_command_line", "page_info"}
    needs = Prerequisites(metrics, getters, Mirror(folder), ours=ours, pages=pages)
    return needs.obstacle(parse_task(evaluator, *config, **further))


@pytest.mark.parametrize(
    "config, reason",
    [
        (step("login", settings_file="s", platform="p"), "account of a web site"),
        (step("chrome_open_tabs", urls_to_open=["https://a.example"]), "live web"),
        (step("execute", command="echo x | sudo -S apt-get install -y y", shell=True), "by network"),
        (step("launch", command=["/usr/bin/code", "x"]), "VS Code"),
        (step("execute", command=["timedatectl", "status"]), "whole system"),
        (download("https://a.example/x"), "1 of its 1 files"),
    ],
)
def test_a_step_that_cannot_be_carried_out_here_is_an_obstacle(tmp_path: Path, config: dict[str, Any], reason: str):
    assert obstacle(tmp_path) is None
    assert reason in str(obstacle(tmp_path, config))


@pytest.mark.parametrize(
    "change, reason",
    [
        ({"func": "no_such"}, "no metric no_such"),
        ({"func": "compare_image_text"}, "needs easyocr"),
        ({"func": "check_python_file_by_test_suite"}, "policy's program"),
        ({"result": {"type": "page_info"}}, "live web"),
        ({"result": {"type": "vm_command_line", "command": ["timedatectl", "status"]}}, "whole system"),
        ({"result": {"type": "no_such"}}, "no getter no_such"),
    ],
)
def test_an_evaluator_that_cannot_run_here_is_an_obstacle(tmp_path: Path, change: dict[str, Any], reason: str):
    assert reason in str(obstacle(tmp_path, evaluator={**RULE, **change}))


def test_packages_that_a_desktop_has_may_be_installed_by_apt(tmp_path: Path):
    for command in ("echo x | sudo -S apt-get update -y && sudo -S apt-get install unzip -y", "apt install jq xsel"):
        assert obstacle(tmp_path, step("execute", command=command, shell=True)) is None
    for command in ("apt-get install -y expect", "apt install jq && apt install nodejs"):
        assert "by network" in str(obstacle(tmp_path, step("execute", command=command, shell=True)))


def test_a_local_page_and_an_infeasible_task_are_no_obstacle(tmp_path: Path):
    page = step("chrome_open_tabs", urls_to_open=["http://localhost:8000/x", "chrome://settings"])
    assert obstacle(tmp_path, page, evaluator={"func": "infeasible"}) is None
    assert "VS Code" in str(obstacle(tmp_path, related_apps=["vscode"]))


def test_a_remote_machine_may_have_a_network_but_evaluators_are_local(tmp_path: Path):
    steps = [
        step("chrome_open_tabs", urls_to_open=["https://a.example"]),
        step("launch", command=["/usr/bin/code", "x"]),
        step("execute", command=["timedatectl", "status"]),
    ]
    service = {**RULE, "result": {"type": "vm_command_line", "command": ["timedatectl", "status"]}}
    assert obstacle(tmp_path, *steps, evaluator=service, ours=False, related_apps=["vscode"]) is None
    for change, reason in (
        ({"func": "check_python_file_by_test_suite"}, "policy's program"),
        ({"func": "compare_image_text"}, "needs easyocr"),
        ({"result": {"type": "page_info"}}, "live web"),
    ):
        assert reason in str(obstacle(tmp_path, evaluator={**RULE, **change}, ours=False))


def test_with_recorded_pages_tasks_of_the_web_need_their_addresses_only(tmp_path: Path):
    known = step("chrome_open_tabs", urls_to_open=["https://a.example"])
    unknown = step("chrome_open_tabs", urls_to_open=["https://a.example", "https://b.example/x"])
    make_pages(WebPages(tmp_path), [parse_task(RULE, known)])
    pages = WebPages(tmp_path)
    assert obstacle(tmp_path, known, pages=pages) is None
    assert "1 of its 2 web pages" in str(obstacle(tmp_path, unknown, pages=pages))
    reads = {**RULE, "result": {"type": "page_info", "url": "https://a.example/"}}
    assert obstacle(tmp_path, evaluator=reads, pages=pages) is None
    reads["result"] = {"type": "page_info", "url": "https://c.example/"}
    assert "1 of its 1 web pages" in str(obstacle(tmp_path, evaluator=reads, pages=pages))
    assert "live web" in str(obstacle(tmp_path, evaluator=reads, pages=pages, ours=False))


def test_with_vscode_installed_its_tasks_are_played(tmp_path: Path):
    opened = step("launch", command=["code", "/home/user/a.py"])
    task = parse_task(RULE, opened, related_apps=["vscode"])
    for vscode, reason in ((False, "needs VS Code"), (True, None)):
        needs = Prerequisites({"exact_match"}, {"vm_command_line"}, Mirror(tmp_path), vscode=vscode)
        assert needs.obstacle(task) == reason
    store = parse_task(RULE, step("launch", command=["snap"]))
    assert "needs snap" in str(needs.obstacle(store))
