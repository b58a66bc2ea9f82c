"""A task of OSWorld on a machine: its own steps prepare it, and its evaluator in the sidecar scores it."""

import asyncio
import contextlib
import shutil
import tempfile
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path

import msgspec

from dart_desktops.desktop import office_profile
from dart_desktops.desktop.command_line import HOME
from dart_desktops.desktop.sandbox import vscode_folder
from dart_desktops.osworld import panel, steps
from dart_desktops.osworld.browser_devtools import DevToolsClient
from dart_desktops.osworld.environment import TaskSession
from dart_desktops.osworld.machine import Machine, run_command, try_command
from dart_desktops.osworld.mirror import Mirror
from dart_desktops.osworld.oracles import oracle_of
from dart_desktops.osworld.page_replay import serve_pages
from dart_desktops.osworld.pages import WebPages, visits_web
from dart_desktops.osworld.prerequisites import Prerequisites, needs_devtools
from dart_desktops.osworld.settling import SYSTEM_IDLE_S, wait_idle
from dart_desktops.osworld.setup import TaskSetup, fill_cache
from dart_desktops.osworld.sidecar import GRACE_S, EvaluatorSidecar, SidecarReady
from dart_desktops.osworld.tasks import OsworldTask, settled_score
from dart_streams.actions import Action, CallUser, Finished
from dart_streams.deadline import Deadline
from dart_streams.errors import ServiceUnavailable
from workers.env.environment import EnvironmentFault, NoOracle

PASSWORD = "password"
"""Password of the user of OSWorld's image, which commands of tasks contain."""
FIRST_REST_S = 30.0
"""Time limit for applications to become idle after the last step."""
SYSTEM_FIRST_REST_S, SYSTEM_LAST_REST_S = 60.0, 20.0
"""Those on a whole system, before the first screen and before the evaluation: the pauses of OSWorld's runner."""
REST_MARGIN_S = 20.0
"""Time that such a wait leaves of the reset or the evaluation."""
FLUSH_S = 2.0
"""Time in which LibreOffice writes its settings after a dialog was closed."""
MARGIN_S = 5.0
"""Time before the evaluation's deadline at which a hanging sidecar is detected."""
USABLE = """
for folder in "$HOME" /tmp; do
    file=$(mktemp -p "$folder" .usable-XXXXXX) && echo x >"$file" || exit 1
    rm "$file"
done
"""
"""Starts processes and writes to the folders that a task may have filled; such a machine scores 0 in any state."""


HOME_FILES = {
    "/home/user/.config/vlc/vlcrc": b"[lua]\nhttp-password=password\n[core]\nextraintf=http\n",
    "/home/user/.config/vlc/vlc-qt-interface.conf": b"[General]\nIsFirstRun=0\n",
    "/home/user/.config/gtk-3.0/settings.ini": (
        b"[Settings]\ngtk-cursor-blink=false\ngtk-enable-animations=false\ngtk-recent-files-enabled=true\n"
    ),
    f"{HOME}/{office_profile.FOLDER}/registrymodifications.xcu": office_profile.registry_xml(
        *office_profile.SETTINGS,
        ("Setup/Product", "ooSetupLastVersion", "7.4"),
        ("Office.Impress/Misc/Start", "AutoPilot", "false"),
    ),
    "/home/user/.config/mimeapps.list": b"""[Default Applications]
application/pdf=libreoffice-draw.desktop
inode/directory=org.gnome.Nautilus.desktop;pcmanfm.desktop
text/plain=org.xfce.mousepad.desktop
""",
    panel.WALLPAPER: panel.wallpaper_png(),
}
"""Files that OSWorld's image has and our desktops lack. VLC's settings are evaluated though it was never started.

Types of files that several applications take have a default: without one it depends on what else the host has.
"""
TERMINAL_KEY = """
set -e
mkdir -p ~/.config/openbox
key='<keybind key="C-A-t"><action name="Execute"><command>gnome-terminal</command></action></keybind>'
sed "s#</keyboard>#$key</keyboard>#" /etc/xdg/openbox/rc.xml >~/.config/openbox/rc.xml
openbox --reconfigure
"""
"""Binds the keys that open a terminal in OSWorld's image."""


class TaskResources(msgspec.Struct, frozen=True):
    """Resources that all tasks of a worker share; ``ours`` if its machines are desktops of this project.

    ``pages`` are recorded ones of the live web, which only these desktops replay.
    """

    mirror: Mirror
    evaluators: EvaluatorSidecar
    ours: bool
    pages: WebPages | None = None


