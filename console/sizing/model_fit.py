"""Checks with the model environment that a model can be the policy, before processes are started. Without torch."""

import subprocess
import tempfile
from pathlib import Path

import msgspec

from console.runs.run_folder import write_toml
from dart_streams.config import Config
from dart_streams.config.text import MALFORMED
from dart_streams.errors import ConfigError

TIMEOUT_S = 300.0
"""Importing transformers and vLLM takes half a minute on a slow disk."""


class Fit(msgspec.Struct, frozen=True):
    """The model's class, or why it cannot be the policy; its ``context`` and the longest ``prompt``, in tokens."""

    architecture: str = ""
    reason: str = ""
    context: int = 0
    prompt: int = 0


def check_model(model_dir: Path, program: Path, config: Config) -> Fit:
    """Run ``policy check`` with ``program``, the ``dart-streams`` of the model environment, and return its result."""
    with tempfile.TemporaryDirectory(prefix="model-fit-") as folder:
        file = Path(folder) / "config.toml"
        write_toml(file, config)
        command = [str(program), "policy", "check", str(model_dir), "--config", str(file), "--json"]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
            # Libraries may print before the last line.
            return msgspec.json.decode(done.stdout.strip().rpartition("\n")[2], type=Fit)
        except subprocess.TimeoutExpired:
            return Fit(reason=f"`{' '.join(command)}` did not end within {TIMEOUT_S:g} s")
        except MALFORMED:
            return Fit(reason=f"`{' '.join(command)}` failed: {done.stderr.strip().rpartition(chr(10))[2]}")


def refuse_unfit(model_dir: Path, program: Path, config: Config) -> None:
    """Raise :class:`ConfigError`, with the reason, if the model cannot be the policy of a configuration."""
    if program.exists() and (fit := check_model(model_dir, program, config)).reason:
        raise ConfigError(f"policy.path: {model_dir} cannot be the policy: {fit.reason}")
