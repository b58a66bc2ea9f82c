"""What an evaluation cannot do whose parser runs a policy's code: a metric of these tests stands for that parser."""

import asyncio
import re
import shutil
import tomllib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from dart_desktops.osworld import sidecar
from dart_desktops.osworld.machine import MachineEndpoint
from dart_streams.errors import ServiceUnavailable
from plugins.desktops.tests import osworld_needs
from plugins.desktops.tests.test_osworld_evaluators import LIMIT_S, SAME, SAYS, FilesOnly, Judge
from tests.answering import answering

pytestmark = [pytest.mark.asyncio(loop_scope="module"), osworld_needs.EVALUATORS]
HOSTILE = tomllib.loads(Path(__file__).with_name("hostile.toml").read_text())
RUN_CODE = """

def run_code(result, code, names=None):
    names = names or {}
    exec(code, names)
    return float(names.get("score", 1.0))
"""


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def judge(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Judge]:
    """The evaluators of a checkout, which take the place of the installed ones, with a metric that runs code."""
    folder = tmp_path_factory.mktemp("checkout")
    packages = next((sidecar.ENVIRONMENT / "lib").glob("python*/site-packages"))
    shutil.copytree(packages / "desktop_env", folder / "desktop_env")
    with (folder / "desktop_env/evaluators/metrics/__init__.py").open("a") as metrics:
        metrics.write(RUN_CODE)
    machine, started = FilesOnly(), sidecar.EvaluatorSidecar(checkout=folder)
    machine.said = "pear"
    assert re.fullmatch(r"checkout [0-9a-f]{8}", (await started.start()).origin)
    async with answering(machine.answer) as url:
        yield Judge(machine, MachineEndpoint(url=url, token="s3cret"), started)
        await started.stop()


async def run(judge: Judge, code: str, limit_s: float = LIMIT_S, **names: Any) -> float:
    """Return the score of an evaluation that runs code, whose error is raised here."""
    options = {"code": HOSTILE.get(code, code), "names": names}
    return await judge.score({"func": "run_code", "result": SAYS["result"], "options": options}, limit_s)


async def test_it_reaches_its_own_machine_only(judge: Judge):
    own = int(judge.endpoint.url.rpartition(":")[2])
    with pytest.raises(sidecar.UnreadableResult, match="HTTPError: HTTP Error 500"):
        await run(judge, "own_machine", PORT=own)
    other = FilesOnly()
    async with answering(other.answer) as url:
        for host, port in (("127.0.0.1", int(url.rpartition(":")[2])), ("10.255.255.1", 80), ("localhost", 22)):
            assert await run(judge, "refused", HOST=host, PORT=port) == 1
    assert not other.asked.is_set()


async def test_machines_with_equal_ports_are_asked_by_their_own_evaluations(judge: Judge):
    other = FilesOnly()
    async with answering(other.answer, host="127.0.0.2", port=int(judge.endpoint.url.rpartition(":")[2])) as url:
        endpoints = [judge.endpoint, MachineEndpoint(url=url)] * 4
        assert await asyncio.gather(*(judge.score(SAYS, endpoint=one) for one in endpoints)) == [1, 0] * 4


async def test_it_sees_programs_and_its_own_files_and_changes_copies_only(judge: Judge):
    judge.machine.files["/home/user/note.txt"] = b"pear\n"
    other = str(judge.cache("other") / "gold.txt")
    for _ in range(2):
        assert await run(judge, "files", OTHER=other, HERE=__file__) == 1
    assert await judge.score(SAME) == await judge.score(SAME, name="other") == 1


async def test_all_evaluations_share_one_bound_on_memory(judge: Judge):
    group = judge.evaluators._group
    if not group.folders:
        pytest.skip("this system gives no control groups")
    limits = [folder / name for folder in group.folders for name in ("memory.max", "memory.limit_in_bytes")]
    assert [int(path.read_text()) for path in limits if path.exists()] == [sidecar.MEMORY_MB * 2**20]
    assert group.bounded


async def test_it_writes_no_result_of_another_and_ends_no_other(judge: Judge):
    process = await judge.process()
    free, judge.machine.free = judge.machine.free, asyncio.Event()
    judge.machine.asked.clear()
    waiting = asyncio.create_task(judge.score({**SAYS, "expected": {"type": "rule", "rules": {"include": ["no"]}}}))
    async with asyncio.timeout(LIMIT_S):
        await judge.machine.asked.wait()
    held, judge.machine.free = judge.machine.free, free
    with pytest.raises(sidecar.EnvironmentFault, match="something else"):
        await run(judge, "results_of_others")
    assert not waiting.done()
    held.set()
    assert await waiting == 0
    assert await judge.process() == process


async def test_it_has_no_rights(judge: Judge):
    assert await run(judge, "rights") == 1


@pytest.mark.parametrize(("code", "reason"), HOSTILE["limits"].items())
async def test_what_a_file_may_cause_is_worth_0(judge: Judge, code: str, reason: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(sidecar, "CPU_SHARE", 0.03)
    with pytest.raises(sidecar.UnreadableResult, match=reason):
        await run(judge, code, 3 * LIMIT_S)
    assert await judge.score(SAYS) == 1


@pytest.mark.parametrize(("code", "reason"), [*HOSTILE["faults"].items(), ("", "unexpected keyword")])
async def test_what_no_file_causes_is_a_fault_of_this_evaluation(judge: Judge, code: str, reason: str, monkeypatch):
    monkeypatch.setattr(sidecar, "GRACE_S", LIMIT_S)  # The evaluators' own deadline comes first.
    evaluator = {"func": "run_code", "result": SAYS["result"], "options": {"code": code} if code else {"colour": 1}}
    process = await judge.process()
    with pytest.raises(sidecar.EnvironmentFault, match=reason) as caught:
        await judge.score(evaluator, 6.0 if "sleep" in code else LIMIT_S)
    assert not isinstance(caught.value, sidecar.UnreadableResult)
    assert await judge.process() == process


async def test_without_confinement_they_do_not_start_and_say_what_to_do(monkeypatch: pytest.MonkeyPatch):
    started = sidecar.EvaluatorSidecar()
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(ServiceUnavailable, match="make desktop"):
        await started.start()
    monkeypatch.undo()
    # Refused in the name space only that this makes.
    refuse = 'echo 0 >/proc/sys/user/max_user_namespaces; exec "$@"'
    refusing = ["unshare", "--user", "--map-root-user", "sh", "-c", refuse, "sh"]
    monkeypatch.setattr(sidecar, "confine_command", lambda command, *_: [*refusing, *command])
    with pytest.raises(ServiceUnavailable, match=r"name spaces are refused here .*: allow user namespaces"):
        await started.start()
    await started.stop()
