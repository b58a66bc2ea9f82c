"""Watched paths that cannot be read are worth 0, on any machine."""

from collections.abc import Awaitable, Callable
from typing import Any

from dart_streams.actions import Wait

SPOILED = (
    *("true", "mkdir {0}", "mkfifo {0}", "ln -s {0} {0}", "ln -s /dev/zero {0}", "head -c 3M /dev/zero >{0}"),
    *("echo >{0}; chmod 0 {0}", "mkdir {0}; chmod 0 {0}", "mkdir {0}; cd {0}; seq 3000 | xargs touch"),
    r"mkdir {0}; touch {0}/$(printf '\377') {0}/$(printf '\355\240\200')",
    "chmod 0 .",
)
"""Scripts that put something else in the place of a watched path, which was removed before."""


async def check_spoiled(environment: Any, execute: Callable[[str], Awaitable[Any]], path: str) -> None:
    """Check that a watched path that cannot be read is worth 0, and no fault of the environment."""
    assert await environment.evaluate() == 0
    for number, spoil in enumerate(SPOILED):
        await execute(f"chmod -R 700 ~; cd; rm -rf {path}; {spoil.format(path)}; true")
        await environment.step(Wait(), str(number))
        assert await environment.evaluate() == 0, spoil
