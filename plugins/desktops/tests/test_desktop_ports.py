"""Ports of a leased desktop: DevTools of its browser and VLC are reached by OSWorld's own calls, and a film is kept."""

import asyncio
import base64
import contextlib
import shutil
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path
from xml.etree import ElementTree

import aiohttp
import pytest
import pytest_asyncio

from dart_desktops.osworld import browser_setup
from dart_desktops.osworld.browser_devtools import DevToolsClient
from dart_desktops.osworld.machine import Machine, run_command
from dart_desktops.osworld.oracles import end_program
from dart_desktops.osworld.settling import wait_idle
from plugins.desktops.tests.served_desktops import IDLE_S, Served, served
from tests.waiting import until
from workers.env.backends.connection import StatusFault
from workers.env.environment import EnvironmentFault

pytestmark = pytest.mark.asyncio(loop_scope="module")
needs_vlc = pytest.mark.skipif(shutil.which("vlc") is None, reason="needs vlc: run `make osworld`")
needs_ffmpeg = pytest.mark.skipif(shutil.which("ffmpeg") is None, reason="needs ffmpeg: run `make osworld`")
needs_chromium = pytest.mark.skipif(not Path("/usr/lib/chromium/chromium").exists(), reason="needs chromium")
BROWSER = "google-chrome --remote-debugging-port=1337 about:blank"
PAGE_URL = "file:///home/user/page.html"
PAGE = b"""<title>loading</title><script>alert("wait")</script>
<body onload="document.title = 'loaded'" onkeydown="document.title = 'key ' + event.key">
<img src="http://localhost:8765/late.png">"""
SOCKET = "socat tcp-listen:9222,fork tcp:localhost:1337"
PASSWORD = {"Authorization": f"Basic {base64.b64encode(b':password').decode()}"}
LISTENER = """python3 -c 'import socketserver
open("/proc/self/comm", "w").write("listener")
class Handler(socketserver.BaseRequestHandler):
    def handle(self):
        {handle}
socketserver.TCPServer.allow_reuse_address = True
socketserver.ThreadingTCPServer(("", 8080), Handler).serve_forever()'"""
ECHO = LISTENER.format(handle="while data := self.request.recv(65536): self.request.sendall(data)")
FILM_S = 3
FRAGMENTS = "$(grep -ao moof /tmp/osworld_recording.mp4 | wc -l)"
STRANGER = 65534


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def desktops(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Served]:
    async with served(tmp_path_factory.mktemp("served"), (801, 601), slots=2, lease_s=600.0) as running:
        yield running


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def machine(desktops: Served) -> AsyncIterator[Machine]:
    async with desktops.machine() as client:
        client.call_timeout_s = 120.0
        yield client


