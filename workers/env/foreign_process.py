"""Processes that run foreign content, such as browsers: the variables that they get, and their session's priority."""

import contextlib
import os
from pathlib import Path

OF_A_LOGIN = ("HOME", "LANG", "LC_ALL", "LD_LIBRARY_PATH", "PATH", "TMPDIR", "TZ", "USER")


def login_variables(*further: str) -> dict[str, str]:
    """Return the environment variables of a login, and ``further`` ones, without this process's other secrets."""
    return {name: os.environ[name] for name in (*OF_A_LOGIN, *further) if name in os.environ}


def lower_session(pid: int, niceness: int) -> None:
    """Lower the priority of a process's session; with autogroups, a niceness counts only within it. Never raises."""
    with contextlib.suppress(OSError):  # It has ended already, or this is not permitted.
        Path(f"/proc/{pid}/autogroup").write_text(str(niceness))
