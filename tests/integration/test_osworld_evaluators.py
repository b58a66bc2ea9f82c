"""OSWorld's own evaluators in the sidecar, on a machine that has only files, and its faults."""

import asyncio
import os
import shutil
import signal
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import psutil
import pytest
import pytest_asyncio
from aiohttp import web

from dart_streams.errors import ServiceUnavailable
from tests import osworld_needs
from workers.env.backends.osworld import sidecar, tasks
from workers.env.backends.osworld.connection import MachineEndpoint
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


def task(evaluator: dict[str, Any], name: str = "t1") -> tasks.OsworldTask:
    return tasks.parse({"id": name, "evaluator": evaluator}, "os", name)


class FilesOnly:
    """A machine that serves files and a command that prints one, ``delay_s`` after each request."""

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}
        self.said = ""
        self.delay_s = 0.0
        self.status = 200
        self.asked = asyncio.Event()
        self.tokens: set[str] = set()

    async def answer(self, request: web.Request) -> web.Response:
        """Answer any endpoint."""
        self.asked.set()
        self.tokens.add(request.headers.get("Authorization", ""))
        await asyncio.sleep(self.delay_s)
        if self.status != 200:
            return web.Response(status=self.status)
        if request.path == "/file":
            content = self.files.get(str((await request.post())["file_path"]))
            return web.Response(body=content) if content is not None else web.Response(status=404)
        return web.json_response({"status": "success", "output": self.said, "error": "", "returncode": 0})


@pytest_asyncio.fixture
async def machine() -> AsyncIterator[tuple[FilesOnly, MachineEndpoint]]:
    """A machine and its address."""
    served = FilesOnly()
    application = web.Application()
    application.router.add_route("*", "/{path:.*}", served.answer)
    runner = web.AppRunner(application)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    yield served, MachineEndpoint(url=f"http://127.0.0.1:{runner.addresses[0][1]}", token="s3cret")
    await runner.cleanup()


@pytest_asyncio.fixture(loop_scope="function")
async def evaluators() -> AsyncIterator[sidecar.EvaluatorSidecar]:
    started = sidecar.EvaluatorSidecar()
    yield started
    await started.stop()


def cache_of(evaluators: sidecar.EvaluatorSidecar, name: str = "t1") -> Path:
    folder = evaluators.cache / name
    folder.mkdir()
    (folder / "gold.txt").write_text("pear\n")
    return folder


async def test_without_its_environment_it_says_what_to_run(tmp_path: Path):
    started = sidecar.EvaluatorSidecar(tmp_path / "none")
    with pytest.raises(ServiceUnavailable, match="make osworld"):
        await started.start()
    await started.stop()


@osworld_needs.EVALUATORS
async def test_osworlds_own_metrics_score_the_state_of_the_machine(
    machine: tuple[FilesOnly, MachineEndpoint], evaluators: sidecar.EvaluatorSidecar
):
    served, endpoint = machine
    cache = cache_of(evaluators)
    assert {"compare_text_file", "compare_table"} <= (await evaluators.start()).metrics
    assert await evaluators.evaluate(task(SAME), endpoint, cache, LIMIT_S) == 0, "no such file is a wrong answer"
    served.files["/home/user/note.txt"] = b"fig\n"
    assert await evaluators.evaluate(task(SAME), endpoint, cache, LIMIT_S) == 0
    served.files["/home/user/note.txt"] = b"pear\n"
    assert await evaluators.evaluate(task(SAME), endpoint, cache, LIMIT_S) == 1
    assert await evaluators.evaluate(task(SAME), endpoint, cache, LIMIT_S, gave_up=True) == 0
    both = {key: [SAME[key], SAYS[key]] for key in SAME}
    for conjunction, said, score in (("and", "fig", 0), ("or", "fig", 1), ("and", "pear", 1)):
        served.said = said
        assert await evaluators.evaluate(task({**both, "conj": conjunction}), endpoint, cache, LIMIT_S) == score
    assert served.tokens == {"Bearer s3cret"}


@osworld_needs.EVALUATORS
async def test_a_machine_that_does_not_answer_is_a_fault_despite_a_score_of_0(
    machine: tuple[FilesOnly, MachineEndpoint], evaluators: sidecar.EvaluatorSidecar
):
    served, endpoint = machine
    cache = cache_of(evaluators)
    served.status = 401
    with pytest.raises(EnvironmentFault, match="/file: the machine answers 401"):
        await evaluators.evaluate(task(SAME), endpoint, cache, LIMIT_S)
    gone = MachineEndpoint(url="http://127.0.0.1:9")
    with pytest.raises(EnvironmentFault, match="ConnectionError of the machine"):
        await evaluators.evaluate(task(SAME), gone, cache, LIMIT_S)


