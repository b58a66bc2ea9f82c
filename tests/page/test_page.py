"""The page in a real Chromium, on a bundle of a played run: each view, navigation, keys and hostile texts."""

import asyncio
import contextlib
import json
import re
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from unittest.mock import AsyncMock

import msgspec
import pytest
from aiohttp import ClientSession, web
from aiohttp.test_utils import TestServer

from console.launch.services import jars
from console.launch.services.daemon import free_port
from console.runs.bundle import Bundle
from console.views.page.assets import load_assets
from console.views.page.bundle_source import BundleSource
from console.views.page.guard import Guard
from console.views.page.server import PageServer
from console.views.page.source import NotFound
from dart_streams.errors import ServiceUnavailable
from tests.integration.page_browser import WAIT_S, Tab, tab
from tests.integration.recorded_run import HOSTILE, record, settings
from tests.waiting import wait_until
from topics.observations import Observation

SHOTS = Path(__file__).parents[2] / ".dart" / "page-screenshots"
"""Where the tests leave pictures of every page, for a person to look at."""
TABS = ("wall", "trajectories", "tasks", "steps", "time", "log", "report", "compare", "queue", "runs")
PLOTTED = ("steps", "time", "report")


@pytest.fixture(scope="module")
def recorded(tmp_path_factory) -> Path:
    """A run of about ten seconds: the charts over time have one point a second."""
    return record(tmp_path_factory.mktemp("page") / "run.dart", 90, settings(step_ms=100))


def opened(path: Path, plots: Path | None = None) -> contextlib.AbstractAsyncContextManager[tuple[Tab, str]]:
    """Yield a tab on the page of a bundle, signed in by the printed address, and the page's address."""
    return served(BundleSource(Bundle(path)).read(), plots)


@contextlib.asynccontextmanager
async def served(
    source: BundleSource, plots: Path | None = None, other: BundleSource | None = None
) -> AsyncIterator[tuple[Tab, str]]:
    guard = Guard(frozenset(), 1, tls=False)
    async with beside(PageServer(source, guard, load_assets(plots), other).application()) as (page, base):
        await page.open(f"{base}?token={guard.token}")
        await page.at("")
        yield page, base
        assert page.errors == []


@contextlib.asynccontextmanager
async def beside(application: web.Application) -> AsyncIterator[tuple[Tab, str]]:
    """Serve a page; yield a tab, and the page's address."""
    async with TestServer(application) as server, tab(SHOTS) as page:
        yield page, f"http://127.0.0.1:{server.port}/"


async def test_every_page_opens_without_an_error_wide_and_narrow_light_and_dark(recorded: Path):
    async with opened(recorded, jars.plots_folder()) as (page, _):
        assert await page.js("location.search") == "", "the token has left the address"
        assert await page.js("document.cookie") == "", "scripts do not see the cookie"
        places = list(TABS)
        await page.go("steps")
        places.append(await page.first_link("td a"))
        await page.go(places[-1])
        places.append(await page.first_link("td a"))
        await page.go(places[-1])
        places.append(await page.first_link(".cell"))
        await page.go("tasks")
        places.append(await page.first_link("td a"))
        await page.tour(places)
        paint, load, p50 = *(await page.navigation()).values(), await page.pages_p50()
        (SHOTS / "timings.txt").write_text(f"first paint {paint:.0f} ms, loaded {load:.0f} ms, p50 {p50:.0f} ms")
        assert paint > 0, "how long it took is a figure, of a machine that does other things as well"


async def test_before_anything_has_happened_each_page_says_so(recorded: Path):
    async with served(BundleSource(Bundle(recorded)), jars.plots_folder()) as (page, _):
        await page.until("document.querySelectorAll('.wall .tile').length === 0", "no slot yet")
        for place in (tab for tab in TABS if tab not in ("log", "runs")):
            await page.go(place)
            assert await page.count("main .empty") >= 1, place
            assert not await page.js("document.querySelector('.problem')?.innerText"), place
            assert await page.js("[...document.querySelectorAll('main select')].every((one) => one.length)"), place
            await page.shot(f"{place}-empty")