class OsworldTaskSession(TaskSession):
    """One task on one machine, for one episode."""

    def __init__(self, task: OsworldTask, shared: TaskResources) -> None:
        self.task, self.shared = task, shared
        self.instruction = task.instruction
        self.giving_up = settled_score(task, gave_up=True) or 0.0
        self.start_is_scored = not task.evaluator.infeasible
        self._cache: Path | None = None
        self._setup: TaskSetup | None = None

    async def set_up(self, machine: Machine, deadline: Deadline) -> None:
        """Execute the task's steps, and wait until their applications are idle if the machine can say so."""
        async with limit_time(deadline, f"{self.task.page}: its set-up is not done in time"):
            await self._require_prerequisites()
            await self.close()
            self._cache = Path(tempfile.mkdtemp(prefix="task-", dir=self.shared.evaluators.cache))
            await asyncio.to_thread(fill_cache, self.task, self.shared.mirror, self._cache)
            values = steps.screen_values(*await machine.screen_size(deadline), PASSWORD)
            self._setup = TaskSetup(machine, self.shared.mirror, self._cache, values, self.shared.ours)
            if self.shared.ours:
                await prepare_home(machine)
                if self.shared.pages is not None and visits_web(self.task):
                    await serve_pages(machine, self.shared.pages, self.task)
            await self._setup.carry_out(self.task.config, deadline)
            if self.shared.ours:
                await wait_idle(machine, min(FIRST_REST_S, deadline.remaining_s))
            else:
                await rest_on_system(machine, SYSTEM_FIRST_REST_S, deadline)
            if needs_devtools(self.task):
                async with DevToolsClient(machine.endpoint) as client:
                    await client.list_tabs()  # Without a response evaluators would score 0.

    async def evaluate(self, machine: Machine, deadline: Deadline) -> float:
        """Execute the steps before the evaluation, and return the score of the state after them."""
        if (score := settled_score(self.task, gave_up=False)) is not None:
            return score
        if self._setup is None or self._cache is None:
            raise EnvironmentFault(f"{self.task.page} was not set up")
        async with limit_time(deadline, f"{self.task.page}: its evaluation is not done in time"):
            if not self.shared.ours:
                await rest_on_system(machine, SYSTEM_LAST_REST_S, deadline)
            await self._setup.carry_out((*self.task.evaluator.postconfig, steps.Sleep(seconds=FLUSH_S)), deadline)
            # After the steps: an effect of the last action may take as long to fill the machine.
            await run_command(machine, USABLE, "the machine cannot be evaluated", shell=True, deadline=deadline)
            await self._start_evaluators()
            limit_s = deadline.remaining_s - GRACE_S - MARGIN_S
            if limit_s <= 0:
                raise EnvironmentFault(f"{self.task.page}: no time is left for its evaluation")
            return await self.shared.evaluators.evaluate(self.task, machine.endpoint, self._cache, limit_s)

    async def demonstrate(self, machine: Machine, deadline_s: float) -> AsyncIterator[Action]:
        """Yield the oracle's actions, and ``finished``: such a task does not end by itself.

        An infeasible one is given up by ``call_user``; few others have an oracle.
        """
        if self.task.evaluator.infeasible:
            yield CallUser()
            return
        made = await asyncio.to_thread(self.shared.mirror.is_made_for, self.task)
        if (oracle := oracle_of(self.task, made)) is None:
            raise NoOracle(f"{self.task.page} has no oracle: it cannot be demonstrated")
        async for action in oracle.demonstrate(partial(try_command, machine, limit_s=deadline_s)):
            yield action
        yield Finished()

    async def close(self) -> None:
        """Remove the evaluator's files; never raises."""
        cache, self._cache, self._setup = self._cache, None, None
        if cache is not None:
            await asyncio.to_thread(shutil.rmtree, cache, ignore_errors=True)

    async def _require_prerequisites(self) -> None:
        """Raise EnvironmentFault with the reason if the task cannot be played here."""
        ready = SidecarReady() if self.task.evaluator.infeasible else await self._start_evaluators()
        shared = self.shared
        needs = Prerequisites(
            ready.metrics,
            ready.getters,
            shared.mirror,
            ours=shared.ours,
            pages=shared.pages,
            vscode=bool(vscode_folder()),
        )
        if (obstacle := needs.obstacle(self.task)) is not None:
            raise EnvironmentFault(f"{self.task.page} cannot be played here: {obstacle}")

    async def _start_evaluators(self) -> SidecarReady:
        try:
            return await self.shared.evaluators.start()
        except ServiceUnavailable as error:
            raise EnvironmentFault(str(error)) from None


async def prepare_home(machine: Machine) -> None:
    """Give a fresh desktop files, key, panel and dock of OSWorld's image; raise EnvironmentFault if that fails."""
    for path, content in HOME_FILES.items():
        await machine.upload(path, content)
    await run_command(machine, TERMINAL_KEY, "the desktop takes no key for a terminal", shell=True)
    await run_command(machine, panel.SHOW_WALLPAPER, "the desktop takes no wallpaper", shell=True)
    script = panel.start_script(*await machine.screen_size())
    await run_command(machine, script, "the panel does not come up", shell=True)


async def rest_on_system(machine: Machine, limit_s: float, deadline: Deadline) -> None:
    """Wait until a whole system is idle, if time is left; one on which a service always works is used as it is."""
    if (rest_s := min(limit_s, deadline.remaining_s - REST_MARGIN_S)) > 0:
        await wait_idle(machine, rest_s, SYSTEM_IDLE_S)


@contextlib.asynccontextmanager
async def limit_time(deadline: Deadline, late: str) -> AsyncIterator[None]:
    """Bound a block in time; raise EnvironmentFault with ``late`` past the deadline, and for an OSError."""
    try:
        async with deadline.timeout():
            yield
    except TimeoutError:
        raise EnvironmentFault(late) from None
    except OSError as error:
        raise EnvironmentFault(f"files of the task cannot be read or written: {error}") from None
