"""Play tasks of an environment that an entry point brings, in an image: ``python -m tests.compose.played_phone``."""

import asyncio
import shutil
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.androidworld_stand_in import Phone, served

CONFIG = """
[tasks]
file = "tasks.toml"
[env]
backend = "androidworld"
installed.options = {{urls = "{urls}"}}
"""
TASKS = """
[[pages]]
environment = "androidworld"
page = "TapTheBox"
train_seeds = [0, 2]
heldout_seeds = [2, 3]
max_steps = 5
"""


async def play(folder: Path) -> int:
    """Check the stand-in's tasks by the installed program; return its exit code."""
    async with served(Phone(), Phone()) as urls:
        (folder / "tasks.toml").write_text(TASKS)
        (folder / "phone.toml").write_text(CONFIG.format(urls=" ".join(urls)))
        program = shutil.which("dart-streams") or "dart-streams"
        process = await asyncio.create_subprocess_exec(program, "env", "check", "--config", str(folder / "phone.toml"))
        return await process.wait()


if __name__ == "__main__":
    with TemporaryDirectory() as name:
        sys.exit(asyncio.run(play(Path(name))))
