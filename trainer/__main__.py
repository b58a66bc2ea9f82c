"""``torchrun … -m trainer CONFIG``: one rank of a training job."""

import ctypes
import os
import signal
import sys
from pathlib import Path

import msgspec

from dart_streams.config import Config, load
from dart_streams.config.text import MALFORMED
from dart_streams.errors import ConfigError, UserError
from dart_streams.policy import cpu_features, recipe
from trainer.main import run_rank, stopped_by_signals
from trainer.ranks import MEETING

PR_SET_PDEATHSIG = 1
"""PR_SET_PDEATHSIG of prctl."""


def read(file: Path) -> Config:
    """Return the configuration in a TOML file, or in the JSON file that ``run_torchrun`` writes for its ranks."""
    if file.suffix != ".json":
        return load(file)
    try:
        return msgspec.json.decode(file.read_bytes(), type=Config)
    except (OSError, *MALFORMED) as error:
        raise ConfigError(f"{file}: {error}") from None


def main(arguments: list[str]) -> int:
    """Run one rank and return the exit code."""
    try:
        if len(arguments) != 1:
            raise UserError("usage: torchrun … -m trainer CONFIG")
        if os.environ.keys() & {"TORCHELASTIC_RUN_ID", MEETING}:  # It must not outlive its launcher.
            ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        config = read(Path(arguments[0]))
        cpu_features.limit_isa(config.trainer.dtype, Path(config.run.state_dir))
        with stopped_by_signals() as stop:
            return run_rank(config, recipe.model_folder(config), stop)
    except UserError as error:
        sys.stderr.write(f"error: {error}\n")
        return error.exit_code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
