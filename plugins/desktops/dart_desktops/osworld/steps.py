"""The steps in an OSWorld task's file, which prepare its machine."""

from collections.abc import Sequence
from typing import Any, ClassVar

import msgspec

Command = str | list[str]
Flag = bool | str
"""Boolean of a task file, in some files as text."""


class StepError(ValueError):
    """The step has an unknown type or wrong parameters."""


class Step(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="type"):
    """One step; ``refused`` is the reason why it can never be executed here, if any."""

    refused: ClassVar[str] = ""

    @property
    def name(self) -> str:
        """Its type, as in the task file."""
        return str(self.__struct_config__.tag)


class DownloadedFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A file for the machine: its URL, and its path there."""

    url: str
    path: str


class VisitedPage(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An entry of a browser's history."""

    url: str
    title: str
    visit_time_from_now_in_seconds: float


class Download(Step, frozen=True, tag="download"):
    """Copies files to the machine."""

    files: list[DownloadedFile]


class Launch(Step, frozen=True, tag="launch"):
    """Starts a program without waiting for it."""

    command: Command
    shell: Flag = False


class ExecuteCommand(Step, frozen=True, tag="execute"):
    """Runs a command to its end; ``stdout`` and ``stderr`` name files of the cache for its output.

    The command is repeated until it meets ``until`` (``returncode``, or a text in ``stdout`` or ``stderr``).
    """

    command: Command
    shell: Flag = False
    stdout: str = ""
    stderr: str = ""
    until: dict[str, Any] = {}


class RunCommand(ExecuteCommand, frozen=True, tag="command"):
    """Alias of ``execute``."""


class Sleep(Step, frozen=True, tag="sleep"):
    """Waits."""

    seconds: float


class OpenFile(Step, frozen=True, tag="open"):
    """Opens a file in its application and waits for the window."""

    path: str


class ActivateWindow(Step, frozen=True, tag="activate_window"):
    """Brings a window to the front."""

    window_name: str
    strict: bool = False
    by_class: bool = False


class CloseWindow(ActivateWindow, frozen=True, tag="close_window"):
    """Closes a window."""


class ChromeOpenTabs(Step, frozen=True, tag="chrome_open_tabs"):
    """Opens pages in the browser."""

    urls_to_open: list[str]


class ChromeCloseTabs(Step, frozen=True, tag="chrome_close_tabs"):
    """Closes the tabs of these pages."""

    urls_to_close: list[str]


class UpdateBrowseHistory(Step, frozen=True, tag="update_browse_history"):
    """Adds visits to the browser's history."""

    history: list[VisitedPage]


class GoogleDrive(Step, frozen=True, tag="googledrive"):
    """Changes an account's files."""

    refused: ClassVar[str] = "needs an account of Google Drive"
    settings_file: str
    operation: list[str]
    args: list[Any]


class SignIn(Step, frozen=True, tag="login"):
    """Signs in to a web site."""

    refused: ClassVar[str] = "needs an account of a web site"
    settings_file: str
    platform: str


AnyStep = (
    Download
    | Launch
    | ExecuteCommand
    | RunCommand
    | Sleep
    | OpenFile
    | ActivateWindow
    | CloseWindow
    | ChromeOpenTabs
    | ChromeCloseTabs
    | UpdateBrowseHistory
    | GoogleDrive
    | SignIn
)
TYPES = {str(kind.__struct_config__.tag): kind for kind in AnyStep.__args__}


def parse_step(data: Any) -> Step:
    """Parse a step of a task file; raise StepError that names its type or parameter."""
    if not isinstance(data, dict) or set(data) - {"type", "parameters"}:
        raise StepError("a step has a type and parameters, no more")
    name = data.get("type")
    if not isinstance(name, str) or name not in TYPES:
        raise StepError(f"no step {name!r} is known: there are {', '.join(TYPES)}")
    try:
        step: Step = msgspec.convert({"type": name, **data.get("parameters", {})}, TYPES[name])
    except (msgspec.ValidationError, TypeError) as error:
        raise StepError(f"{name}: {error}") from None
    return step


def parse_steps(data: Any) -> tuple[Step, ...]:
    """Parse a list of steps; raise StepError that names the first wrong one by its number."""
    steps: list[Step] = []
    if data is not None and not isinstance(data, list):
        raise StepError(f"steps are a list, not {type(data).__name__}")
    for number, item in enumerate(data or [], 1):
        try:
            steps.append(parse_step(item))
        except StepError as error:
            raise StepError(f"step {number}: {error}") from None
    return tuple(steps)


def replace_values(command: Command, values: dict[str, str]) -> Command:
    """Replace ``{NAME}`` in a command by the value of each name."""

    def with_values(text: str) -> str:
        for name, value in values.items():
            text = text.replace(f"{{{name}}}", value)
        return text

    return with_values(command) if isinstance(command, str) else [with_values(part) for part in command]


def screen_values(width: int, height: int, password: str) -> dict[str, str]:
    """Return the values for names in commands."""
    return {
        "CLIENT_PASSWORD": password,
        "SCREEN_WIDTH_HALF": str(width // 2),
        "SCREEN_HEIGHT_HALF": str(height // 2),
        "SCREEN_WIDTH": str(width),
        "SCREEN_HEIGHT": str(height),
    }


def split_command(command: Command, shell: Flag) -> Command:
    """Return a command for the machine; without a shell a text is split at blanks, as in OSWorld."""
    if isinstance(command, str) and not is_true(shell) and len(command.split()) > 1:
        return command.split()
    return command


def is_true(flag: Flag) -> bool:
    """Return the value of a boolean, also if it is text."""
    return flag.strip().lower() == "true" if isinstance(flag, str) else flag


def urls_of(steps: Sequence[Step]) -> list[str]:
    """Return the URLs of the steps' downloads."""
    return [file.url for step in steps if isinstance(step, Download) for file in step.files]
