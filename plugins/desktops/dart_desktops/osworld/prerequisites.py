"""Reasons in a task's file why it cannot be played."""

import re
from collections.abc import Container, Iterator, Mapping

from dart_desktops.osworld import steps
from dart_desktops.osworld.mirror import Mirror, needed_urls
from dart_desktops.osworld.pages import LIVE_GETTERS, WebPages, visited_addresses
from dart_desktops.osworld.tasks import OsworldTask

UNUSABLE_METRICS = {
    "compare_image_text": "needs easyocr",
    "check_python_file_by_test_suite": "would run the policy's program on the worker's machine",
}
"""Metrics with the reason: a stub of the package is installed, or code of the policy would run."""
ACCOUNTS = frozenset({"googledrive_file"})
DEVTOOLS_GETTERS = frozenset({"active_tab_info", "open_tabs_info"})
"""Getters that ask the browser by DevTools; without a response they score 0."""
VSCODE = "VS Code"
ABSENT_PROGRAMS = {"code": VSCODE, "snap": "snap", "conda": "conda"}
"""Programs of OSWorld's image that Debian does not package, or that cannot run in a sandbox."""
VSCODE_APPS = frozenset({"vscode", "vs_code"})
NETWORK_COMMANDS = re.compile(r"\b(pip3?|wget|npm)\s+(-\S+\s+)*(install|update|https?:)|\bgit clone\b")
APT_COMMANDS = re.compile(r"\bapt(?:-get)?\s+(?:-\S+\s+)*(?:install|update)\b([^&|;]*)")
PREINSTALLED = frozenset({"jq", "sysstat", "unzip", "xsel"})
"""Packages that tasks install, which our desktops have already (``make osworld``)."""
SYSTEM_COMMANDS = re.compile(r"\b(systemctl|timedatectl|pactl|pulseaudio)\b")


def needs_devtools(task: OsworldTask) -> bool:
    """Return whether a task begins with a browser that its evaluator asks by DevTools."""
    launched = any(isinstance(step, steps.Launch) and "chrome" in str(step.command) for step in task.config)
    return launched and any(getter.name in DEVTOOLS_GETTERS for getter in task.evaluator.getters())


class Prerequisites:
    """Available metrics and getters of the evaluators' package, and a mirror.

    With ``ours`` the machine is a desktop of this project, without a network, services, and some applications. Recorded
    ``pages`` take the place of the live web there; ``vscode`` is whether VS Code's server is installed.
    """

    def __init__(
        self,
        metrics: Container[str],
        getters: Container[str],
        mirror: Mirror,
        *,
        ours: bool = True,
        pages: WebPages | None = None,
        vscode: bool = False,
    ) -> None:
        self.metrics, self.getters, self.mirror, self.ours = metrics, getters, mirror, ours
        self.pages = pages if ours else None
        self.absent = {name: what for name, what in ABSENT_PROGRAMS.items() if not (vscode and what == VSCODE)}

    def obstacle(self, task: OsworldTask) -> str | None:
        """Return the first reason why a task cannot be played here, None if there is none."""
        return next(self._obstacles(task), None)

    def _obstacles(self, task: OsworldTask) -> Iterator[str]:
        yield from (step.refused for step in task.steps() if step.refused)
        yield from self._of_evaluator(task)
        if self.ours:
            if VSCODE in self.absent.values():
                yield from (f"needs {VSCODE}" for app in task.related_apps if app in VSCODE_APPS)
            for step in task.steps():
                yield from step_obstacles(step, self.absent)
        yield from self._of_web(task)
        missing = [url for url in needed_urls(task) if self.mirror.find(url) is None]
        if missing:
            yield f"{len(missing)} of its {len(needed_urls(task))} files are not in the mirror"

    def _of_evaluator(self, task: OsworldTask) -> Iterator[str]:
        for check in task.evaluator.checks:
            if check.metric in UNUSABLE_METRICS:
                yield f"its metric {check.metric} {UNUSABLE_METRICS[check.metric]}"
            if check.metric not in self.metrics and not task.evaluator.infeasible:
                yield f"the package has no metric {check.metric}"
        for getter in task.evaluator.getters():
            if getter.name in ACCOUNTS:
                yield "needs an account of Google Drive"
            if self.ours and SYSTEM_COMMANDS.search(str(getter.settings.get("command", ""))):
                yield "its evaluator needs services of a whole system"
            if getter.name in LIVE_GETTERS and self.pages is None:
                yield f"its evaluator reads the live web ({getter.name})"
            if getter.name not in self.getters:
                yield f"the package has no getter {getter.name}"

    def _of_web(self, task: OsworldTask) -> Iterator[str]:
        visited = visited_addresses(task)
        if self.pages is not None:
            missing = [url for url in visited if self.pages.state_of(url) == "missing"]
            if missing:
                yield f"{len(missing)} of its {len(visited)} web pages are not in {self.pages.folder}"
        elif visited and self.ours:
            yield "visits the live web"


def step_obstacles(step: steps.Step, absent: Mapping[str, str]) -> Iterator[str]:
    """Yield the reasons why a step cannot be executed on a desktop of this project."""
    if isinstance(step, (steps.Launch, steps.ExecuteCommand)):
        words = step.command.split() if isinstance(step.command, str) else step.command
        text = " ".join(words)
        if (program := words[0].rpartition("/")[2] if words else "") in absent:
            yield f"needs {absent[program]}"
        if NETWORK_COMMANDS.search(text) or installed_packages(text) - PREINSTALLED:
            yield "installs or fetches something by network"
        if SYSTEM_COMMANDS.search(text):
            yield "needs services of a whole system"


def installed_packages(command: str) -> set[str]:
    """Return the packages that a command installs by apt."""
    words = {word for names in APT_COMMANDS.findall(command) for word in names.split()}
    return {word for word in words if not word.startswith("-")}
