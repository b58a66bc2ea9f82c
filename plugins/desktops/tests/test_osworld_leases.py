"""Leased desktops: the files of OSWorld's image with ``as_osworld``, and their weight during long calls."""

import asyncio
import contextlib
import io
import os
import shutil
import socket
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from aiohttp.test_utils import TestClient, TestServer
from PIL import Image

from dart_desktops.osworld import osworld_session, panel
from dart_desktops.osworld.machine import FileMissing, Machine
from dart_desktops.osworld.mirror import Mirror
from dart_desktops.osworld.osworld_session import HOME_FILES, OsworldTaskSession, TaskResources
from dart_desktops.osworld.settling import wait_idle
from dart_desktops.osworld.sidecar import EvaluatorSidecar
from dart_desktops.server.server import LeaseServer
from dart_desktops.server.slots import Slot
from dart_streams.background import cancel_tasks
from dart_streams.deadline import Deadline
from plugins.desktops.tests.served_desktops import Served, served
from plugins.desktops.tests.unit.osworld.parsed_tasks import INFEASIBLE, parse_task, step
from tests.waiting import until

pytestmark = pytest.mark.asyncio(loop_scope="module")
needs_terminal = pytest.mark.skipif(shutil.which("gnome-terminal") is None, reason="needs gnome-terminal")
CPU_GROUPS = Path("/sys/fs/cgroup/cpu")
needs_groups = pytest.mark.skipif(not os.access(CPU_GROUPS, os.W_OK), reason="needs control groups of version 1")
needs_dock = pytest.mark.skipif(
    shutil.which("tint2") is None or not Path(panel.ICONS[-1].icon).exists(),
    reason="needs tint2 and the applications: run `make osworld`",
)
needs_applications = pytest.mark.skipif(
    not all(shutil.which(program) for program in ("nautilus", "mousepad", "lodraw")), reason="run `make osworld`"
)
FIRST_ICON_Y, ICON_STEP = 57, 54
TERMINAL = "import pyautogui; pyautogui.hotkey('ctrl', 'alt', 't')"
LIST_WINDOWS = ["wmctrl", "-lx"]
COMPUTING = "timeout 3 sh -c 'while :; do :; done'"


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def desktops(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Served]:
    async with served(tmp_path_factory.mktemp("served"), (1280, 720), slots=1, lease_s=600.0) as running:
        yield running


async def test_only_a_lease_as_osworld_has_the_files_of_its_image(desktops):
    async with desktops.machine(as_osworld=True) as machine:
        assert {path: await machine.file(path) for path in HOME_FILES} == HOME_FILES
    async with desktops.machine() as machine:
        with pytest.raises(FileMissing):
            await machine.file("/home/user/.config/vlc/vlcrc")


async def test_the_first_screen_comes_after_the_start_of_an_application(desktops, tmp_path):
    start = step("launch", command=f"{COMPUTING}; touch ~/started", shell=True)
    for ours in (True, False):
        shared = TaskResources(Mirror(tmp_path), EvaluatorSidecar(), ours)
        session = OsworldTaskSession(parse_task(INFEASIBLE, start), shared)
        async with contextlib.AsyncExitStack() as stack:
            stack.push_async_callback(session.close)
            machine = await stack.enter_async_context(desktops.machine())
            await session.set_up(machine, Deadline(240.0))
            assert not (await machine.execute(["test", "-e", "/home/user/started"]))["returncode"], f"ours: {ours}"


async def test_a_system_that_is_never_idle_is_used_within_the_time_limit(desktops, tmp_path, monkeypatch):
    monkeypatch.setattr(osworld_session, "REST_MARGIN_S", 50.0)
    endless = step("launch", command="while :; do :; done", shell=True)
    session = OsworldTaskSession(
        parse_task(INFEASIBLE, endless), TaskResources(Mirror(tmp_path), EvaluatorSidecar(), False)
    )
    async with contextlib.AsyncExitStack() as stack:
        stack.push_async_callback(session.close)
        machine = await stack.enter_async_context(desktops.machine())
        await session.set_up(machine, Deadline(55.0))


