"""The adapter of Gymnasium, with BrowserGym's MiniWoB++ of its real package in a real Chromium."""

import asyncio
import contextlib
import io
import json
import os
import signal
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path

import psutil
import pytest
import pytest_asyncio
from aiohttp import web
from PIL import Image

from dart_adapters import gymnasium, gymnasium_server
from dart_streams.actions import Click, Drag, Wait
from dart_streams.config import parse
from dart_streams.config.tasks import Task
from dart_streams.errors import ServiceUnavailable
from tests.action_probe import LISTEN
from tests.answering import answering
from tests.environments import playing
from workers.env import conformance
from workers.env.backends.miniwob.browser import find_browser
from workers.env.backends.miniwob.page import page_folder
from workers.env.environment import EnvironmentFault, Screen

PYTHON = Path(".venv/browsergym/bin/python")
pytestmark = [
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.timeout(1200),
    pytest.mark.skipif(not PYTHON.exists(), reason="needs .venv/browsergym: run `make adapters`"),
]
BUTTON = (239, 239, 239)
"""Chromium's grey of a button."""


def task(page: str = "click-test", seed: int = 0) -> Task:
    return Task(environment="gymnasium", page=page, seed=seed, max_steps=5, split="train")


def made(**options) -> gymnasium.GymnasiumBackend:
    options = {"browser": find_browser(), "reset_timeout_s": 300.0, **options}
    table = {"backend": "gymnasium", "installed": {"options": options, "call_timeout_s": 300.0}}
    return gymnasium.backend(parse({"env": table}))


