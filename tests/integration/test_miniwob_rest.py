"""Pages that answer an input later: a screen and a reward are those of the page at rest, in both ways of capture."""

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from dart_streams.actions import Click, Hotkey, Type
from tests.environments import opened, playing
from tests.integration.miniwob_backend import browser, patient, pixels, task  # noqa: F401 - a fixture
from workers.env.backends.miniwob.backend import MiniwobBackend
from workers.env.environment import EnvironmentFault

TASK = task("click-test", 1)
CAPTURES = ("begin-frame", "screenshot")
PIXEL = "data:image/gif;base64,R0lGODlhAQABAAAAACH5BAEKAAEALAAAAAABAAEAAAICTAEAOw=="
LATER = {
    "a task": "setTimeout(show)",
    "tasks of tasks": "setTimeout(() => setTimeout(() => setTimeout(show, 20), 20), 20)",
    "a frame": "requestAnimationFrame(show)",
    "a frame of a frame": "requestAnimationFrame(() => requestAnimationFrame(show))",
    "a request": "fetch('data:,x').then((answer) => answer.text()).then(show)",
    "an older request": "{ const x = new XMLHttpRequest(); x.onload = show; x.open('GET', 'data:,x'); x.send(); }",
    "an image": f"{{ const image = new Image(); image.onload = show; image.src = '{PIXEL}'; }}",
    "an image of markup": f"area.innerHTML += `<img src='{PIXEL}' onload='show()'>`",
    "a worker": "{ const w = new Worker('data:,onmessage=()=>postMessage(0)'); w.onmessage = show; w.postMessage(0); }",
    "a channel": "{ const c = new MessageChannel(); c.port1.onmessage = show; c.port2.postMessage(0); }",
    "a message": "{ onmessage = show; postMessage(0, '*'); }",
    "a file": "{ const r = new FileReader(); r.onload = show; r.readAsText(new Blob(['x'])); }",
    "a promise": "Promise.resolve().then(() => 0).then(show)",
    "a timer beside one that was cleared": "{ clearInterval(setTimeout(() => 0, 40)); setTimeout(show); }",
    "a timer of a page that polls": "{ const poll = () => setTimeout(poll, 5); poll(); setTimeout(show, 30); }",
    "a document that is written anew": "{ document.write(markup); document.close(); setTimeout(show); }",
    "a database": "{ const r = indexedDB.open('d'); r.onsuccess = r.onerror = show; }",
}
SET_UP = """(() => {{
  window.markup = '<div id=t style="position: fixed; left: 0; top: 60px; width: 50px; height: 30px"></div>';
  area.innerHTML = markup;
  window.show = () => {{ document.querySelector('#t').style.background = 'red'; }};
  document.querySelector('#t').onclick = () => {act};
}})()"""


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def browsers() -> AsyncIterator[dict[str, MiniwobBackend]]:
    async with browser(capture="begin-frame", slots=2) as frames, browser(capture="screenshot", slots=2) as shots:
        yield {"begin-frame": frames, "screenshot": shots}


@pytest.mark.parametrize("capture", CAPTURES)
@pytest.mark.parametrize("kind", LATER)
@pytest.mark.asyncio(loop_scope="module")
async def test_a_screen_has_what_its_action_led_to(browsers, kind, capture):
    async with playing(browsers[capture], TASK) as page:
        await page.evaluate_script(SET_UP.format(act=LATER[kind]))
        screen = await page.step(Click(20, 75), "click")
        assert (pixels(screen)[75, 40] == (255, 0, 0)).all()


@pytest.mark.parametrize("capture", CAPTURES)
@pytest.mark.asyncio(loop_scope="module")
async def test_a_page_that_never_rests_is_taken_as_it_is(browsers, capture):
    never = "{ const draw = () => requestAnimationFrame(draw); draw(); setInterval(show); fetch('data:,x'); }"
    async with playing(browsers[capture], TASK) as page:
        await page.evaluate_script(SET_UP.format(act=never))
        assert not (await page.step(Click(20, 75), "click")).done


@pytest.mark.parametrize("address", ["about:blank", "file:///nowhere.html", "data:text/html,x"])
@pytest.mark.asyncio(loop_scope="module")
async def test_a_step_goes_on_where_a_page_has_gone(browsers, address):
    async with playing(browsers["begin-frame"], TASK) as page:
        await page.evaluate_script(SET_UP.format(act=f"{{ location.href = '{address}'; }}"))
        for number in range(3):
            assert not (await page.step(Click(20, 75), f"click-{number}")).done
        assert await page.evaluate() == 0.0


@pytest.mark.parametrize("capture", CAPTURES)
@pytest.mark.asyncio(loop_scope="module")
async def test_the_reward_of_a_last_action_waits_for_its_handler(browsers, capture):
    async with playing(browsers[capture], TASK) as page:
        await page.evaluate_script("subbtn.onclick = () => fetch('data:,x').then(() => core.endEpisode(1)); 0")
        x, y = await page.evaluate_script(
            "(({left, top}) => [Math.round(left) + 5, Math.round(top) + 5])(subbtn.getBoundingClientRect())"
        )
        await page.step(Click(x, y), "click", last=True)
        assert await page.evaluate() == 1.0