@pytest.mark.parametrize(
    ("place", "before", "after"), [("report", "h1", ".headline"), ("trajectory?id={id}", ".problem", ".stage img")]
)
async def test_what_was_opened_before_its_run_was_read_is_opened_again(
    recorded: Path, monkeypatch, place: str, before: str, after: str
):
    """On a slow machine the first message of the socket comes after the run is read."""
    read, push = asyncio.Event(), PageServer.push_changes

    async def push_later(*arguments):
        await read.wait()
        await push(*arguments)

    monkeypatch.setattr(PageServer, "push_changes", push_later)
    source = BundleSource(Bundle(recorded))
    hash = "#/" + place.format(id=next(iter(BundleSource(Bundle(recorded)).read().state.trajectories)))
    async with served(source) as (page, base):
        await page.open("about:blank")
        await page.open(base + hash)
        await page.at(hash)
        assert await page.count(before) >= 1
        assert await page.count(after) == 0
        source.read()
        read.set()
        await page.until(f"!!document.querySelector({json.dumps(after)})", "the whole run")
        page.errors.clear()  # The console names a first answer of 404.


async def test_a_link_that_new_data_replace_while_it_is_pressed_is_followed(recorded: Path):
    async with served(BundleSource(Bundle(recorded)).read()) as (page, _):
        await page.go("tasks")
        href = await page.first_link("td a")
        x, y, _, height = await page.box("td a")
        where = {"x": x + 1, "y": y + height / 2, "button": "left", "clickCount": 1}
        await page.call("Input.dispatchMouseEvent", type="mousePressed", **where)
        await page.js("void ((old) => old.replaceWith(old.cloneNode(true)))(document.querySelector('tbody'))")
        await page.call("Input.dispatchMouseEvent", type="mouseReleased", **where)
        await page.at(f"#/{href}")


async def test_a_page_whose_service_did_not_answer_opens_by_itself(recorded: Path, monkeypatch):
    source, whole = BundleSource(Bundle(recorded)).read(), BundleSource.report_inputs

    async def fail(_: BundleSource):
        raise ServiceUnavailable("the store does not answer")

    monkeypatch.setattr(BundleSource, "report_inputs", fail)
    async with served(source) as (page, _):
        await page.go("report")
        assert "the store does not answer" in await page.text(".problem")
        monkeypatch.setattr(BundleSource, "report_inputs", whole)
        await page.until("!!document.querySelector('.headline')", "the report")
        assert await page.count(".problem") == 0


async def test_a_screenshot_that_is_stored_late_is_shown_then(recorded: Path, monkeypatch):
    source, stored = BundleSource(Bundle(recorded)).read(), BundleSource.screenshot
    monkeypatch.setattr(BundleSource, "screenshot", AsyncMock(side_effect=NotFound("not stored yet")))
    async with served(source) as (page, _):
        await page.go(f"trajectory?id={next(iter(source.state.trajectories))}")
        await page.until("!!document.querySelector('.stage img.missing')", "a screenshot that is not there")
        monkeypatch.setattr(BundleSource, "screenshot", stored)
        await page.loaded()


@pytest.mark.skipif(jars.plots_folder() is None, reason="the jar of the plots is not there: make setup")
async def test_plots_are_drawn(recorded: Path):
    async with opened(recorded, jars.plots_folder()) as (page, _):
        for place in PLOTTED:
            await page.go(place)
            await page.until("document.querySelectorAll('.chart canvas').length >= 2")


@pytest.mark.skipif(jars.plots_folder() is None, reason="the jar of the plots is not there: make setup")
async def test_plots_over_time_share_their_x_axis(recorded: Path):
    """The cursor of one plot is at its time in all others: at the same place only if they have the same axis."""
    over = ".page[data-page=time] .chart .u-over"
    async with opened(recorded, jars.plots_folder()) as (page, _):
        await page.js("document.getElementById('find').focus()")  # New plots have no cursor, and input delays them.
        await page.go("time")
        await page.until(f"document.querySelectorAll('{over}').length >= 4", "the plots")
        left, top, width, height = await page.box(over)
        await page.call("Input.dispatchMouseEvent", type="mouseMoved", x=left + 0.6 * width, y=top + height / 2)
        cursor = "new DOMMatrix(getComputedStyle(one.querySelector('.u-cursor-x')).transform).m41"
        places = f"[...document.querySelectorAll('{over}')].map((one) => {cursor} / one.clientWidth)"
        await page.until(f"{places}.every((one) => one > 0.1)", "the cursor in every plot")
        found = await page.js(places)
        assert found == pytest.approx([0.6] * len(found), abs=0.01)


