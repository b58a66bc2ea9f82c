"""The page as one file shows the report and its sample episodes in a real Chromium, and loads nothing."""

import asyncio
import contextlib
import hashlib
import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from console.launch.services import jars
from console.runs.bundle import Bundle
from console.views.page import export
from console.views.page.assets import load_assets
from console.views.page.bundle_source import BundleSource
from tests.integration.exported_page import answers, screens
from tests.integration.page_browser import Tab, tab
from tests.integration.recorded_run import HOSTILE, record
from tests.page.test_page import SHOTS

IN_FILE = ("report", "compare", "steps", "tasks", "time")
LARGEST = 150_000
"""Bytes of the file of a small run: scripts, style and the plot library are 97,000 of them."""


def exported(folder: Path, plots: Path | None) -> Path:
    record(folder / "run.dart", 90)
    source = BundleSource(Bundle(folder / "run.dart")).read()
    asyncio.run(export.write(source, load_assets(plots), folder / "run.html"))
    return folder / "run.html"


@pytest.fixture(scope="module")
def file(tmp_path_factory) -> Path:
    return exported(tmp_path_factory.mktemp("export"), jars.plots_folder())


def test_the_file_has_what_the_report_had_and_intact_screens(file: Path):
    kept = answers(file)
    report = kept["report?"]
    assert report["report"]["success_before"] is not None
    assert report["samples"], "the run was evaluated before and after"
    for pair in report["samples"]:
        for episode in (pair["a"], pair["b"]):
            played = kept[f"trajectory?id={episode['trajectory_id']}"]
            shots = {step["event"]["screenshot"]["sha256"] for step in played["steps"] if step["event"]["screenshot"]}
            assert shots
            assert shots <= screens(file).keys()
    assert all(hashlib.sha256(image).hexdigest() == name for name, image in screens(file).items())
    assert file.stat().st_size < LARGEST
    assert HOSTILE not in file.read_text(), "what an agent wrote is nowhere in the clear"


@contextlib.asynccontextmanager
async def opened(file: Path) -> AsyncIterator[Tab]:
    """Yield a tab on a page's file, which must give the console no error to show."""
    async with tab(SHOTS) as page:
        await page.open(file.as_uri())
        yield page
        assert page.errors == []


async def test_it_opens_from_disk_wide_and_narrow_light_and_dark(file: Path):
    async with opened(file) as page:
        await page.at("")
        assert await page.js("document.querySelector('.page').dataset.page") == "report"
        places = [*IN_FILE]
        await page.go("steps")
        places.append(await page.first_link("td a"))
        await page.go("report")
        places.append(await page.first_link(".sample .cell"))
        await page.tour(places, "file-")
        assert await page.js("document.querySelector('.way')?.innerText ?? ''") == "", "an evaluation is in no group"
        assert [url for url in page.requests if not url.startswith(("data:", file.as_uri()))] == []


async def test_the_page_reads_each_answer_as_it_was_written(file: Path):
    kept = answers(file)
    curves = kept["steps?"]
    async with opened(file) as page:
        await page.at("")
        for key, wanted in kept.items():
            view, _, query = key.partition("?")
            pairs = [pair.split("=", 1) for pair in query.split("&") if pair]
            asked = f"module.answer({json.dumps(view)}, {json.dumps(pairs)})"
            read = await page.js(f"import('dart/archive.js').then((module) => {asked})")
            if view == "step":
                place = curves["steps"].index(wanted["event"]["train_step"])
                lines = {name: line[place] for name, line in curves["metrics"].items() if line[place] is not None}
                assert lines
                wanted["event"]["metrics"] = lines
            assert read == wanted, key


@pytest.mark.skipif(jars.plots_folder() is None, reason="the jar of the plots is not there: make setup")
async def test_its_plots_are_drawn(file: Path):
    async with opened(file) as page:
        await page.until("document.querySelectorAll('.chart canvas').length >= 4")


async def test_a_sample_is_played_screen_by_screen_and_hostile_texts_stay_texts(file: Path):
    async with opened(file) as page:
        await page.click(".sample .strip:last-child .cell")
        await page.until("document.querySelector('.stage img')?.naturalWidth === 160", "the screen")
        await page.press("Home")
        await page.until("!!document.querySelector('.said')")
        assert HOSTILE in await page.js("document.querySelector('.said').textContent")
        await page.click("details summary")
        await page.until("document.querySelectorAll('.turn').length > 0", "the prompt")
        assert await page.count("main script, main img[src=x]") == 0
        assert "owned" not in await page.js("document.title")
        await page.press("End")
        await page.until("!!document.querySelector('.end')")


async def test_what_it_has_not_is_a_sentence_and_nothing_can_be_sent_from_it(file: Path):
    async with opened(file) as page:
        await page.go("group?id=g1")
        assert "dart-streams ui RUN|BUNDLE" in await page.text(".problem")
        sent = "fetch('http://127.0.0.1:9/').then(() => 'sent', (error) => error.message)"
        assert await page.js(sent) != "sent"
        assert any("Content Security Policy" in error for error in page.errors)
        page.errors.clear()  # the console says what was refused


async def test_without_the_plot_library_it_still_opens(tmp_path: Path):
    path = await asyncio.to_thread(exported, tmp_path, None)
    planted = "<script src='data:text/javascript,window.planted=1'></script></body>"
    path.write_text(path.read_text().replace("</body>", planted))
    async with opened(path) as page:
        await page.until("document.body.innerText.includes('make setup')")
        assert await page.js("typeof window.planted") == "undefined", "no script of the file's text runs"
        page.errors.clear()
