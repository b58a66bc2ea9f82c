"""Asks the model environment whether a model can be the policy, before anything is started. Without torch."""

import subprocess
from pathlib import Path

import msgspec

from dart_streams.errors import ConfigError

TIMEOUT_S = 300.0
"""transformers and vLLM are imported and read the model's configuration, which takes half a minute on a slow disk."""


class Fit(msgspec.Struct, frozen=True):
    """What was found: the model's class, or the reason why it cannot be the policy."""

    architecture: str = ""
    reason: str = ""


def ask(model_dir: Path, program: Path) -> Fit:
    """Return what ``program``, the ``dart-streams`` of the model environment, finds of the model in ``model_dir``."""
    command = [str(program), "policy", "check", str(model_dir), "--json"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
        return msgspec.json.decode(done.stdout.strip().rpartition("\n")[2], type=Fit)
    except subprocess.TimeoutExpired:
        return Fit(reason=f"`{' '.join(command)}` did not end within {TIMEOUT_S:g} s")
    except msgspec.DecodeError:
        return Fit(reason=f"`{' '.join(command)}` failed: {done.stderr.strip().rpartition(chr(10))[2]}")


def refuse_unfit(model_dir: Path, program: Path) -> None:
    """Raise :class:`ConfigError`, with the reason, if the model cannot be the policy."""
    if program.exists() and (found := ask(model_dir, program)).reason:
        raise ConfigError(f"policy.path: {model_dir} cannot be the policy: {found.reason}")
