"""A fault in mid-episode of an OSWorld task ends the episode without a reward, and leaves nothing behind."""

import asyncio
import contextlib
import os
import shutil
import signal
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
import pytest_asyncio

from dart_desktops.desktop import limits
from dart_streams.actions import Click, Finished, Wait
from dart_streams.actions import format as text_of
from plugins.desktops.tests import osworld_needs
from plugins.desktops.tests.osworld import click_tasks
from plugins.desktops.tests.served_desktops import Served, served
from tests.integration.env_harness import Harness, number_of, order, process, serving
from tests.processes import command_of
from tests.waiting import until
from topics.action_requests import ActionRequest

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(900), osworld_needs.EVALUATORS]
BOUND_S = 400.0
SOLVED = (Click(*click_tasks.GO), Finished(""))
PARTS = {"desktop": "bwrap", "X server": "Xvfb", "HTTP server": "dart_desktops.desktop.guest"}
INSIDE = {"full tmpfs": "fill", "fork bomb": "bomb"}
FAULTS = [*PARTS, "sidecar", *INSIDE]


class Running:
    """A server of one desktop and a worker of one slot, with all their temporary files in ``folder``."""

    def __init__(self, desktops: Served, worker_pid: int, harness: Harness, folder: Path) -> None:
        self.desktops = desktops
        self.worker = psutil.Process(worker_pid)
        self.server = psutil.Process(desktops.process.pid)
        self.harness = harness
        self.folder = folder
        self.orders = 0
        self.plays: dict[int, Callable[[ActionRequest], str]] = {}

    def answer(self, request: ActionRequest) -> str:
        return self.plays[number_of(request)](request)

    async def play(self, name: str, answer: Callable[[ActionRequest], str]) -> Any:
        """Order an episode, and return its end."""
        number, self.orders = self.orders, self.orders + 1
        self.plays[number] = answer
        await self.harness.order(order(number, f"osworld/os/{name}#0", max_steps=5))
        async with asyncio.timeout(BOUND_S), self.harness.changed:
            await self.harness.changed.wait_for(lambda: self.harness.ended[f"o{number}"])
        [last] = self.harness.ended[f"o{number}"]
        return last.end

    async def solve(self) -> tuple[str, float | None]:
        """Play an episode that is solved."""
        end = await self.play("press", lambda request: text_of(SOLVED[min(request.step, 1)]))
        return end.kind, end.reward

    async def at_rest(self) -> None:
        """Wait until a fresh desktop is ready, and nothing of those before is left."""

        async def rests() -> bool:
            return [slot["state"] for slot in (await self.desktops.ask("GET"))[1]] == ["ready"] and not self.left()

        try:
            await until(rests, BOUND_S)
        except AssertionError:
            raise AssertionError(f"there is still {self.left()}") from None

    def left(self) -> list[str]:
        """Return what there is besides one desktop, and a worker with at most one sidecar that evaluates nothing."""
        tops = [child for child in self.server.children() if command_of(child)]  # A zombie has none.
        folders = list(self.folder.glob(f"{limits.PREFIX}*"))
        caches = [path for path in folders_in(self.folder) if path.parent.name.startswith("dart-evaluators-")]
        groups = [path.name for path in own_groups(self.server.pid)]
        evaluating = [child for top in self.worker.children() for child in below(top)[2:]]
        found = {
            "processes": tops[1:],
            "folders": folders[1:],
            "evaluators' files": caches,
            "control groups": sorted(set(groups))[1:],
            "sockets": [path for path in sockets(self.folder) if not Path(path).exists()],
            "mounts": [line for line in Path("/proc/mounts").read_text().splitlines() if str(self.folder) in line],
            "evaluations": evaluating,
        }
        return [f"{name}: {what}" for name, what in found.items() if what]


def remains(folder: Path, pid: int) -> list[str]:
    """Return what there is in the folder, and of the server's sockets and control groups."""
    return [*map(str, folder.iterdir()), *sockets(folder), *map(str, own_groups(pid))]


def own_groups(pid: int) -> Iterator[Path]:
    """Yield the control groups that a process has made."""
    yield from (path for path in folders_in(limits.ROOT) if path.name.startswith(f"{limits.PREFIX}{pid}-"))


def folders_in(folder: Path) -> Iterator[Path]:
    """Yield the folders below one, from which others are removed meanwhile, as Path.glob does not permit."""
    yield from (Path(path, name) for path, names, _ in os.walk(folder) for name in names)


