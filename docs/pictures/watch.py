"""Takes README's pictures of the page: ``python -m docs.pictures.watch ADDRESS`` while a run with web pages goes on.

The address is the one that ``dart-streams run`` prints. It writes the wall, optimizer step 30, and a trajectory that
succeeded after at least two actions.
"""

import asyncio
import sys
from pathlib import Path

from tests.integration.page_browser import tab

FOLDER = Path(__file__).parent
ROWS = "[...document.querySelectorAll('tbody tr')]"
LINK = f"{ROWS}.find((row) => Number(row.cells[5].innerText) >= 2)?.querySelector('a')"


async def take(address: str) -> None:
    """Write the pictures."""
    async with tab(FOLDER) as page:
        await page.open(address)
        await page.go("trajectories?outcome=success&purpose=train")
        await page.until(f"!!{LINK}", "a success of two actions")
        await page.go(str(await page.js(f"{LINK}.getAttribute('href')")).removeprefix("#/"))
        await page.shot("watch-trajectory")
        await page.go("step?id=30")
        await page.shot("watch-step")
        await page.go("wall")
        await page.shot("watch-wall")


if __name__ == "__main__":
    asyncio.run(take(sys.argv[1]))
