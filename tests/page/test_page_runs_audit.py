"""The list of runs in a real Chromium: axe-core finds nothing, and texts fit at three widths."""

import shutil
from pathlib import Path

import pytest

from dart_streams.console.launch.folder_catalog import FolderCatalog
from dart_streams.console.runs.bundle import Bundle
from dart_streams.console.views.page.assets import load_assets
from dart_streams.console.views.page.bundle_source import BundleSource
from dart_streams.console.views.page.guard import Guard
from dart_streams.console.views.page.server import PageServer
from tests.integration.page_audit import find_cut_texts, find_violations, needs_axe
from tests.integration.page_browser import PHONE, SIZE
from tests.page.test_page import beside

GOLDEN = Path(__file__).parents[1] / "unit/golden/bundle.v1.dart"
NAMES = ("a.dart", "runs/a-bundle-of-a-rather-long-name-that-somebody-chose.dart", "runs/b.dart")
WIDE = (1920, 1080)
SIZES = (("1920", WIDE, False), ("1280-dark", SIZE, True), ("390-dark", PHONE, True), ("390", PHONE, False))


@pytest.fixture
def state(tmp_path: Path) -> Path:
    """A state folder with bundles, of which one is damaged."""
    for name in NAMES:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        shutil.copy(GOLDEN, tmp_path / name)
    (tmp_path / "runs/torn.dart").write_bytes(GOLDEN.read_bytes()[:-20])
    return tmp_path


@needs_axe
@pytest.mark.timeout(1800)
async def test_the_list_fits_and_axe_finds_nothing(state: Path):
    source = BundleSource(Bundle(state / NAMES[0])).read()
    guard = Guard(frozenset(), 1, tls=False)
    page_server = PageServer(source, guard, load_assets(None), catalog=FolderCatalog(state, source))
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
