"""Web pages of the user's, in the folder ``env.miniwob.pages_folder``, or of a proposed task.

A page is an HTML file with a global object ``task`` of three methods:

- ``reset(seed)`` prepares the problem of a seed and returns the instruction (a promise of it works too);
- ``evaluate()`` returns null while the episode goes on, and its reward, in [0, 1], once it has ended;
- ``demonstrate()`` returns the next correct action. It is needed for demonstrations only.
"""

import shutil
from pathlib import Path

from dart_streams.config import Miniwob
from dart_streams.config.tasks import Task
from workers.env.backends.miniwob.oracle import HELPERS
from workers.env.backends.miniwob.page import ANY, MiniwobPage
from workers.env.backends.miniwob.page_scripts import FOLDER
from workers.env.backends.miniwob.target import Target
from workers.env.environment import EnvironmentFault

SCRIPT = FOLDER.joinpath("own_page.js").read_text(encoding="utf-8")


def page_script(expression: str) -> str:
    """Return a script that yields an expression over the functions of own_page.js."""
    return f"(() => {{ {HELPERS}; {SCRIPT}; return {expression}; }})()"


class OwnPage(MiniwobPage):
    """An episode on a page of the user's; its document is loaded afresh each time."""

    layout = Miniwob.screen
    state_script = page_script("state()")

    def document(self, task: Task) -> str:
        """Return no document: nothing is known of what a problem leaves behind in it."""
        return ANY

    def url(self, task: Task) -> str:
        """Return the address of the task's file, of a proposed page a copy; raise EnvironmentFault if it is gone."""
        if task.file and (browser := self.browser.browser) is not None:
            copy = browser.folder / "pages" / Path(task.file).name  # The browser reads no folder of proposals.
            if not copy.exists():
                shutil.copyfile(task.file, copy)
            return copy.as_uri()
        if (path := self.settings.own_page(task.page)) is None:
            raise EnvironmentFault(f"page {task.page!r} is gone from {self.settings.pages_folder}")
        return path.absolute().as_uri()

    def next_script(self, task: Task) -> str:
        """Return the script that yields the page's next correct action."""
        return page_script("next()")

    def reward(self) -> float:
        """Return what the page says, which is in [0, 1]."""
        return float(self.raw_reward)

    async def _start(self, target: Target, task: Task) -> str:
        return str(await target.evaluate_script(page_script(f"first({task.seed})"), wait=True))