@pytest.mark.parametrize("capture", CAPTURES)
@pytest.mark.asyncio(loop_scope="module")
async def test_an_episode_pastes_what_it_copied_itself(browsers, capture):
    """Two fields of two concurrent episodes, and a third one after them that has copied nothing."""
    form = "area.innerHTML = '<input id=a value={}><input id=b><textarea id=c></textarea>'; a.focus(); a.select(); 0"
    async with opened(browsers[capture], TASK) as (one, _), opened(browsers[capture], TASK) as (other, _):
        for page, text in ((one, "first"), (other, "second")):
            await page.evaluate_script(form.format(text))
            await page.step(Hotkey(("ctrl", "c" if page is one else "x")), "copy")
        for page, text in ((one, "first"), (other, "second")):
            for place in "bc":
                await page.evaluate_script(f"{place}.focus(); 0")
                await page.step(Hotkey(("ctrl", "v")), f"paste-{place}")
            assert await page.evaluate_script("[b.value, c.value]") == [text, text]
        assert await other.evaluate_script("a.value") == "", "it was cut"
    async with playing(browsers[capture], TASK) as later:
        await later.evaluate_script(form.format("third") + "; getSelection().empty(); b.focus(); 0")
        await later.step(Hotkey(("ctrl", "v")), "paste")
        assert await later.evaluate_script("b.value") == ""


CLIPBOARDS = {
    "a page's own copy": ("document.addEventListener('copy', own)", Hotkey(("ctrl", "c")), "own"),
    "a button that copies": ("act = () => document.execCommand('copy')", Click(20, 75), "text"),
    "the clipboard's interface": ("act = () => navigator.clipboard.writeText('written')", Click(20, 75), "written"),
    "a document that is written anew": (
        "document.write('<input id=a value=text><input id=b>'); document.close(); pasted = ['text']; a.select()",
        Hotkey(("ctrl", "c")),
        "text",
    ),
    "nothing selected": ("a.setSelectionRange(0, 0)", Hotkey(("ctrl", "c")), ""),
}


@pytest.mark.parametrize("name", CLIPBOARDS)
@pytest.mark.asyncio(loop_scope="module")
async def test_ways_to_copy(browsers, name):
    before, action, wanted = CLIPBOARDS[name]
    async with playing(browsers["begin-frame"], TASK) as page:
        await page.evaluate_script(SET_UP.format(act="{ if (window.act) act(); }"))
        await page.evaluate_script(
            "area.insertAdjacentHTML('beforeend', '<input id=a value=text><input id=b>'); a.focus(); a.select();"
            "t.onmousedown = (event) => event.preventDefault(); window.pasted = []; window.act = null;"
            "addEventListener('paste', (event) => pasted.push(event.clipboardData.getData('text/plain')));"
            "own = (event) => { event.clipboardData.setData('text/plain', 'own'); event.preventDefault(); };"
            f"{before}; 0"
        )
        await page.step(action, "copy")
        await page.evaluate_script("b.focus(); 0")
        await page.step(Hotkey(("ctrl", "v")), "paste")
        await page.step(Type("!"), "type")
        assert await page.evaluate_script("[b.value, ...pasted]") == [f"{wanted}!", wanted]


@pytest.mark.parametrize("capture", CAPTURES)
@pytest.mark.asyncio(loop_scope="module")
async def test_the_middle_button_pastes_no_other_episode_s_selection(browsers, capture):
    form = "area.innerHTML = '<input id=a value=secret><input id=b>'; 0"
    place = "(({{left, top}}) => [Math.round(left) + 5, Math.round(top) + 5])({}.getBoundingClientRect())"
    async with playing(browsers[capture], TASK) as one, playing(browsers[capture], TASK) as other:
        for page in (one, other):
            await page.evaluate_script(form)
        x, y = await one.evaluate_script(place.format("a"))
        await one.step(Click(x, y, count=2), "select")
        x, y = await other.evaluate_script(place.format("b"))
        await other.step(Click(x, y, "middle"), "paste")
        assert await other.evaluate_script("b.value") == ""


@pytest.mark.parametrize("script", ["'\\ud83d'", "(() => { throw new Error('\\ud83d'); })()", "Array(600000).fill(1)"])
@pytest.mark.asyncio(loop_scope="module")
async def test_an_answer_that_cannot_be_read_fails_its_call_alone(browsers, script):
    async with playing(browsers["begin-frame"], TASK) as page, playing(browsers["begin-frame"], TASK) as other:
        await page.evaluate_script(f"setTimeout(() => {{ {script}; }}); 0")
        with pytest.raises(EnvironmentFault):
            await page.evaluate_script(script)
        assert await other.evaluate_script("1") == 1
