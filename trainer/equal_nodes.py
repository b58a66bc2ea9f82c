"""Checks at the start of a job of several ranks: equal settings, and one folder for checkpoints, on all nodes."""

import socket
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from dart_streams.config import Config
from dart_streams.errors import UserError
from trainer.ranks import Ranks

OWN_KEYS = {"trainer.rendezvous", "policy.path"}
"""Keys that may differ between nodes."""


def refuse_unequal(config: Config, ranks: Ranks, folder: Path) -> None:
    """Raise :class:`UserError` on all ranks if one has other settings, or does not see ``folder``. Collective."""
    if ranks.count == 1:
        return
    own = {key: msgspec.json.encode(value).decode() for key, value in settings_of(config)}
    first: dict[str, str] = ranks.from_first(own, dict[str, str])
    other = sorted(key for key in own.keys() - OWN_KEYS if own[key] != first[key])
    if unequal := ranks.gathered([f"{name_of(ranks)} ({', '.join(other)})"] if other else [], str):
        raise UserError(
            f"the nodes have different configurations: rank 0's is not that of {'; '.join(unequal)}. Give the same "
            "file to `dart-streams train` on each node"
        )
    refuse_unshared(ranks, folder)


def settings_of(config: Config) -> Iterator[tuple[str, Any]]:
    """Yield the keys that all nodes must have in common, with their values."""
    for table in ("trainer", "policy"):
        for key, value in msgspec.to_builtins(getattr(config, table)).items():
            yield f"{table}.{key}", value
    yield "bus.prefix", config.bus.prefix
    yield "recipe", config.recipe


def refuse_unshared(ranks: Ranks, folder: Path) -> None:
    """Raise :class:`UserError` on all ranks if one does not see ``folder``; it would call checkpoints damaged."""
    marker: Path = folder / ranks.from_first(f".shared-{uuid.uuid4().hex}", str)
    try:
        with ranks.failing_together():
            if ranks.first:
                folder.mkdir(parents=True, exist_ok=True)
                marker.touch()
        unseen = ranks.gathered([] if marker.exists() else [name_of(ranks)], str)
    except OSError as error:
        raise UserError(f"run.state_dir: {folder} can't be written ({error})") from error
    finally:
        if ranks.first:
            marker.unlink(missing_ok=True)
    if unseen:
        raise UserError(
            f"run.state_dir: {folder} is not the same folder for rank 0 and {', '.join(unseen)}: all nodes must share "
            "it, for instance over NFS, with the same path"
        )


def name_of(ranks: Ranks) -> str:
    """Return a rank's number and host."""
    return f"rank {ranks.rank} on {socket.gethostname()}"
