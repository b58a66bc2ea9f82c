"""A machine that runs commands of a shell here, in a home of its own, with nothing but harmless programs."""

import asyncio
import os
from pathlib import Path
from typing import Any

STUBS = {"pkill": 1, "pidwait": 1, "gsettings": 0}
"""Programs that do nothing but return a code: they find no process, and what they would change is not this test's."""


class LocalMachine:
    """Runs commands in ``home``; commands that are lists are kept, and said to have ended well."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.programs: list[list[str]] = []
        self.output = "quiet"
        self.returncode = 0
        (home / "bin").mkdir(parents=True)
        for name, code in STUBS.items():
            (home / "bin" / name).write_text(f"#!/bin/sh\nexit {code}\n")
            (home / "bin" / name).chmod(0o755)

    async def execute(self, command: Any, shell: bool = False, **_: Any) -> dict[str, Any]:
        if not shell:
            self.programs.append(list(command))
            return self.ended(self.output, self.returncode)
        environment = {"HOME": str(self.home), "PATH": f"{self.home}/bin:{os.defpath}"}
        process = await asyncio.create_subprocess_shell(
            command, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT, env=environment, cwd=self.home
        )
        output, _ = await process.communicate()
        return self.ended(output.decode(), process.returncode)

    def ended(self, output: str, code: int | None) -> dict[str, Any]:
        return {"status": "success", "output": output, "error": output if code else "", "returncode": code}