async def test_a_page_that_is_not_there_at_once_says_that_it_loads(recorded: Path):
    notice = "document.getElementById('loading')"
    async with opened(recorded) as (page, _):
        assert await page.js(f"{notice}.hidden")
        await page.call("Fetch.enable", patterns=[{"urlPattern": "*api/tasks*"}])
        await page.js("void (location.hash = '#/tasks')")
        await page.until(f"!{notice}.hidden && {notice}.innerText === 'Loading: Tasks …'", "the notice")
        await page.shot("loading")
        await page.call("Fetch.disable")
        await page.at("#/tasks")
        assert await page.js(f"{notice}.hidden")


async def test_without_the_plot_library_the_page_says_what_to_run(recorded: Path):
    async with opened(recorded) as (page, _):
        await page.go("steps")
        assert "make setup" in await page.text(".chart")
        await page.go("time")


async def test_a_view_left_before_its_socket_is_open_is_no_error_in_the_console(recorded: Path):
    async with opened(recorded) as (page, _):
        watched = "(live = new api.Live(answer, () => {})).watch({watch: 'wall'}), live.watch({watch: 'header'})"
        assert await page.js(f"import('/api.js').then((api) => new Promise((answer) => ({watched})))")


async def test_from_an_optimizer_step_to_a_screenshot_and_back(recorded: Path):
    async with opened(recorded) as (page, _):
        await page.go("steps")
        step = await page.first_link("td a")
        await page.click("td a")
        await page.at(f"#/{step}")
        group = await page.first_link("td a")
        await page.click("td a")
        await page.at(f"#/{group}")
        cell = await page.first_link(".cell")
        await page.click(".cell")
        await page.at(f"#/{cell}")
        await page.until("document.querySelector('.stage img')?.naturalWidth === 160", "the screenshot")
        assert f"#/{step}" in await page.js("[...document.querySelectorAll('.way a')].map((a) => a.hash)")
        for place in (group, step, "steps"):
            await page.js("history.back()")
            await page.at(f"#/{place}")
        assert await page.pages_p50() > 0, "the page times itself; its tests print that"


@pytest.mark.skipif(jars.plots_folder() is None, reason="the jar of the plots is not there: make setup")
async def test_axes_have_units_and_the_values_of_their_lines(recorded: Path):
    async with opened(recorded, jars.plots_folder()) as (page, _):
        await page.go("time")
        plotted = await page.js("[...document.querySelectorAll('.chart figcaption')].map((one) => one.innerText)")
        assert ["share of episodes" in plotted[0], "steps/s" in plotted[1]] == [True, True]
        module = "import('/chart.js').then((chart) => "
        assert await page.js(f"{module}chart.values(null, [0, 0.25, 0.5], 0, 0, 0.25))") == ["0", "0.25", "0.5"]
        assert await page.js(f"{module}chart.values(null, [1e-7, 2e-7], 0, 0, 1e-7))") == ["0.0000001", "0.0000002"]
        assert await page.js(f"{module}chart.heights(null, 0, 0))") == [-1, 1], "not 0 to 100"
        assert await page.js(f"{module}chart.heights(null, 0.5, 0.5))") == [0.45, 0.55]


async def test_a_token_that_stands_out_links_to_its_screen_and_version(recorded: Path):
    async with opened(recorded) as (page, _):
        await page.go("steps")
        await page.go(await page.first_link("td a"))
        lane = await page.text(".token-lane")
        assert "13 %" in lane
        assert "1.492" in lane, "the ratio, from its logarithm"
        assert "sampled by" in lane
        await page.until("document.querySelector('.token-lane img')?.naturalWidth === 160", "the screen")
        await page.shot("step-tokens")
        await page.click(".token-lane .cell")
        await page.until("!!document.querySelector('.token.marked')", "the token")
        marked = "[...document.querySelectorAll('.token')].findIndex((one) => one.matches('.marked'))"
        assert await page.js(marked) == 5
        text, hover = await page.js("((one) => [one.innerText, one.title])(document.querySelector('.token.marked'))")
        assert re.fullmatch(r"·word\d+", text), "the text of the token, its space as a point"
        assert hover.startswith(f"token {text.removeprefix('·word')}\n"), "its id on hover"