def button_of(screen: Screen) -> Click:
    """Return a click on the middle of what has a button's grey."""
    with Image.open(io.BytesIO(screen.image)) as image:
        pixels = image.convert("RGB").load()
        found = [(x, y) for x in range(image.width) for y in range(image.height) if pixels[x, y] == BUTTON]
    xs, ys = sorted(x for x, _ in found), sorted(y for _, y in found)
    return Click(xs[len(xs) // 2], ys[len(ys) // 2])


class WithOracle(gymnasium.GymnasiumEnvironment):
    """An environment that presses the button that it sees."""

    async def demonstrate(self, task):
        assert self.shown is not None
        yield button_of(self.shown)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def backend() -> AsyncIterator[gymnasium.GymnasiumBackend]:
    os.environ["MINIWOB_URL"] = f"{page_folder().as_uri()}/"
    own = made()
    await own.start()
    yield own
    await own.stop()
    del os.environ["MINIWOB_URL"]


async def test_browsergym_keeps_the_contract(backend, monkeypatch):
    monkeypatch.setattr(gymnasium, "GymnasiumEnvironment", WithOracle)
    await conformance.check(backend, task())


TOLD = """
const tell = (input) => {
  const request = new XMLHttpRequest();
  request.open('POST', 'URL', false);  // It has arrived before the action has ended.
  request.send(JSON.stringify(input));
};
listen(tell, 1.5);  // Screens of BrowserGym's MiniWoB++ are so much larger than their pages.
area.innerHTML = '<b draggable="true" style="position: absolute; top: 120px">drag</b>'
  + '<b id="target" style="position: absolute; top: 120px; left: 100px">drop</b>';
target.addEventListener('dragover', (event) => event.preventDefault());
document.body.style.userSelect = 'none';  // A selected text would be dragged.
core.startEpisode();
"""


async def test_a_page_receives_what_the_contract_says(tmp_path, monkeypatch):
    noted: list[list] = []

    async def note(request: web.Request) -> web.Response:
        noted.append(await request.json())
        return web.Response(headers={"Access-Control-Allow-Origin": "*"})

    page = (page_folder() / "click-test.html").read_text().replace("../", f"{page_folder().parent.as_uri()}/")
    before, _, after = page.partition("var genProblem")
    monkeypatch.setenv("MINIWOB_URL", f"{tmp_path.as_uri()}/")
    async with answering(note) as url:
        listening = f"var genProblem = () => {{}};\n{LISTEN}\nonload = () => {{ {TOLD.replace('URL', url)} }}"
        (tmp_path / "click-test.html").write_text(f"{before}{listening}</script>{after.partition('</script>')[2]}")
        own = made()
        async with playing(own, task()) as environment:

            async def received() -> list[list]:
                found = noted.copy()
                noted.clear()
                return found

            environment.received = received
            assert await conformance.find_violations(environment) == []
            await environment.step(Drag(15, 185, 165, 185), "drop")
            assert ["drop", "target"] in noted
        await own.stop()


async def test_its_processes_get_no_secrets_of_the_worker(backend, monkeypatch):
    monkeypatch.setenv("DART_KAFKA_PASSWORD", "secret")
    own = made()
    async with playing(own, task()) as environment:
        process = psutil.Process(environment.process.process.pid)
        for each in (process, *process.children(recursive=True)):
            with contextlib.suppress(psutil.NoSuchProcess):  # The renderer of the page before it ends late.
                assert "DART_KAFKA_PASSWORD" not in each.environ()
        assert "MINIWOB_URL" in process.environ()
    await own.stop()


async def test_another_seed_and_another_page_are_another_task(backend):
    environment = await backend.open(task())
    screens = [await environment.reset(task(page, seed)) for page, seed in (("click-test", 0), ("click-test", 1))]
    other = await environment.reset(task("click-dialog"))
    assert len({screen.image for screen in (*screens, other)}) == 3
    assert other.instruction != screens[0].instruction
    await environment.close()


async def test_a_process_that_is_killed_or_hangs_is_a_fault_that_leaves_nothing(backend):
    for number, kind in enumerate((signal.SIGKILL, signal.SIGSTOP)):
        async with playing(backend, task()) as environment:
            process = environment.process.process
            tree = [psutil.Process(process.pid), *psutil.Process(process.pid).children(recursive=True)]
            assert any("chrom" in one.name() for one in tree)
            backend.call_timeout_s = 2.0
            process.send_signal(kind)
            with pytest.raises(EnvironmentFault, match=r"has ended|does not answer"):
                await environment.step(Wait(), f"{number}")
            backend.call_timeout_s = 300.0
        assert not psutil.wait_procs(tree, timeout=300)[1]
        healed = await backend.open(task())
        shown = await healed.reset(task())
        assert (await healed.step(button_of(shown), "press")).done
        assert await healed.evaluate() == 1
        await healed.close()


async def test_what_is_not_there_is_named(backend):
    with pytest.raises(ServiceUnavailable, match=r"no /nowhere/python: `make adapters`"):
        await made(python="/nowhere/python").start()
    for options, page, why in (
        ({"packages": "no_such_package"}, "click-test", "No module named 'no_such_package'"),
        ({}, "no-such-page", "no-such-page"),
    ):
        own = made(**options)
        environment = await own.open(task(page))
        with pytest.raises(EnvironmentFault, match=why):
            await environment.reset(task(page))
        await environment.close()
        await own.stop()


async def test_any_gymnasium_environment_is_rendered_as_it_comes(tmp_path):
    """An environment without a screenshot in its observation that takes actions as dictionaries."""
    site = next((PYTHON.parents[1] / "lib").glob("python*/site-packages"))
    module = site / "dart_columns_of_a_test.py"
    module.write_text(COLUMNS)
    try:
        own = made(packages="dart_columns_of_a_test", id="columns-v0", dialect="typed", browser="")
        await conformance.check(own, task("any", 2))
        async with playing(own, task("any", 2)) as environment:
            assert (await environment.step(Click(2 * 16 + 1, 1), "1")).done
            assert await environment.evaluate() == 1
        await own.stop()
    finally:
        for left in (module, *(site / "__pycache__").glob(f"{module.stem}.*")):
            left.unlink()


COLUMNS = """
import gymnasium, numpy
class Columns(gymnasium.Env):
    observation_space = gymnasium.spaces.Discrete(4)
    action_space = gymnasium.spaces.Dict()
    render_mode = "rgb_array"
    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.hidden, self.clicked = seed % 4, -1
        return 0, {}
    def step(self, action):
        if action["type"] == "click" and action["button"] == "left":
            self.clicked = action["x"] * 4 // 64
        return 0, float(self.clicked == self.hidden), self.clicked >= 0, False, {}
    def render(self):
        pixels = numpy.zeros((64, 64, 3), numpy.uint8)
        pixels[1, 1, 0] = self.clicked + 1
        return pixels
gymnasium.register("columns-v0", entry_point=Columns)
"""


WRAPPED = """
import json, runpy, sys
import gymnasium, numpy

class Core(gymnasium.Env):
    observation_space, action_space = gymnasium.spaces.Box(0, 255, (8, 8, 3), numpy.uint8), gymnasium.spaces.Dict()
    def reset(self, *, seed=None, options=None):
        return {"screenshot": numpy.zeros((8, 8, 3), numpy.uint8), "goal": "raw"}, {}
    def step(self, action):
        return {"screenshot": numpy.zeros((8, 8, 3), numpy.uint8), "goal": "raw"}, 100.0, False, False, {}

class Scaled(gymnasium.Wrapper):
    def reset(self, **given):
        observation, info = self.env.reset(**given)
        return {**observation, "goal": "wrapped"}, info
    def step(self, action):
        observation, reward, *rest = self.env.step(action)
        return observation, reward / 400, *rest

gymnasium.register("wrapped-v0", entry_point=lambda: Scaled(Core()), max_episode_steps=3)
server = runpy.run_path(sys.argv[1])["EnvironmentServer"]([], "")
answers = [server.answer({"call": "reset", "id": "wrapped-v0", "seed": 0})]
answers += [server.answer({"call": "step", "action": {}}) for _ in range(3)]
print(json.dumps([[answer["instruction"], answer["reward"], answer["done"]] for answer in answers]))
"""


VECTORS = """
import json, runpy, sys
import gymnasium, numpy

class Pole(gymnasium.Env):
    observation_space, action_space = eval("gymnasium.spaces." + sys.argv[3]), gymnasium.spaces.Dict()
    metadata = {"render_modes": json.loads(sys.argv[2])}
    def __init__(self, render_mode=None):
        self.render_mode = render_mode
    def reset(self, *, seed=None, options=None):
        return numpy.zeros(4), {}
    def render(self):
        return numpy.zeros((8, 8, 3), numpy.uint8) if self.render_mode == "rgb_array" else None

gymnasium.register("pole-v0", entry_point=Pole)
server = runpy.run_path(sys.argv[1])["EnvironmentServer"]([], "")
try:
    print(len(server.answer({"call": "reset", "id": "pole-v0", "seed": 0})["image"]) > 0)
except ValueError as error:
    print(error)
"""


@pytest.mark.parametrize(
    ("modes", "shown"), [('["human", "rgb_array"]', "True"), ('["human"]', "no screen"), ("[]", "no screen")]
)
@pytest.mark.parametrize(
    "space",
    [
        "Box(-1, 1, (4,))",
        "Tuple((gymnasium.spaces.Discrete(2),))",
        "Dict(x=gymnasium.spaces.Discrete(2))",
        "Discrete(2)",
    ],
)
async def test_an_environment_without_screens_shows_what_it_renders(modes: str, shown: str, space: str):
    words = [PYTHON, "-c", VECTORS, gymnasium_server.__file__, modes, space]
    done = await asyncio.to_thread(subprocess.run, words, capture_output=True, text=True, timeout=300, check=True)
    assert done.stdout.startswith(shown)


async def test_an_environment_is_played_with_its_wrappers():
    """Its instruction, scale of rewards and limit of steps are those that its id was registered with."""
    words = [PYTHON, "-c", WRAPPED, gymnasium_server.__file__]
    done = await asyncio.to_thread(subprocess.run, words, capture_output=True, text=True, timeout=300, check=True)
    assert json.loads(done.stdout) == [
        ["wrapped", 0.0, False],
        *[["wrapped", 0.25, False]] * 2,
        ["wrapped", 0.25, True],
    ]
