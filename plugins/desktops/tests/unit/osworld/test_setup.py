"""The steps of a task on a machine that serves, over real HTTP, what they ask for."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from aiohttp import web

from dart_desktops.osworld import mirror, setup, steps
from dart_desktops.osworld.machine import Machine, MachineEndpoint
from dart_streams.deadline import Deadline
from tests.answering import answering
from workers.env.environment import EnvironmentFault

VALUES = steps.screen_values(1920, 1080, "secret")
START = f"https://hub.example/datasets/{mirror.DATASET}/resolve/main/os/start.txt"


class Recorder:
    """Answers every endpoint of the contract, and keeps what it was asked."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, Any]] = []
        self.returncodes = [0]

    async def answer(self, request: web.Request) -> web.Response:
        """Answer a request."""
        if request.content_type == "application/json":
            body = await request.json()
        else:
            body = {
                name: value.file.read() if isinstance(value, web.FileField) else value
                for name, value in (await request.post()).items()
            }
        self.asked.append((request.path, body))
        if request.path == "/setup/open_file":
            return web.Response(status=500, text="no window")
        code = self.returncodes.pop(0) if len(self.returncodes) > 1 else self.returncodes[0]
        return web.json_response({"status": "success", "output": "said", "error": "", "returncode": code})


@pytest_asyncio.fixture
async def served() -> AsyncIterator[tuple[Recorder, Machine]]:
    """A recorder and its client."""
    recorder = Recorder()
    async with answering(recorder.answer) as url, Machine(MachineEndpoint(url=url), 60.0) as machine:
        yield recorder, machine


def prepared(machine: Machine, folder: Path, settles: bool = False) -> setup.TaskSetup:
    (folder / "mirror/os").mkdir(parents=True)
    (folder / "mirror/os/start.txt").write_bytes(b"start")
    (folder / "cache").mkdir()
    return setup.TaskSetup(machine, mirror.Mirror(folder / "mirror"), folder / "cache", VALUES, settles)


async def test_steps_run_in_order_with_values_and_their_output_is_kept(
    served: tuple[Recorder, Machine], tmp_path: Path
):
    recorder, machine = served
    wanted = (
        steps.Download(files=[steps.DownloadedFile(START, "/home/user/start.txt")]),
        steps.Launch(command="vlc --loop"),
        steps.ExecuteCommand(command="echo {CLIENT_PASSWORD}", shell="true", stdout="out"),
        steps.ActivateWindow(window_name="x", strict=True),
    )
    await prepared(machine, tmp_path).carry_out(wanted, Deadline(60))
    assert recorder.asked == [
        ("/setup/upload", {"file_path": "/home/user/start.txt", "file_data": b"start"}),
        ("/setup/launch", {"command": ["vlc", "--loop"], "shell": False}),
        ("/execute", {"command": "echo secret", "shell": True}),
        ("/setup/activate_window", {"window_name": "x", "strict": True, "by_class": False}),
    ]
    assert (tmp_path / "cache/out").read_text() == "said"


async def test_a_command_is_repeated_until_it_ends_as_the_task_wants(served: tuple[Recorder, Machine], tmp_path: Path):
    recorder, machine = served
    recorder.returncodes = [1, 1, 0]
    step = steps.RunCommand(command=["true"], until={"returncode": 0})
    await prepared(machine, tmp_path).carry_out([step], Deadline(60))
    assert len(recorder.asked) == 3


@pytest.mark.parametrize(
    "step, passed_s, reason",
    [
        (steps.OpenFile(path="/x.odt"), 0.0, r"step 2 of 2 \(open\): .*no window"),
        (
            steps.Download(files=[steps.DownloadedFile("https://a.example/x", "/x")]),
            0.0,
            r"\(download\): .*not in the mirror",
        ),
        (steps.SignIn(settings_file="s", platform="p"), 0.0, r"\(login\) needs an account"),
        (steps.ExecuteCommand(command=["x"], stdout="../out"), 0.0, r"\(execute\): .*outside of the evaluator's cache"),
        (steps.Sleep(seconds=3600), 59.5, r"\(sleep\): not done in time"),
    ],
)
async def test_a_step_that_fails_is_a_fault_that_names_it(
    served: tuple[Recorder, Machine], tmp_path: Path, step: steps.Step, passed_s: float, reason: str
):
    deadline = Deadline(60.0, iter([0.0, 0.0, passed_s]).__next__)
    with pytest.raises(EnvironmentFault, match=reason):
        await prepared(served[1], tmp_path).carry_out([steps.Launch(command="x"), step], deadline)


async def test_a_pause_ends_once_the_machine_is_idle(served, tmp_path, monkeypatch):
    limits: list[float] = []

    async def wait_idle(_: Machine, limit_s: float) -> bool:
        limits.append(limit_s)
        return True

    monkeypatch.setattr(setup, "wait_idle", wait_idle)
    wanted = [steps.Sleep(seconds=3600), steps.CloseWindow(window_name="x")]
    await prepared(served[1], tmp_path, settles=True).carry_out(wanted, Deadline(60))
    assert limits[0] > 3000
    assert limits[1] == setup.REST_S