@needs_applications
async def test_files_that_several_applications_take_have_a_default(desktops):
    """The host's other applications decided before: a PDF opened in GIMP, which asks first, a folder in Portfolio."""
    wanted = {
        "application/pdf": "libreoffice-draw.desktop",
        "inode/directory": "org.gnome.Nautilus.desktop",
        "text/plain": "org.xfce.mousepad.desktop",
    }
    async with desktops.machine(as_osworld=True) as machine:
        found = {kind: (await machine.execute(["xdg-mime", "query", "default", kind]))["output"] for kind in wanted}
    assert {kind: name.strip() for kind, name in found.items()} == wanted


async def until_terminal(machine: Machine) -> None:
    async def is_open() -> bool:
        return "terminal" in (await machine.execute(LIST_WINDOWS))["output"].lower()

    await until(is_open)


@needs_terminal
async def test_the_key_of_osworlds_image_opens_a_terminal(desktops):
    async with desktops.machine(as_osworld=True) as machine:
        await wait_idle(machine, 60.0)
        assert "terminal" not in (await machine.execute(LIST_WINDOWS))["output"].lower()
        await machine.execute(["python", "-c", TERMINAL])
        await until_terminal(machine)


@needs_dock
@needs_terminal
async def test_an_empty_desktop_has_a_panel_and_a_dock_that_starts_programs(desktops):
    async with desktops.machine(as_osworld=True) as machine:
        await wait_idle(machine, 60.0)
        screen = Image.open(io.BytesIO(await machine.screenshot())).convert("RGB")
        places = {"bar": (1200, 10), "dock": (30, 700), "background": (900, 400)}
        found = {name: "#{:02x}{:02x}{:02x}".format(*screen.getpixel(place)) for name, place in places.items()}
        assert found == {"bar": "#1d1d1d", "dock": "#2b2429", "background": "#5e2750"}
        assert len(screen.crop((600, 0, 680, 27)).getcolors()) > 2, "the clock"
        assert "tint2" in (await machine.execute(LIST_WINDOWS))["output"]
        look = "; ".join(f"[ -e {icon.icon} ] && echo shown" for icon in panel.ICONS)
        icons = (await machine.execute(look, shell=True))["output"].split()
        click = f"import pyautogui; pyautogui.click(34, {FIRST_ICON_Y + ICON_STEP * (len(icons) - 1)})"
        await machine.execute(["python", "-c", click])
        await until_terminal(machine)
        name = ". /etc/os-release; echo $NAME"
        assert (await machine.execute(name, shell=True))["output"].strip()


async def test_a_desktop_that_takes_no_files_is_not_leased():
    slot = Slot(0, (320, 240), 60.0, asyncio.Semaphore(1))
    used = []

    async def is_new() -> bool:
        return slot.is_ready and slot.sandbox not in used

    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))  # Bound, and nothing listens.
        server = LeaseServer([slot], [f"http://127.0.0.1:{unused.getsockname()[1]}"], "", 60.0)
        keeping = asyncio.create_task(slot.run())
        try:
            async with TestClient(TestServer(server.application())) as client:
                await until(is_new)
                used.append(slot.sandbox)
                answer = await client.post("/leases", json={"as_osworld": True})
                assert (answer.status, server.leases.of_slot(0)) == (503, None)
                assert "/setup/upload" in await answer.text()
                await until(is_new)
                assert (await client.post("/leases", json={})).status == 201, "a plain one needs no files"
        finally:
            await cancel_tasks(keeping)


@needs_groups
async def test_a_long_call_has_a_higher_weight_until_its_end(desktops):
    async with desktops.machine() as machine:

        def weights() -> set[str]:
            groups = CPU_GROUPS.glob(f"dart-desktop-{desktops.process.pid}-*/cpu.shares")
            return {group.read_text().strip() for group in groups}

        usual = weights()

        async def is_raised() -> bool:
            return weights() != usual

        async def is_usual() -> bool:
            return weights() == usual

        call = asyncio.create_task(machine.execute("until [ -e /tmp/go ]; do sleep 0.2; done", shell=True))
        await until(is_raised)
        await machine.upload("/tmp/go", b"")
        assert (await call)["returncode"] == 0
        await until(is_usual)