async def test_an_alarm_is_a_link_to_what_it_is_about(recorded: Path):
    source = BundleSource(Bundle(recorded)).read()
    last = source.state.trained[max(source.state.trained)]
    source.state.trained[last.train_step] = msgspec.structs.replace(
        last, metrics=last.metrics | {"same_version_mismatch": 0.3}
    )
    async with served(source) as (page, _):
        await page.until("document.querySelectorAll('#alarms a').length === 1", "the alarm")
        assert "disagree by 0.3 nats" in await page.text("#alarms")
        await page.click("#alarms a")
        await page.at(f"#/step?id={last.train_step}")
        await page.shot("alarm")


async def test_metrics_are_grouped_with_units_and_help(recorded: Path):
    source = BundleSource(Bundle(recorded)).read()
    for number, event in source.state.trained.items():
        metrics = event.metrics | {"kl_of_old": 0.5, "old/part": 1.0}
        source.state.trained[number] = msgspec.structs.replace(event, metrics=metrics)
    async with served(source, jars.plots_folder()) as (page, _):
        await page.go("steps")
        groups = "[...document.querySelectorAll('.metric-group')].map((one) => one.querySelector('b').innerText)"
        assert await page.js(groups) == ["learning", "KL and clipping", "reward by page", "other"]
        shown = await page.js("document.querySelectorAll('.metric-group')[1].innerText")
        for text in ("kl_reference", "nats a token", "KL from the initial policy", "clip_share"):
            assert text in shown
        await page.shot("steps-groups")
        assert "kl_of_old" not in await page.text("main"), "folded"
        await page.js("void (document.querySelector('.metric-group:last-child').open = true)")
        await page.until("document.querySelector('.metric-group:last-child')?.innerText.includes('kl_of_old')")
        await page.go("steps?q=%5Ekl")
        assert await page.js(groups) == ["KL and clipping", "other"]
        await page.until("document.querySelectorAll('.metric-group[open]').length === 2", "both open")
        await page.go(await page.first_link("td a"))
        heads = await page.js("[...document.querySelectorAll('h2')].map((one) => one.innerText)")
        assert heads[:4] == ["learning", "KL and clipping", "reward by page", "other"]
        assert "Share of tokens" in await page.js("document.querySelectorAll('.metrics')[1].innerHTML")
        await page.shot("step-groups")


async def test_what_the_filter_matches_can_be_kept(recorded: Path):
    async with opened(recorded) as (page, _):
        await page.go("trajectories?outcome=success")
        link = await page.js("document.querySelector('a[download]').getAttribute('href')")
        text = await page.js(f"fetch({link!r}).then((answer) => answer.text())")
        rows = [json.loads(line) for line in text.splitlines()]
        assert rows
        assert {row["outcome"] for row in rows} == {"success"}
        assert len(rows) == await page.count("tbody tr"), "fewer than a page of them"


async def test_two_versions_of_a_task_are_side_by_side_step_by_step(recorded: Path):
    async with opened(recorded) as (page, _):
        await page.go("compare")
        assert await page.count(".rates tbody tr") == 2
        assert "95 % interval" in await page.text(".headline")
        await page.click("td a")
        await page.until("document.querySelectorAll('.lane .cell img').length >= 3", "both episodes' screens")
        lanes = await page.js("[...document.querySelectorAll('.lane')].map((lane) => lane.innerText)")
        assert ["failure" in lanes[0], "success" in lanes[1]] == [True, True], "a task that was learnt comes first"
        await page.shot("compare-task")
        await page.go("tasks")
        await page.go(await page.first_link("td a"))
        await page.click(".bar a[href*=compare]")
        await page.until("document.querySelectorAll('.lane .cell img').length >= 2", "a training task's two ends")


