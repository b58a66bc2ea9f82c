"""Checks at the start of a job of several ranks: equal settings, and one folder for checkpoints, on all nodes."""

import socket
import uuid
from pathlib import Path

import msgspec

from dart_streams.config import Config
from dart_streams.config.tables import key_values
from dart_streams.errors import UserError
from dart_streams.policy.weights import digest_file
from trainer.ranks import Ranks

MAY_DIFFER = {
    "policy.path": "the files there are compared",
    "run.state_dir": "the folder is compared",
    "tasks.file": "no rank reads tasks",
    "trainer.rendezvous": "each node may name it by another address",
    **dict.fromkeys(("bus.servers", "bus.tls", "bus.login"), "how a node reaches Kafka"),
    **dict.fromkeys(("store.hosts", "store.port", "store.tls", "store.login"), "how a node reaches Cassandra"),
    "store.local_dc": "the replicas that are near a node",
    **dict.fromkeys(("hardware", "services", "launch"), "of one machine"),
    **dict.fromkeys(("telemetry", "tracker", "ui"), "they decide nothing"),
}
"""Keys, or tables of keys, that may differ between nodes, and the reason. Ranks may decide by any other."""
MAY_BEGIN = tuple(f"{key}." for key in MAY_DIFFER)
MODEL_FILES = frozenset({".safetensors", ".json", ".jinja", ".txt", ".model"})
"""Suffixes of files from which a model, its tokenizer or its image processor is made."""
MOST_NAMED = 8


def refuse_unequal(config: Config, ranks: Ranks, folder: Path, model_dir: Path) -> None:
    """Raise :class:`UserError` on all ranks if one has other settings or another model, or does not see ``folder``.

    Collective. Ranks of one node have the same model.
    """
    if ranks.count == 1:
        return
    own = settings_of(config)
    if 0 < ranks.local < ranks.count:
        own |= digests_of(model_dir)
    first: dict[str, str] = ranks.from_first(own, dict[str, str])
    other = sorted(key for key in own.keys() | first.keys() if own.get(key) != first.get(key))
    if unequal := ranks.gathered([f"{name_of(ranks)} ({', '.join(other[:MOST_NAMED])})"] if other else [], str):
        raise UserError(
            f"the nodes have different configurations: rank 0's is not that of {'; '.join(unequal)}. Give the same "
            "file to `dart-streams train` on each node, and the same model"
        )
    refuse_unshared(ranks, folder)


def settings_of(config: Config) -> dict[str, str]:
    """Return the keys that all nodes must have in common, with their values."""
    same = [one for one in key_values(msgspec.to_builtins(config)) if not f"{one[0]}.".startswith(MAY_BEGIN)]
    return {place: msgspec.json.encode(value).decode() for place, value in same}


def digests_of(model_dir: Path) -> dict[str, str]:
    """Return the SHA-256 (hex) of a model's files by name: what training begins with."""
    files = sorted(file for file in model_dir.iterdir() if file.suffix in MODEL_FILES)
    return {f"policy.path: {file.name}": digest_file(file) for file in files}


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
