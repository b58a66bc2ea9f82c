"""Print the texts of a run's web page in a browser as JSON. Usage: ``python -m tests.compose.look ADDRESS FOLDER``.

The folder gets pictures of it.
"""

import asyncio
import json
import sys
from pathlib import Path

from tests.integration.page_browser import browser_tab

FIRST_LINK = "document.querySelector('td a')?.getAttribute('href')"
RUN = "(name => name !== 'dart_streams' && name)(document.getElementById('run').innerText)"
"""The run's id, once the page has its first message."""
TEXT = "document.querySelector('.page').innerText"


async def look(address: str, shots: Path) -> dict[str, object]:
    async with browser_tab(shots) as page:
        await page.open(address)
        await page.at("")
        await page.shot("wall")
        shown = {"run": await page.until(f"document.querySelector('.wall') && {RUN}", "the run's id")}
        for place in ("trajectories", "steps"):
            await page.go(place)
            first = await page.until(FIRST_LINK, f"a link of {place}")
            await page.go(first.removeprefix("#/"))
            await page.shot(place)
            shown[place] = await page.js(TEXT)
        return {**shown, "errors": page.errors}


if __name__ == "__main__":
    sys.stdout.write(json.dumps(asyncio.run(look(sys.argv[1], Path(sys.argv[2])))))