async def test_two_runs_are_side_by_side_with_the_screens_of_each(recorded: Path):
    sources = [BundleSource(Bundle(recorded)).read() for _ in range(2)]
    async with served(sources[0], other=sources[1]) as (page, _):
        await page.go("compare?of=other")
        assert await page.count(".rates tbody tr") == 2
        await page.click("td a")
        await page.until("document.querySelectorAll('.lane .cell img').length >= 4", "both runs' screens")
        await page.loaded()
        widths = await page.js("[...document.querySelectorAll('.lane img')].map((image) => image.naturalWidth)")
        assert set(widths) == {160}
        await page.click(".lane:last-child .cell")
        await page.until("!!document.querySelector('.stage img')", "the other run's episode")
        assert "of=other" in await page.js("location.hash")


async def test_keys_step_through_a_trajectory_and_the_address_remembers_where(recorded: Path):
    async with opened(recorded) as (page, base):
        await page.go("trajectories?outcome=success")
        await page.go(await page.first_link("td a"))
        last = int(await page.js("document.querySelector('.slider input').max"))
        assert last >= 1
        for key, index in (("End", last), ("Home", 0), ("j", 1), ("k", 0), ("k", 0), ("ArrowRight", 1)):
            await page.press(key)
            await page.until(f"document.querySelector('.count')?.innerText === '{index} / {last}'", f"{key} to {index}")
        link = await page.js("location.hash")
        assert "step=1" in link
        await page.go("wall")
        await page.open("about:blank")
        await page.open(f"{base}{link}")
        await page.until(f"document.querySelector('.count')?.innerText === '1 / {last}'", "the deep link")


async def test_a_first_screen_that_is_not_stored_yet_is_shown_once_it_is(recorded: Path):
    source = BundleSource(Bundle(recorded)).read()
    identity, header = next(reversed(source.state.last_screens.items()))
    del source.state.trajectories[identity]
    source.state.open[identity] = header
    recorded_steps, stored = source.steps, asyncio.Event()

    async def steps(trajectory_id: str) -> list[Observation]:
        return await recorded_steps(trajectory_id) if stored.is_set() else []

    source.steps = steps  # type: ignore[method-assign]
    async with served(source) as (page, _):
        await page.go(f"trajectory?id={identity}")
        assert "not stored yet" in await page.text(".stage")
        stored.set()
        await page.until("document.querySelector('.stage img')?.naturalWidth === 160", "the screen")


async def test_an_episode_without_a_last_screen_says_that_it_ended(recorded: Path):
    source = BundleSource(Bundle(recorded)).read()
    recorded_steps = source.steps

    async def steps(trajectory_id: str) -> list[Observation]:
        *before, last = await recorded_steps(trajectory_id)
        return [*before, msgspec.structs.replace(last, screenshot=None)]

    source.steps = steps  # type: ignore[method-assign]
    async with served(source) as (page, _):
        await page.go("trajectories?outcome=success&purpose=train")
        await page.go(await page.first_link("td a"))
        await page.press("End")
        await page.until("document.querySelector('.stage')?.innerText.startsWith('The episode ended here.')", "the end")
        await page.go(await page.first_link(".way a"))
        await page.until("[...document.querySelectorAll('.cell .none')].some((one) => one.innerText === 'ended')")


async def test_the_marker_is_at_the_emitted_coordinates(recorded: Path):
    async with opened(recorded) as (page, _):
        await page.go("trajectories?outcome=success")
        await page.go(await page.first_link("td a"))
        await page.until("document.querySelector('.stage img')?.naturalWidth === 160")
        text = await page.text(".action-text")
        x, y = (int(part) for part in text.partition("(")[2].partition(")")[0].split(","))
        box = await page.js(
            "(() => { const s = document.querySelector('.stage .screen').getBoundingClientRect(),"
            " m = document.querySelector('.stage .hit').getBoundingClientRect();"
            " return [(m.x + m.width / 2 - s.x) / s.width, (m.y + m.height / 2 - s.y) / s.height] })()"
        )
        assert box == [pytest.approx(x / 168, abs=0.01), pytest.approx(y / 224, abs=0.01)]