def below(process: psutil.Process) -> list[psutil.Process]:
    with contextlib.suppress(psutil.NoSuchProcess):
        return process.children(recursive=True)
    return []


def sockets(folder: Path) -> list[str]:
    """Return the paths of the Unix sockets in a folder that a process has."""
    return [line.split()[-1] for line in Path("/proc/net/unix").read_text().splitlines() if str(folder) in line]


@pytest.fixture(scope="module")
def temporary() -> Iterator[Path]:
    """A folder in which servers and workers make their temporary files; its path is short enough for sockets."""
    folder, before = Path(tempfile.mkdtemp(prefix="dart-faults-")), os.environ.get("TMPDIR")
    folder.chmod(0o755)
    os.environ["TMPDIR"] = str(folder)
    yield folder
    if before is None:
        del os.environ["TMPDIR"]
    else:
        os.environ["TMPDIR"] = before
    shutil.rmtree(folder)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def running(services: Any, temporary: Path, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Running]:
    """Both processes; at the end they are ended, and nothing is left of either."""
    folder = tmp_path_factory.mktemp("faults")
    file = click_tasks.write(folder, *click_tasks.TASKS, max_steps=5)
    async with contextlib.AsyncExitStack() as stack:
        desktops = await stack.enter_async_context(served(folder, click_tasks.SIZE, slots=1))
        config = services.config(
            env=click_tasks.leased(desktops, folder, slots=1),
            tasks={"file": str(file)},
            run={"drain_s": 20.0, "state_dir": str(folder)},
        )
        harness = Harness(config, lambda request: found.answer(request))
        await stack.enter_async_context(serving(harness))
        worker = stack.enter_context(process(config, folder, log=folder / "env-0.log"))
        found = Running(desktops, worker.pid, harness, temporary)
        yield found
        trees = [child for one in (found.worker, found.server) for child in one.children(recursive=True)]
        worker.send_signal(signal.SIGTERM)
        assert await asyncio.to_thread(worker.wait, BOUND_S) == 0
    assert not psutil.wait_procs(trees, timeout=60)[1]
    assert not remains(temporary, found.server.pid)


def kill(top: psutil.Process, name: str) -> int:
    """Kill the processes below ``top`` that a name stands for; return how many."""
    killed = 0
    for child in top.children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):
            named = child.name() == name or f" {name} " in f"{command_of(child)} "
            # The sandbox's outermost process, and of a server's command line only the processes that serve.
            if named and (child.ppid() == top.pid if name == "bwrap" else child.name() != "bwrap"):
                child.kill()
                killed += 1
    return killed


async def evaluation(worker: psutil.Process) -> psutil.Process:
    """Return the sidecar's outermost process, once it evaluates."""
    found: list[psutil.Process] = []

    async def evaluates() -> bool:
        for top in worker.children():
            with contextlib.suppress(psutil.NoSuchProcess):
                if " -I -B -c " in command_of(top) and len(top.children(recursive=True)) > 2:
                    found.append(top)
        return bool(found)

    await until(evaluates, BOUND_S)
    return found[0]


@pytest.mark.parametrize("fault", FAULTS)
async def test_a_fault_ends_its_episode_without_a_reward_and_leaves_nothing(running, fault):
    if fault == "fork bomb" and not list(own_groups(running.server.pid)):
        pytest.skip("no control group may be made here: only folders are bounded")
    assert await running.solve() == ("success", 1.0)
    await running.at_rest()
    killed: list[int] = []

    def strike(request: ActionRequest) -> str:
        if request.step == 0 and fault in PARTS:
            killed.append(kill(running.server, PARTS[fault]))
        return text_of(Click(*click_tasks.GO) if request.step == 0 else Finished(""))

    name = "slow" if fault == "sidecar" else INSIDE.get(fault, "press")
    episode = asyncio.create_task(running.play(name, strike))
    if fault == "sidecar":
        top = await evaluation(running.worker)
        top.kill()
    end = await episode
    assert (end.kind, end.reward) == ("env_error", None), end
    assert end.reason
    assert all(killed) and len(killed) == (fault in PARTS)
    await running.at_rest()
    assert await running.solve() == ("success", 1.0), f"the slot is as before; {fault} was: {end.reason}"
    await running.at_rest()


async def test_waiting_is_no_fault(running):
    """This control plays without a fault."""
    actions = (Wait(), *SOLVED)
    end = await running.play("press", lambda request: text_of(actions[min(request.step, 2)]))
    assert (end.kind, end.reward) == ("success", 1.0)