@osworld_needs.EVALUATORS
async def test_what_is_not_at_hand_is_a_fault_and_never_0(
    machine: tuple[FilesOnly, MachineEndpoint], evaluators: sidecar.EvaluatorSidecar
):
    served, endpoint = machine
    cache = cache_of(evaluators)
    (cache / "gold.txt").unlink()
    served.files["/home/user/note.txt"] = served.files["/home/user/a.wav"] = b"pear\n"
    with pytest.raises(EnvironmentFault, match=r"wants https://a\.example/gold\.txt"):
        await evaluators.evaluate(task(SAME), endpoint, cache, LIMIT_S)
    sound = {"type": "vm_file", "path": "/home/user/a.wav", "dest": "a.wav"}
    with pytest.raises(EnvironmentFault, match="librosa is not installed"):
        await evaluators.evaluate(
            task({"func": "compare_audios", "result": sound, "expected": sound}), endpoint, cache, LIMIT_S
        )
    with pytest.raises(EnvironmentFault, match="no_such_metric"):
        await evaluators.evaluate(task({**SAYS, "func": "no_such_metric"}), endpoint, cache, LIMIT_S)


@osworld_needs.EVALUATORS
async def test_an_evaluation_past_its_deadline_ends_alone(
    machine: tuple[FilesOnly, MachineEndpoint], evaluators: sidecar.EvaluatorSidecar
):
    served, endpoint = machine
    served.said = "pear"
    await evaluators.start()
    assert evaluators.process is not None
    first = evaluators.process.pid
    served.delay_s = 20.0
    with pytest.raises(EnvironmentFault, match="not done at its deadline"):
        await evaluators.evaluate(task(SAYS), endpoint, cache_of(evaluators), 2)
    served.delay_s = 0.0
    several = [
        evaluators.evaluate(task(SAYS, name), endpoint, cache_of(evaluators, name), LIMIT_S) for name in ("a", "b", "c")
    ]
    assert await asyncio.gather(*several) == [1, 1, 1]
    assert evaluators.process.pid == first


@osworld_needs.EVALUATORS
async def test_a_sidecar_that_is_killed_is_a_fault_and_starts_again(
    machine: tuple[FilesOnly, MachineEndpoint], evaluators: sidecar.EvaluatorSidecar
):
    served, endpoint = machine
    served.said = "pear"
    served.delay_s = 60.0
    cache = cache_of(evaluators)
    await evaluators.start()
    assert evaluators.process is not None
    started = psutil.Process(evaluators.process.pid)
    evaluation = asyncio.create_task(evaluators.evaluate(task(SAYS), endpoint, cache, 100))
    async with asyncio.timeout(LIMIT_S):
        await served.asked.wait()
    tree = [started, *started.children(recursive=True)]
    os.killpg(started.pid, signal.SIGKILL)
    with pytest.raises(EnvironmentFault, match="sidecar"):
        await evaluation
    assert not psutil.wait_procs(tree, timeout=60)[1], "an evaluation outlived its sidecar"
    served.delay_s = 0.0
    assert await evaluators.evaluate(task(SAYS), endpoint, cache, LIMIT_S) == 1


@osworld_needs.EVALUATORS
async def test_the_worker_is_not_left_waiting_by_a_sidecar_that_hangs(
    machine: tuple[FilesOnly, MachineEndpoint], evaluators: sidecar.EvaluatorSidecar, monkeypatch: pytest.MonkeyPatch
):
    served, endpoint = machine
    served.said = "pear"
    monkeypatch.setattr(sidecar, "GRACE_S", 1.0)
    cache = cache_of(evaluators)
    await evaluators.start()
    assert evaluators.process is not None
    for process in psutil.Process(evaluators.process.pid).children(recursive=True):
        process.suspend()
    with pytest.raises(EnvironmentFault, match="hangs"):
        await evaluators.evaluate(task(SAYS), endpoint, cache, 1)
    assert await evaluators.evaluate(task(SAYS), endpoint, cache, LIMIT_S) == 1


def exists(pid: int, path: str) -> bool:
    """Return whether a process sees a path."""
    return Path(f"/proc/{pid}/root{path}").exists()


@osworld_needs.EVALUATORS
@pytest.mark.skipif(shutil.which("bwrap") is None, reason="needs bubblewrap: run `make desktop`")
async def test_evaluators_see_programs_and_their_cache_and_nothing_else(evaluators: sidecar.EvaluatorSidecar):
    await evaluators.start()
    assert evaluators.process is not None
    inner = psutil.Process(evaluators.process.pid).children(recursive=True)[-1]
    assert exists(inner.pid, "/usr/bin")
    for hidden in ("/etc/passwd", "/etc/shadow", __file__):
        assert not exists(inner.pid, hidden)
    assert "KAFKA" not in str(inner.environ())
    assert set(inner.environ()) <= {"PATH", "HOME", "LANG", "OPENBLAS_NUM_THREADS", "PWD", "LC_CTYPE"}