async def test_what_an_agent_wrote_stays_text(recorded: Path):
    async with opened(recorded) as (page, _):
        await page.go("trajectories")
        await page.go(await page.first_link("td a"))
        await page.press("Home")
        await page.until("!!document.querySelector('.said')")
        assert HOSTILE in await page.js("document.querySelector('.said').textContent")
        await page.click("details summary")
        await page.until("document.querySelectorAll('.turn').length > 0")
        await page.go(f"log?topic=actions&q={'onerror'}")
        await page.until("document.querySelectorAll('.record').length > 0")
        await page.click(".record summary")
        await page.until("document.querySelector('.raw')?.textContent.includes('onerror')")
        await page.go("log?q=%3Cimg%20src%3Dx%20onerror%3Dalert(1)%3E&said=%3Cscript%3Ealert(1)%3C%2Fscript%3E")
        assert await page.count("main script, main img[src=x]") == 0
        assert "owned" not in await page.js("document.title")


async def test_the_filter_is_in_the_address_and_a_box_takes_any_id(recorded: Path):
    async with opened(recorded) as (page, _):
        await page.go("wall?q=nothing-is-called-so")
        assert await page.count(".tile:not(.peek)") == 0
        await page.go("wall?as=carpet")
        assert await page.js("document.querySelector('canvas.carpet').width") > 0
        await page.press("/")
        await page.until("document.activeElement.id === 'find'")
        await page.js("void (document.getElementById('find').value = 'v1')")
        await page.js("document.getElementById('finder').requestSubmit()")
        await page.until("location.hash.startsWith('#/step?')")


async def test_a_search_finds_tasks_outcomes_and_texts_and_leaves_the_keys(recorded: Path):
    async with opened(recorded) as (page, _):
        wanted = {"BOX#1": "ul.found a", "failure box": "tbody .chip.failure", "thought: <img": "tbody a"}
        for query, found in wanted.items():
            await page.press("/")
            await page.until("document.activeElement.id === 'find'")
            await page.call("Input.insertText", text=query)
            await page.press("Enter", 13)
            heading = json.dumps(f"Search: {query}")
            await page.until(f"document.querySelector('h1')?.innerText === {heading}", query)
            await page.until(f"!!document.querySelector('[data-page=search] {found}')", query)
        assert HOSTILE[:8] in await page.text("[data-page=search] tbody a")
        await page.shot("search")
        await page.click("[data-page=search] tbody a")
        await page.until("!!document.querySelector('.stage')", "the step with the text")
        await page.press("/")
        await page.call("Input.insertText", text="nothing-is-called-so")
        await page.press("Enter", 13)
        await page.until("document.querySelectorAll('[data-page=search] .empty').length === 3", "nothing found")
        await page.press("3")
        await page.at("#/tasks")
        ids = await page.js("[...document.querySelectorAll('tbody td:first-child')].map((one) => one.innerText)")
        assert ids == sorted(ids, key=lambda one: (one.partition("#")[0], int(one.partition("#")[2])))
        await page.go("nosuch")
        assert "There is no page #/nosuch" in await page.text("main")
        page.errors.clear()  # ids that do not exist are answered with 404, and the console says so


async def test_a_new_browser_is_asked_for_the_token_and_keeps_its_link(recorded: Path):
    guard = Guard(frozenset(), 1, tls=False)
    server = PageServer(BundleSource(Bundle(recorded)).read(), guard, load_assets(None))
    async with beside(server.application()) as (page, base):
        await page.open(f"{base}#/tasks")
        for token, sign in (("wrong", "document.body.innerText.includes('earlier start')"), (guard.token, "true")):
            await page.js("document.getElementById('token').focus()")
            await page.call("Input.insertText", text=token)
            await page.shot("sign-in")
            await page.js("document.querySelector('button').click()")
            await page.until(f"document.readyState === 'complete' && {sign}", "the answer")
        await page.at("#/tasks")
        assert await page.js("location.search") == ""


