"""Tasks of OSWorld as their files have them, with few steps."""

from typing import Any

from dart_desktops.osworld import tasks

INFEASIBLE = {"func": "infeasible"}


def parse_task(
    evaluator: dict[str, Any] = INFEASIBLE, *steps: dict[str, Any], app: str = "os", task_id: str = "t1", **more: Any
) -> tasks.OsworldTask:
    """Return a task with an evaluator and the steps before it."""
    return tasks.parse({"instruction": " Do it. ", "evaluator": evaluator, "config": list(steps), **more}, app, task_id)


def comparison(metric: str, path: str, getter: str = tasks.CLOUD) -> dict[str, Any]:
    """Return an evaluator that compares a file of the machine with a published one."""
    result = {"type": "vm_file", "path": "/home/user/a.txt", "dest": "a.txt"}
    return {"func": metric, "result": result, "expected": {"type": getter, "path": path, "dest": "gold.txt"}}


def step(kind: str, **parameters: Any) -> dict[str, Any]:
    """Return a step."""
    return {"type": kind, "parameters": parameters}


def download(*urls: str) -> dict[str, Any]:
    """Return a step that copies files to the machine."""
    return step("download", files=[{"url": url, "path": f"/home/user/{url.rpartition('/')[2]}"} for url in urls])