async def read_closed(port: int) -> bytes:
    """Return what a port answers to a request before it closes the connection."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"GET / HTTP/1.0\r\n\r\n")
    async with asyncio.timeout(60):
        try:
            return await reader.read()
        except ConnectionResetError:
            return b""
        finally:
            writer.close()


async def test_a_port_on_which_nothing_listens_closes_the_connection(machine):
    assert await read_closed(machine.endpoint.vlc_port) == b""
    assert machine.endpoint.chromium_port != machine.endpoint.vlc_port


async def test_bytes_go_both_ways_in_parallel(machine):
    await machine.launch(ECHO, shell=True)
    connect = "import socket; socket.create_connection(('127.0.0.1', 8080))"
    tried = f'until python3 -c "{connect}" 2>/dev/null; do sleep 0.1; done'
    await run_command(machine, tried, "nothing listens", shell=True)

    async def echoed(content: bytes) -> bytes:
        reader, writer = await asyncio.open_connection("127.0.0.1", machine.endpoint.vlc_port)
        try:
            writer.write(content)
            return await reader.readexactly(len(content))
        finally:
            writer.close()

    contents = [bytes([number]) * 300_000 for number in range(8)]
    async with asyncio.timeout(120):
        assert await asyncio.gather(*map(echoed, contents)) == contents
    await run_command(machine, end_program("listener"), "it does not end", shell=True)


@needs_chromium
async def test_pages_are_loaded_have_the_keyboard_and_speak_devtools(machine):
    await machine.launch(BROWSER, shell=True)
    await machine.launch(SOCKET, shell=True)
    await machine.launch("socat tcp-listen:8765,fork,reuseaddr system:'sleep 2'", shell=True)
    await machine.upload("/home/user/page.html", PAGE)
    await wait_idle(machine, IDLE_S)
    await browser_setup.open_tabs(machine.endpoint, [PAGE_URL])
    async with DevToolsClient(machine.endpoint) as client:
        (tab,) = await client.list_tabs()
    assert tab.url == PAGE_URL
    async with aiohttp.ClientSession() as session, session.ws_connect(f"{client.url}/devtools/page/{tab.id}") as socket:

        async def evaluate(expression: str) -> str:
            call = {"id": 1, "method": "Runtime.evaluate", "params": {"expression": expression}}
            await socket.send_json(call)
            return (await socket.receive_json(timeout=60))["result"]["result"]["value"]

        assert await evaluate("document.title") == "loaded"
        await machine.execute(["python3", "-c", "import pyautogui; pyautogui.press('a')"])

        async def pressed() -> bool:
            return await evaluate("document.title") == "key a"

        await until(pressed)


@needs_chromium
async def test_the_browser_has_the_names_by_which_tasks_end_and_read_it(desktops):
    async with desktops.machine() as machine:
        machine.call_timeout_s = 120.0
        await machine.launch(BROWSER, shell=True)
        await machine.launch(SOCKET, shell=True)
        await wait_idle(machine, IDLE_S)
        async with DevToolsClient(machine.endpoint) as client:
            await client.tabs_when_up()

        async def address() -> str:
            tree = ElementTree.fromstring(await machine.accessibility())
            bars = tree.findall("application[@name='Google Chrome']//entry[@name='Address and search bar']")
            return "".join(bar.text or "" for bar in bars)

        async def shown() -> bool:
            return await address() == "about:blank"

        async def gone() -> bool:
            return not await address()

        await until(shown)
        await run_command(machine, end_program("chrome"), "it does not end", shell=True)
        await until(gone)
        assert not (await machine.execute("ps -eo args | grep -e [u]ser-data-dir", shell=True))["output"]


@needs_vlc
async def test_vlc_says_what_it_plays(machine):
    flags = "--no-qt-privacy-ask --extraintf http --http-port 8080 --http-password password"
    await machine.launch(f"vlc {flags}", shell=True)
    await wait_idle(machine, IDLE_S)
    url = f"http://127.0.0.1:{machine.endpoint.vlc_port}/requests/status.xml"

    async def status() -> str:
        try:
            async with aiohttp.ClientSession() as session, session.get(url, headers=PASSWORD) as answer:
                return await answer.text() if answer.status == 200 else ""
        except aiohttp.ClientError:
            return ""

    assert "<state>stopped</state>" in await until(status)
    await run_command(machine, end_program("vlc"), "it does not end", shell=True)


async def test_with_a_token_other_users_do_not_reach_the_ports(machine):
    handle = 'self.request.sendall(b"inside\\n")'
    await machine.launch(LISTENER.format(handle=handle), shell=True)
    port = machine.endpoint.vlc_port

    async def is_inside() -> bool:
        return await read_closed(port) == b"inside\n"

    assert await until(is_inside)
    program = f"import socket; print(socket.create_connection(('127.0.0.1', {port})).makefile().read())"
    as_stranger = ["setpriv", f"--reuid={STRANGER}", "--clear-groups", "/usr/bin/python3", "-c", program]
    if (
        await asyncio.to_thread(subprocess.run, ["setpriv", f"--reuid={STRANGER}", "--clear-groups", "true"])
    ).returncode:
        pytest.skip("needs root to be another user")
    done = await asyncio.to_thread(subprocess.run, as_stranger, capture_output=True, text=True, timeout=60)
    assert "inside" not in done.stdout
    await run_command(machine, end_program("listener"), "it does not end", shell=True)


async def test_a_port_is_closed_once_its_lease_has_ended(desktops):
    async with desktops.machine() as leased:
        port = leased.endpoint.vlc_port
        await leased.launch(ECHO, shell=True)

        async def connect() -> tuple[asyncio.StreamReader, asyncio.StreamWriter] | None:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(b"a")
            with contextlib.suppress(ConnectionError):  # Nothing listens yet: it may be closed before it is read.
                if await reader.read(1) == b"a":
                    return reader, writer
            writer.close()
            return None

        reader, writer = await until(connect)
    async with asyncio.timeout(60):
        assert await reader.read() == b"", "the held connection ends with the desktop"
    writer.close()
    assert await read_closed(port) == b""


# --- recordings


@needs_ffmpeg
async def test_a_recording_plays_and_shows_the_screen(machine, tmp_path):
    await machine.send("POST", "/start_recording", limit_s=60.0)
    with pytest.raises(StatusFault, match="already in progress"):
        await machine.send("POST", "/start_recording", limit_s=60.0)
    await machine.execute(["python", "-c", f"import pyautogui, time; pyautogui.moveTo(50, 60); time.sleep({FILM_S})"])
    await machine.execute(f"until [ {FRAGMENTS} -gt 1 ]; do sleep 0.2; done", shell=True)
    film = tmp_path / "film.mp4"
    film.write_bytes(await machine.send("POST", "/end_recording", limit_s=60.0))
    show = ["ffmpeg", "-v", "error", "-i", str(film), "-f", "framecrc", "-"]
    shown = await asyncio.to_thread(subprocess.run, show, capture_output=True, text=True, timeout=60)
    assert shown.returncode == 0, shown.stderr
    frames = [line for line in shown.stdout.splitlines() if not line.startswith("#")]
    assert len(frames) > FILM_S
    assert "#dimensions 0: 800x600" in shown.stdout


@needs_ffmpeg
async def test_a_recording_of_a_killed_program_plays_or_is_an_error(machine, tmp_path):
    await machine.send("POST", "/start_recording", limit_s=60.0)
    await machine.execute(f"until [ {FRAGMENTS} -gt 1 ]; do sleep 0.2; done; pkill -KILL ffmpeg", shell=True)
    film = tmp_path / "film.mp4"
    film.write_bytes(await machine.send("POST", "/end_recording", limit_s=60.0))
    show = ["ffmpeg", "-v", "error", "-i", str(film), "-frames:v", "1", "-f", "null", "-"]
    assert (await asyncio.to_thread(subprocess.run, show, timeout=60)).returncode == 0


@needs_ffmpeg
async def test_a_recording_without_a_picture_is_an_error(machine):
    await machine.send("POST", "/start_recording", limit_s=60.0)
    await machine.execute("pkill -KILL ffmpeg; : >/tmp/osworld_recording.mp4", shell=True)
    with pytest.raises(EnvironmentFault, match="no picture"):
        await machine.send("POST", "/end_recording", limit_s=60.0)
