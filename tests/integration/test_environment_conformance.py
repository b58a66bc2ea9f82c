"""Pages in a real Chromium keep the contract of environment backends, whatever their episodes share."""

from pathlib import Path

import pytest

from dart_streams.actions import Click
from dart_streams.config import Capture, Config, Env, Isolation, Miniwob
from tests.action_probe import LISTEN
from tests.environments import playing
from tests.integration.miniwob_backend import browser, task
from workers.env import conformance
from workers.env.backends.miniwob import backend as backend_module
from workers.env.backends.miniwob import target
from workers.env.backends.miniwob.own_pages import OwnPage

PAGES = ("click-tab", "enter-text", "drag-box")


@pytest.mark.parametrize(
    ("isolation", "capture"),
    [("context", "begin-frame"), ("document", "begin-frame"), ("problem", "begin-frame"), ("problem", "screenshot")],
)
async def test_miniwob_keeps_the_contract(isolation: Isolation, capture: Capture):
    async with browser(isolation=isolation, slots=2, capture=capture) as backend:
        for page in PAGES if isolation != "context" else PAGES[:1]:
            await conformance.check(backend, task(page, 3))


SEEN = """const seen = [];
for (const kind of ['mouseover', 'mousemove'])
  addEventListener(kind, ({clientX, clientY}) => seen.push([kind, clientX, clientY]), true);
"""


@pytest.mark.parametrize("isolation", ["document", "problem"])
@pytest.mark.parametrize("capture", ["begin-frame", "screenshot"])
async def test_each_episode_starts_with_the_same_input(monkeypatch, isolation: Isolation, capture: Capture):
    """Whether its document is the first of its target, a later one, or a kept one; the mouse leaves the page proper."""
    script = target.native_script
    monkeypatch.setattr(target, "native_script", lambda *size: SEEN + script(*size))
    async with browser(isolation=isolation, slots=1, capture=capture) as backend:
        for page in ("click-tab", "click-tab", "enter-text", "click-tab"):
            async with playing(backend, task(page, 0)) as episode:
                moves = await episode.evaluate_script("seen.splice(0)")
                assert moves == [["mouseover", 490, 310], ["mousemove", 490, 310]]
                await episode.step(Click(80, 120), "moves")
                await episode.evaluate_script("seen.splice(0)")


PROBE = f"""<!DOCTYPE html><body style="height: 200px">.<script>{LISTEN}
const inputs = [];
listen((input) => {{
  inputs.push(input);
  document.body.style.background = 'green';
}});
const task = {{reset: () => 'Do anything.', evaluate: () => null}};
</script>"""
LEAVE = """(async () => {
  localStorage.setItem('left', 1), sessionStorage.setItem('left', 1), document.cookie = 'left=1; max-age=999';
  window.name = 'left', history.pushState({}, '', '#left');
  await navigator.clipboard.writeText('left');
  await new Promise((done) => {
    const opened = indexedDB.open('left');
    opened.onupgradeneeded = () => opened.result.createObjectStore('left');
    opened.onsuccess = opened.onerror = opened.onblocked = done;
  });
  await (await caches.open('left')).put('https://left.test/', new Response('left')).catch(() => 0);
  const folder = await navigator.storage.getDirectory().catch(() => null);
  await folder?.getFileHandle('left', {create: true});
  for (const kind of ['beforeunload', 'pagehide', 'unload', 'visibilitychange'])
    addEventListener(kind, () => { localStorage.setItem('left', kind); window.name = kind; });
  setInterval(() => { localStorage.setItem('left', 'late'); window.name = 'late'; }, 1);
  document.designMode = 'on', document.body.scrollTop = 9, getSelection().selectAllChildren(document.body);
})()"""
LEFT = """(async () => Object.entries({
  local: localStorage.length, session: sessionStorage.length, cookie: document.cookie, name: window.name,
  history: history.length > 1 && history.state, hash: location.hash,
  clipboard: await navigator.clipboard.readText(), databases: (await indexedDB.databases()).length,
  caches: (await caches.keys().catch(() => [])).length,
  files: await navigator.storage.getDirectory().then((folder) => folder.getFileHandle('left')).catch(() => 0),
  design: document.designMode === 'on', selected: String(getSelection()),
}).filter(([, found]) => found).map(([place]) => place))()"""


class ProbePage(OwnPage):
    async def received(self) -> list[list]:
        return await self.evaluate_script("inputs.splice(0)")

    async def leave(self) -> None:
        await self.target.evaluate_script(LEAVE, wait=True)

    async def left(self) -> list[str]:
        return await self.target.evaluate_script(LEFT, wait=True)


@pytest.mark.parametrize(("isolation", "capture"), [("context", "begin-frame"), ("document", "screenshot")])
async def test_a_page_receives_what_it_should(tmp_path: Path, monkeypatch, isolation: Isolation, capture: Capture):
    monkeypatch.setattr(backend_module, "OwnPage", ProbePage)
    (tmp_path / "probe.html").write_text(PROBE)
    own = Miniwob(pages_folder=str(tmp_path), call_timeout_s=60.0, isolation=isolation, capture=capture)
    backend = backend_module.MiniwobBackend(Config(env=Env(miniwob=own, slots=2)))
    backend.probe = task("probe", 0)
    await backend.start()
    try:
        assert await conformance.check(backend, backend.probe) == []
        async with playing(backend, backend.probe) as page:
            assert await page.received() == []
    finally:
        await backend.stop()
