"""Accessibility of a page by axe-core, and texts that do not fit, in the browser of the tests."""

from pathlib import Path

import pytest

from tests.integration.page_browser import Tab

AXE = Path(__file__).parents[2] / ".venv/web/node_modules/axe-core/axe.min.js"
needs_axe = pytest.mark.skipif(not AXE.exists(), reason="axe-core is not there: make setup, with npm")
AUDIT_S = 600.0
"""A safety net: axe-core computes the style of each element, on machines that do other things at the same time."""
VIOLATIONS = """axe.run(document, {resultTypes: ["violations"], preload: false}).then(({violations}) =>
    violations.flatMap((rule) => rule.nodes.map((node) =>
        `${rule.id} at ${node.target.join(" ")}: ${node.failureSummary.split("\\n").slice(1).join(" ").trim()}`)))"""
STRIPS = ".cells, .film"
"""Rows of screens scroll sideways; all else has room."""
DRAWN = "new Promise((drawn) => requestAnimationFrame(() => requestAnimationFrame(() => drawn(true))))"
CUT = f"""(() => {{
    const cut = [...document.querySelectorAll("body *")].filter((one) => one.clientWidth
        && one.scrollWidth > one.clientWidth + 1 && getComputedStyle(one).overflowX !== "visible"
        && !one.matches("{STRIPS}, input, select, svg") && !one.closest("[title], summary"));
    const wide = document.documentElement.scrollWidth - document.documentElement.clientWidth;
    const named = (one) => `${{one.tagName.toLowerCase()}}.${{one.className}}: ${{one.textContent.slice(0, 60)}}`;
    return [...(wide > 0 ? [`the page by ${{wide}} pixels`] : []), ...cut.map(named)];
}})()"""


async def find_violations(page: Tab) -> list[str]:
    """Return what axe-core finds on a page, each with its rule, selector and reason."""
    if not await page.js("'axe' in window"):
        await page.js(f"{AXE.read_text()}; undefined")
    await page.loaded()
    wanted = {"expression": VIOLATIONS, "returnByValue": True, "awaitPromise": True}
    answer = await page.devtools.call("Runtime.evaluate", page.session, AUDIT_S, **wanted)
    found: list[str] = answer["result"]["value"]
    return found


async def find_cut_texts(page: Tab) -> list[str]:
    """Return what is wider than its room: cut without a title, or scrolled sideways. Charts fit by the next frame."""
    await page.js(DRAWN)
    found: list[str] = await page.js(CUT)
    return found
