"""The commands of the page on UI-TARS-1.5-7B, by what they do, and the small model that stands for its model."""

import re
import subprocess
from pathlib import Path

from tests.sources import ROOT

MODEL = ROOT / ".venv/model/bin"
MODEL_S = 600.0
"""To write the small model, on a machine that does other things at the same time."""
PAGE = (ROOT / "docs/how-to/ui-tars.md").read_text()
MODEL_ID = "ByteDance-Seed/UI-TARS-1.5-7B"
CONFIGS = "deploy/config/ui-tars"


def commands_of(page: str) -> list[str]:
    """Return the commands of a page's shell blocks, without comments, each on one line."""
    blocks = re.findall(r"^```bash\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    lines = [line.partition("  #")[0].strip() for block in blocks for line in block.replace("\\\n", " ").splitlines()]
    return [line for line in lines if line]


def file_of(command: str) -> str:
    """Return the configuration that a command names."""
    [file] = re.findall(rf"{CONFIGS}/[\w-]+\.toml", command)
    return str(file)


def write_small_model(folder: Path) -> None:
    """Write the small random model into a new folder, with the model's packages."""
    command = [str(MODEL / "python"), "-m", "tests.path.ui_tars_model", str(folder)]
    subprocess.run(command, cwd=ROOT, check=True, timeout=MODEL_S)


COMMANDS = commands_of(PAGE)
SETUP = [command for command in COMMANDS if command.startswith(("make ", "export "))]
SERVED = [command for command in COMMANDS if command.startswith("VLLM_API_KEY=")]
TRAINED = [command for command in COMMANDS if command.startswith("dart-streams run") and "--dry-run" not in command]
READ = [command for command in COMMANDS if command not in (*SETUP, *SERVED, *TRAINED)]
