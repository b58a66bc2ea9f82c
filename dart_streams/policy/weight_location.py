"""Location of weight versions: the configured base, and which URIs it covers. Pure.

A version's URI comes from a topic. A rollout worker reads only below its own base, not any file, host or scheme that a
record names.
"""

import re

from dart_streams.config import Config

FOLDER = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]*")
"""Name of a version's directory, without separators, parents, chained URLs or queries."""


def base_of(config: Config) -> str:
    """Return the parent of published versions: ``trainer.weights_uri``, or the run's folder."""
    return (config.trainer.weights_uri or str((config.run.folder / "weights").resolve())).rstrip("/")


def checkpoint_base(config: Config) -> str:
    """Return the parent of the run's stored checkpoints, ``trainer.checkpoints_uri`` and the run; empty: none."""
    uri = config.trainer.checkpoints_uri.rstrip("/")
    return f"{uri}/{config.bus.run or config.run.id}" if uri else ""


def is_covered(uri: str, base: str) -> bool:
    """Return whether ``uri`` is a directory directly below ``base``."""
    above, _, name = uri.rpartition("/")
    return above == base and FOLDER.fullmatch(name) is not None


def location_refusal(uri: str, base: str) -> str:
    """Return the reason to refuse a version at ``uri``, empty if there is none."""
    if is_covered(uri, base):
        return ""
    return (
        f"{uri[:500]!r} is not a directory beneath {base!r}, where trainer.weights_uri (or the run's folder) has this "
        "run's weights: do trainer and rollout workers have the same trainer.weights_uri and run.state_dir?"
    )
