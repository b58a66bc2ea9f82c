"""OSWorld's own evaluators in the sidecar, on a machine that has only files, and its faults."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import psutil
import pytest
import pytest_asyncio
from aiohttp import web

from dart_desktops.osworld import placeholder_mirror, sidecar, tasks
from dart_desktops.osworld.machine import MachineEndpoint
from dart_desktops.osworld.mirror import Mirror
from dart_streams.errors import ServiceUnavailable
from plugins.desktops.tests import osworld_needs
from tests.answering import answering
from workers.env.environment import EnvironmentFault

LIMIT_S = 120.0
NOTE = {"type": "vm_file", "path": "/home/user/note.txt", "dest": "note.txt"}
SAME = {
    "func": "compare_text_file",
    "result": NOTE,
    "expected": {"type": "cloud_file", "path": "https://a.example/gold.txt", "dest": "gold.txt"},
}
SAYS = {
    "func": "check_include_exclude",
    "result": {"type": "vm_command_line", "command": ["cat", "note"]},
    "expected": {"type": "rule", "rules": {"include": ["pear"], "exclude": ["fig"]}},
}


class FilesOnly:
    """A machine that serves files and a command that prints one, once it is ``free``."""

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}
        self.said = ""
        self.free = asyncio.Event()
        self.free.set()
        self.status = 200
        self.asked = asyncio.Event()
        self.tokens: set[str] = set()

    async def answer(self, request: web.Request) -> web.Response:
        """Answer any endpoint."""
        self.asked.set()
        self.tokens.add(request.headers.get("Authorization", ""))
        await self.free.wait()
        if self.status != 200:
            return web.Response(status=self.status)
        if request.path == "/file":
            content = self.files.get(str((await request.post())["file_path"]))
            return web.Response(body=content) if content is not None else web.Response(status=404)
        return web.json_response(
            {"status": "success", "AT": self.said, "output": self.said, "error": "", "returncode": 0}
        )


class Judge:
    """Evaluators, and the machine of files whose state they score."""

    def __init__(self, machine: FilesOnly, endpoint: MachineEndpoint, evaluators: sidecar.EvaluatorSidecar) -> None:
        self.machine = machine
        self.endpoint = endpoint
        self.evaluators = evaluators

    def cache(self, name: str) -> Path:
        """Return the cache of a task, which has the right file at first."""
        folder = self.evaluators.cache / name
        if not folder.exists():
            folder.mkdir()
            (folder / "gold.txt").write_text("pear\n")
        return folder

    async def score(
        self,
        evaluator: dict[str, Any],
        limit_s: float = LIMIT_S,
        name: str = "t1",
        endpoint: MachineEndpoint | None = None,
    ) -> float:
        task = tasks.parse({"id": name, "evaluator": evaluator}, "os", name)
        return await self.evaluators.evaluate(task, endpoint or self.endpoint, self.cache(name), limit_s)

    async def process(self) -> psutil.Process:
        """Return the process of the evaluators, started."""
        await self.evaluators.start()
        assert self.evaluators.process is not None
        return psutil.Process(self.evaluators.process.pid)


@pytest_asyncio.fixture(loop_scope="function")
async def judge() -> AsyncIterator[Judge]:
    machine, started = FilesOnly(), sidecar.EvaluatorSidecar()
    async with answering(machine.answer) as url:
        yield Judge(machine, MachineEndpoint(url=url, token="s3cret"), started)
        await started.stop()


async def test_without_its_environment_it_says_what_to_run(tmp_path: Path):
    started = sidecar.EvaluatorSidecar(tmp_path / "none")
    with pytest.raises(ServiceUnavailable, match="make osworld"):
        await started.start()
    await started.stop()


@osworld_needs.EVALUATORS
async def test_osworlds_own_metrics_score_the_state_of_the_machine(judge: Judge):
    assert {"compare_text_file", "compare_table"} <= (await judge.evaluators.start()).metrics
    assert await judge.score(SAME) == 0, "no such file is a wrong answer"
    judge.machine.files["/home/user/note.txt"] = b"fig\n"
    assert await judge.score(SAME) == 0
    judge.machine.files["/home/user/note.txt"] = b"pear\n"
    assert await judge.score(SAME) == 1
    both = {key: [SAME[key], SAYS[key]] for key in SAME}
    for conjunction, said, score in (("and", "fig", 0), ("or", "fig", 1), ("and", "pear", 1)):
        judge.machine.said = said
        assert await judge.score({**both, "conj": conjunction}) == score
    assert judge.machine.tokens == {"Bearer s3cret"}


@osworld_needs.EVALUATORS
async def test_a_machine_that_does_not_answer_is_a_fault_despite_a_score_of_0(judge: Judge):
    judge.machine.status = 401
    with pytest.raises(EnvironmentFault, match="/file: the machine answers 401"):
        await judge.score(SAME)
    judge.endpoint = MachineEndpoint(url="http://127.0.0.1:9")
    with pytest.raises(EnvironmentFault, match="ConnectionError of the machine"):
        await judge.score(SAME)


@osworld_needs.EVALUATORS
async def test_what_is_not_at_hand_is_a_fault_and_never_0(judge: Judge):
    (judge.cache("t1") / "gold.txt").unlink()
    judge.machine.files["/home/user/note.txt"] = judge.machine.files["/home/user/a.png"] = b"pear\n"
    with pytest.raises(EnvironmentFault, match=r"wants https://a\.example/gold\.txt"):
        await judge.score(SAME)
    picture = {"type": "vm_file", "path": "/home/user/a.png", "dest": "a.png"}
    words = {"type": "rule", "rules": {"type": "text", "text": ["pear"]}}
    with pytest.raises(EnvironmentFault, match="easyocr is not installed"):
        await judge.score({"func": "compare_image_text", "result": picture, "expected": words})
    with pytest.raises(EnvironmentFault, match="no_such_metric"):
        await judge.score({**SAYS, "func": "no_such_metric"})


RULES = {"pivot_table": {"pivot_props": ["row_fields", "data_fields"]}, "chart": {"chart_props": ["type", "title"]}}
PLACEHOLDERS = {
    ".docx": ("compare_docx_tables", "compare_docx_images", "compare_references"),
    ".xlsx": tuple(RULES),
    ".png": ("compare_images",),
}


@osworld_needs.EVALUATORS
@pytest.mark.parametrize(("kind", "metric"), [(kind, name) for kind, names in PLACEHOLDERS.items() for name in names])
async def test_a_finished_placeholder_differs_in_what_its_metric_compares(
    judge: Judge, tmp_path: Path, kind: str, metric: str
):
    names = ("start", "gold")
    urls = {name: f"https://a.example/{name}{kind}" for name in names}
    place = f"/home/user/start{kind}"
    evaluator: dict[str, Any] = {
        "func": metric,
        "result": {"type": "vm_file", "path": place, "dest": f"start{kind}"},
        "expected": {"type": "cloud_file", "path": urls["gold"], "dest": f"gold{kind}"},
    }
    if metric in RULES:
        rule = {"type": metric, "sheet_idx0": "RNSheet2", "sheet_idx1": "ENSheet2", **RULES[metric]}
        evaluator.update(func="compare_table", options={"rules": [rule]})
    config = [{"type": "download", "parameters": {"files": [{"url": urls["start"], "path": place}]}}]
    task = tasks.parse({"evaluator": evaluator, "config": config}, "os", "t1")
    made = Mirror(tmp_path)
    assert placeholder_mirror.fill(made, [task]) == 2
    (judge.cache("t1") / f"gold{kind}").write_bytes(made.read(urls["gold"]))
    scores = []
    for name in names:
        judge.machine.files[place] = made.read(urls[name])
        scores.append(await judge.evaluators.evaluate(task, judge.endpoint, judge.cache("t1"), LIMIT_S))
    assert scores[1] > 0.99
    assert scores[0] < 0.99 if metric == "compare_images" else scores[0] == 0


@osworld_needs.EVALUATORS
async def test_a_sidecar_that_is_killed_is_a_fault_and_starts_again(judge: Judge):
    judge.machine.said = "pear"
    judge.machine.free.clear()
    started = await judge.process()
    evaluation = asyncio.create_task(judge.score(SAYS, 100))
    async with asyncio.timeout(LIMIT_S):
        await judge.machine.asked.wait()
    tree = [started, *started.children(recursive=True)]
    os.killpg(started.pid, signal.SIGKILL)
    with pytest.raises(EnvironmentFault, match="sidecar"):
        await evaluation
    assert not psutil.wait_procs(tree, timeout=60)[1], "an evaluation outlived its sidecar"
    judge.machine.free.set()
    assert await judge.score(SAYS) == 1


@osworld_needs.EVALUATORS
async def test_the_worker_is_not_left_waiting_by_a_sidecar_that_hangs(judge: Judge, monkeypatch: pytest.MonkeyPatch):
    judge.machine.said = "pear"
    monkeypatch.setattr(sidecar, "GRACE_S", 1.0)
    for process in (await judge.process()).children(recursive=True):
        process.suspend()
    with pytest.raises(EnvironmentFault, match="hangs"):
        await judge.score(SAYS, 1)
    assert await judge.score(SAYS) == 1