@pytest.mark.skipif(jars.plots_folder() is None, reason="the jar of the plots is not there: make setup")
async def test_metrics_are_chosen_from_a_list_smoothed_and_read_at_a_step(recorded: Path):
    async with opened(recorded, jars.plots_folder()) as (page, _):
        await page.go("steps")
        await page.click(".picker summary")
        await page.click(".choices input[value=kl_reference]")
        await page.click(".choices input[value=loss]")
        await page.until("document.querySelectorAll('.chart canvas').length === 2", "the chosen metrics alone")
        await page.js(
            "(() => { const s = document.querySelector('select[aria-label=smoothing]'); s.value = '5';"
            " s.dispatchEvent(new Event('change')); })()"
        )
        await page.until("document.querySelector('.chart .names')?.innerText.includes('mean of 5')", "smoothing")
        link = await page.js("location.hash")
        assert all(part in link for part in ("smooth=5", "kl_reference", "loss"))
        x, y, width, height = await page.box(".u-over")
        await page.call("Input.dispatchMouseEvent", type="mouseMoved", x=x + width / 2, y=y + height / 2)
        await page.until("/^optimizer step \\d+: [-\\d.]+ · /.test(document.querySelector('.chart .value')?.innerText)")
        await page.shot("steps-chosen")


async def test_a_page_of_another_origin_can_neither_read_nor_frame_it(recorded: Path):
    received: list[str] = []

    async def hear(request: web.Request) -> web.Response:
        received.append(request.headers.get("Cookie", ""))
        return web.Response()

    async with opened(recorded) as (page, base), ClientSession() as thief:
        other = web.Application()
        other.router.add_get("/", hear)
        async with TestServer(other) as listener:
            for host in ("localhost", "127.0.0.1"):
                await page.open(f"http://{host}:{listener.port}/")
                sent = f"fetch('{base}api/run', {{credentials: 'include'}}).then(() => 'read', () => 'refused')"
                assert await page.js(sent) == "refused"
                said = await page.js(
                    f"new Promise((done) => {{ const s = new WebSocket('{base.replace('http', 'ws')}api/live');"
                    " s.onmessage = () => done('read'); s.onerror = () => done('refused') })"
                )
                assert said == "refused"
                assert await page.js("localStorage.length") == 0
        assert "dart_streams" in received[-1], "the browser sends the page's cookie to other ports"
        for path, status in (("api/run", 401), ("api/live", 401), ("export/log?topic=actions", 401), ("app.js", 200)):
            async with thief.get(base + path, headers={"Cookie": received[-1]}) as answer:
                assert answer.status == status, path
        page.errors.clear()  # the browser says in the console what was refused


def start(file: Path, *run: str | Path) -> subprocess.Popen[bytes]:
    """Serve a run or a bundle as a run's supervisor does, and return once the address is written by this start."""
    before = file.stat().st_mtime_ns if file.exists() else 0
    command = [sys.executable, "-m", "console.cli", "ui", *map(str, run), "--port", "0"]
    process = subprocess.Popen([*command, "--address-file", str(file)], stderr=subprocess.DEVNULL)
    wait_until(lambda: process.poll() or (file.exists() and file.stat().st_mtime_ns != before), "the address", WAIT_S)
    assert process.poll() is None
    return process


async def test_a_tab_of_an_earlier_start_asks_for_the_token(recorded, tmp_path):
    file = tmp_path / "ui.json"
    file.touch(0o600)
    file.write_text(json.dumps({"url": "", "address": f"http://localhost:{free_port()}", "token": ""}))  # not ephemeral
    process = await asyncio.to_thread(start, file, recorded)
    try:
        async with tab(SHOTS) as page:
            url = json.loads(file.read_bytes())["url"]
            await page.open(url)
            shown = "document.querySelectorAll('.wall .tile').length === 8 && document.getElementById('away').hidden"
            await page.until(shown, "the wall")
            await page.loaded()  # what is not there yet never comes from a server that has ended
            process.kill()
            process.wait()
            await page.until("!document.getElementById('away').hidden", "a sentence that says so")
            await page.shot("away")
            process = await asyncio.to_thread(start, file, recorded)
            assert json.loads(file.read_bytes())["url"] == url, "who has the address need not look for another"
            await page.until(
                "document.body?.innerText.includes('of an earlier start')", "whoever took the port has nothing"
            )
            await page.open(url)
            await page.go("steps")
            await page.until("document.querySelectorAll('td a').length > 0", "the steps, once it has read them")
    finally:
        process.kill()
        process.wait()
