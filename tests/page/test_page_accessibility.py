"""The page, its list of runs and the report in a real Chromium: axe-core finds nothing, texts fit at three widths."""

import contextlib
import shutil
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import msgspec
import pytest
from aiohttp import web

from console.launch.folder_catalog import FolderCatalog
from console.launch.services import jars
from console.runs.bundle import Bundle
from console.runs.run_log import RecordMetadata
from console.views.page import export
from console.views.page.assets import load_assets
from console.views.page.bundle_source import BundleSource
from console.views.page.guard import Guard
from console.views.page.server import PageServer
from console.views.play.play_server import PlayServer, load_play_files
from console.views.play.player import PersonClient
from dart_streams.config import parse
from dart_streams.config.tasks import Task
from tests import events
from tests.integration.page_audit import find_cut_texts, find_violations, needs_axe
from tests.integration.page_browser import PHONE, SIZE, Tab, tab
from tests.integration.recorded_run import record, settings
from tests.page.test_page import SHOTS, TABS, beside, served

WIDE = (1920, 1080)
LONG = "miniwob/click-checkboxes-transfer-of-a-long-name#12345"
FOUND_PLACES = (
    "search?q=box",
    "search?q=nothing-is-called-so",
    "log?topic=observations&q=onerror",
    "log?topic=dead+letters",
    "wall?as=carpet",
    "nosuch",
    "trajectory?id=nosuch",
)
GOLDEN = Path(__file__).parents[1] / "unit/golden/bundle.v1.dart"
NAMES = ("a.dart", "runs/a-bundle-of-a-rather-long-name-that-somebody-chose.dart", "runs/b.dart")
SIZES = (("1920", WIDE, False), ("1280-dark", SIZE, True), ("390-dark", PHONE, True), ("390", PHONE, False))
Check = Callable[[Tab], Awaitable[list[str]]]


@pytest.fixture(scope="module")
def recorded(tmp_path_factory) -> Path:
    """A small run: axe-core's time grows with the rows of its tables."""
    config = settings(step_ms=100)
    few = msgspec.structs.replace(config.evaluation, episodes=8)
    return record(tmp_path_factory.mktemp("page") / "run.dart", 24, msgspec.structs.replace(config, evaluation=few))


@pytest.fixture
def source(recorded: Path) -> BundleSource:
    """A recorded run that has had faults, an alarm and tasks of long names too."""
    source = BundleSource(Bundle(recorded)).read()
    state = source.state
    last = state.trained[max(state.trained)]
    state.trained[last.train_step] = msgspec.structs.replace(
        last, metrics=last.metrics | {"same_version_mismatch": 0.3}
    )
    for identity, header in list(state.last_screens.items())[-3:]:
        order = msgspec.structs.replace(header.order, task_id=LONG)
        state.last_screens[identity] = msgspec.structs.replace(header, order=order)
    for number in range(2):
        for event in events.episode(number, kind="env_error"):
            state.apply(RecordMetadata("observations", 0, 0, 0), event)
    return source


async def places_of(page: Tab) -> list[str]:
    """Return the address of a page of each kind."""
    places = [*TABS, *FOUND_PLACES]
    links = {"steps": "td a", "step": "td a", "group": ".cell", "tasks": "td a", "compare": "td a"}
    for start, link in links.items():
        await page.go(next(one for one in reversed(places) if one.startswith(start)))
        places.append(await page.first_link(link))
    return places


async def check_places(page: Tab, places: list[str], check: Check, name: str) -> list[str]:
    """Return what a check finds on each page, with the page."""
    found = []
    for place in places:
        await page.go(place)
        found += [f"{name} {place}: {one}" for one in await check(page)]
    return found


@contextlib.asynccontextmanager
async def opened_file(source: BundleSource, file: Path) -> AsyncIterator[Tab]:
    """Yield a tab on the report of a run, a file."""
    await export.write(source, load_assets(jars.plots_folder()), file)
    async with tab(SHOTS) as page:
        await page.open(file.as_uri())
        await page.at("")
        yield page


@needs_axe
@pytest.mark.timeout(1800)
async def test_axe_finds_nothing_on_any_page_in_light_and_dark(source: BundleSource):
    async with served(source, jars.plots_folder()) as (page, _):
        places = await places_of(page)
        found = await check_places(page, places, find_violations, "light")
        await page.dark()
        await page.resize(*PHONE, phone=True)
        found += await check_places(page, places, find_violations, "dark-phone")
        page.errors.clear()  # an id that does not exist is answered with 404, and the console says so
    assert found == []


@needs_axe
@pytest.mark.timeout(1800)
async def test_axe_finds_nothing_in_the_report_in_light_and_dark(source: BundleSource, tmp_path: Path):
    async with opened_file(source, tmp_path / "report.html") as page:
        places = ["report", "steps", "tasks", "time", await page.first_link(".sample .cell")]
        found = await check_places(page, places, find_violations, "file-light")
        await page.dark()
        found += await check_places(page, places, find_violations, "file-dark")
    assert found == []


async def find_in_both_themes(application: web.Application, query: str = "") -> list[str]:
    """Return what axe-core finds on the first page of a server, in light and dark."""
    async with beside(application) as (page, base):
        await page.open(base + query)
        found = await find_violations(page)
        await page.dark()
        return found + await find_violations(page)


@needs_axe
async def test_axe_finds_nothing_where_the_token_is_asked_for(recorded: Path):
    guard = Guard(frozenset(), 1, tls=False)
    page = PageServer(BundleSource(Bundle(recorded)).read(), guard, load_assets(None))
    assert await find_in_both_themes(page.application()) == []


@needs_axe
async def test_axe_finds_nothing_on_the_page_of_a_person_who_plays():
    player = PersonClient(parse({}), Task(environment="miniwob", page="x", seed=1, max_steps=5, split="train"))
    guard = Guard(frozenset(), 1, tls=False)
    page = PlayServer(player, guard, load_play_files())
    assert await find_in_both_themes(page.application(), f"?token={guard.token}") == []


@pytest.mark.timeout(1800)
async def test_texts_fit_at_three_widths(source: BundleSource, tmp_path: Path):
    found = []
    async with served(source, jars.plots_folder()) as (page, _):
        places = await places_of(page)
        for name, size in (("1920", WIDE), ("1280", SIZE), ("390", PHONE)):
            await page.resize(*size, phone=size == PHONE)
            found += await check_places(page, places, find_cut_texts, name)
        await page.go("wall")
        names = await page.js("[...document.querySelectorAll('.tile .name')].map((one) => one.innerText)")
        assert LONG.rpartition("/")[2] in names
        page.errors.clear()
    async with opened_file(source, tmp_path / "report.html") as page:
        for name, size in (("file-1920", WIDE), ("file-390", PHONE)):
            await page.resize(*size, phone=size == PHONE)
            found += await check_places(page, ["report", "steps"], find_cut_texts, name)
    assert found == []


async def test_a_record_of_the_log_can_be_read_on_a_phone(recorded: Path):
    async with served(BundleSource(Bundle(recorded)).read()) as (page, _):
        await page.resize(*PHONE, phone=True)
        await page.go("log?topic=trajectories")
        shown = await page.js("document.querySelector('.record .value').getBoundingClientRect().width")
        assert shown > 0.9 * await page.js("document.querySelector('.records').clientWidth") - 20
        value, rest = await page.js(
            "((one) => [one.innerText, one.scrollWidth - one.clientWidth])(document.querySelector('.record .value'))"
        )
        assert "trajectory_id" in value
        assert rest <= 0


@pytest.fixture
def listed(tmp_path: Path) -> Path:
    """A state folder with bundles, of which one is damaged."""
    for name in NAMES:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        shutil.copy(GOLDEN, tmp_path / name)
    (tmp_path / "runs/torn.dart").write_bytes(GOLDEN.read_bytes()[:-20])
    return tmp_path


@needs_axe
@pytest.mark.timeout(1800)
async def test_the_list_of_runs_fits_and_axe_finds_nothing(listed: Path):
    source = BundleSource(Bundle(listed / NAMES[0])).read()
    guard = Guard(frozenset(), 1, tls=False)
    page_server = PageServer(source, guard, load_assets(None), catalog=FolderCatalog(listed, source))
    found = []
    async with beside(page_server.application()) as (page, base):
        await page.open(f"{base}?token={guard.token}")
        await page.open(f"{base}?run=runs%2Fb.dart&against={NAMES[1]}#/runs?export={NAMES[1]}")
        for name, size, dark in SIZES:
            await page.resize(*size, phone=size == PHONE)
            await page.dark(dark)
            await page.until("document.querySelectorAll('tbody tr').length === 4", "the list")
            problems = [*await find_cut_texts(page), *await find_violations(page)]
            found += [f"{name}: {one}" for one in problems]
            await page.shot(f"runs-list-{name}")
        assert page.errors == []
    assert found == []
